#!/usr/bin/env bash
# Prepares a container for a training on several hosts: runs an sshd that only the job's other containers can log in to,
# without prompts. All containers of the job mount the same key, which is created once, at /ssh:
#   ssh-keygen -q -t ed25519 -N '' -f ssh/id_ed25519
#   docker run ... -v "$PWD/ssh:/ssh:ro" partial_fc bash deploy/docker/start-sshd.sh [PORT [COMMAND...]]
# PORT is 12345 by default. With a COMMAND, the container runs this command, and the sshd runs in the background.
set -euo pipefail
port=${1:-12345}
command=("${@:2}")
key=/ssh/id_ed25519
[ -e "$key" ] || key=/ssh/id_rsa    # the name in Kubernetes' MPI operator, for any type of key
mark="# made by deploy/docker/start-sshd.sh"

die() {
    printf 'start-sshd.sh: %s\n' "$*" >&2
    exit 1
}

# ssh and sshd accept these files only if this user owns them and others cannot read them, so they are copied from the
# mounted folder. This runs in a subshell, because the umask must not apply to the files of the training.
write_ssh_folder() (
    umask 077
    mkdir -p "$folder"
    install -m 600 "$key" "$folder/id_ed25519"
    public=$(ssh-keygen -y -f "$folder/id_ed25519" </dev/null) || die "$key is not a private key without a passphrase."
    printf '%s\n' "$public" >"$folder/authorized_keys"
    # The key is also the host key, so every container that has it is a trusted host.
    printf 'partial_fc %s\n' "$public" >"$folder/known_hosts"
    cat >"$folder/config" <<CONFIG
$mark
Host *
    Port $port
    HostKeyAlias partial_fc
    StrictHostKeyChecking yes
    BatchMode yes
CONFIG
)

[ -r "$key" ] || die "/ssh/id_ed25519 does not exist, or user $(id -u) cannot read it: create it with" \
    "ssh-keygen -q -t ed25519 -N '' -f ssh/id_ed25519  and start the container with  -v \"\$PWD/ssh:/ssh:ro\""
# ssh reads the configuration in the account's home and ignores HOME.
home=$(getent passwd "$(id -u)" | cut -d : -f 6) || true
[ -n "$home" ] || die "user $(id -u) has no account here: build the image with --build-arg USER_ID=$(id -u)."
folder=$home/.ssh
if [ -e "$folder" ] && ! grep -qsxF "$mark" "$folder/config"; then
    die "$folder exists and would be overwritten: this script is for the home of a container."
fi
write_ssh_folder
if [ "$(id -u)" = 0 ]; then mkdir -p /run/sshd; fi
# Without the system's configuration, because PAM would need root.
sshd=(/usr/sbin/sshd -D -e -f /dev/null -p "$port" -h "$folder/id_ed25519" -o PidFile=none
    -o PasswordAuthentication=no -o KbdInteractiveAuthentication=no)
if [ "${#command[@]}" -eq 0 ]; then exec "${sshd[@]}"; fi
"${sshd[@]}" &
until (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    kill -0 $! 2>/dev/null || die "sshd has exited, its message is above."
    sleep 0.1
done
kill -0 $! 2>/dev/null || die "another program is listening on port $port."
exec "${command[@]}"
