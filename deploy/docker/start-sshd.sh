#!/usr/bin/env bash
# Keeps a container ready for a training on several hosts: an sshd that only the job's other containers can log in to,
# without prompts. Each container has the job's key, made once, in the folder /ssh:
#   ssh-keygen -q -t ed25519 -N '' -f ssh/id_ed25519
#   docker run ... -v "$PWD/ssh:/ssh:ro" partial_fc bash deploy/docker/start-sshd.sh [PORT [COMMAND...]]      (12345)
# With a command, that is the container's process, and the sshd runs in the background.
set -euo pipefail
port=${1:-12345}
command=("${@:2}")
key=/ssh/id_ed25519
[ -e "$key" ] || key=/ssh/id_rsa    # so Kubernetes' MPI operator calls it, whatever its type
mark="# made by deploy/docker/start-sshd.sh"

die() {
    printf 'start-sshd.sh: %s\n' "$*" >&2
    exit 1
}

# ssh and sshd accept these files only if this user owns them and others cannot read them, which is rarely so in a
# mounted folder. In a subshell: the umask must not apply to the files of the training.
write_ssh_folder() (
    umask 077
    mkdir -p "$folder"
    install -m 600 "$key" "$folder/id_ed25519"
    public=$(ssh-keygen -y -f "$folder/id_ed25519" </dev/null) || die "$key is not a private key without a passphrase."
    printf '%s\n' "$public" >"$folder/authorized_keys"
    # The key is also the host key: every container that has it is trusted as a host.
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
# Without the system's configuration: PAM would need root.
sshd=(/usr/sbin/sshd -D -e -f /dev/null -p "$port" -h "$folder/id_ed25519" -o PidFile=none
    -o PasswordAuthentication=no -o KbdInteractiveAuthentication=no)
if [ "${#command[@]}" -eq 0 ]; then exec "${sshd[@]}"; fi
"${sshd[@]}" &
until (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    kill -0 $! 2>/dev/null || die "sshd has ended, its message is above."
    sleep 0.1
done
kill -0 $! 2>/dev/null || die "another program listens on port $port."
exec "${command[@]}"
