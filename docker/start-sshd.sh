#!/usr/bin/env bash
# Keeps a container waiting for a training on several hosts: an sshd that the job's other containers, and nobody else,
# enter without being asked anything. Each of them has the job's key, made once, in the folder /ssh:
#   ssh-keygen -q -t ed25519 -N '' -f ssh/id_ed25519
#   docker run ... -v "$PWD/ssh:/ssh:ro" partial_fc bash docker/start-sshd.sh [PORT]      (12345)
set -euo pipefail
port=${1:-12345}
key=/ssh/id_ed25519
mark="# made by docker/start-sshd.sh"

die() {
    printf 'start-sshd.sh: %s\n' "$*" >&2
    exit 1
}

# For ssh and sshd to take them, these files must be this user's own, and closed to others, which those of a mounted
# folder seldom are. In a subshell: what is trained later must not be closed to others.
write_ssh_folder() (
    umask 077
    mkdir -p "$folder"
    install -m 600 "$key" "$folder/id_ed25519"
    public=$(ssh-keygen -y -f "$folder/id_ed25519" </dev/null) || die "$key is not a private key without a passphrase."
    printf '%s\n' "$public" >"$folder/authorized_keys"
    # The key is that of the hosts, too: whoever holds it may be any of them.
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

[ -r "$key" ] || die "$key is not there, or not readable for user $(id -u): make it with" \
    "ssh-keygen -q -t ed25519 -N '' -f ssh/id_ed25519  and start the container with  -v \"\$PWD/ssh:/ssh:ro\""
# ssh reads the settings of the account's home, whatever HOME says.
home=$(getent passwd "$(id -u)" | cut -d : -f 6) || true
[ -n "$home" ] || die "user $(id -u) has no account here: build the image with --build-arg USER_ID=$(id -u)."
folder=$home/.ssh
if [ -e "$folder" ] && ! grep -qsxF "$mark" "$folder/config"; then
    die "$folder is there already, and this would overwrite it: this script is for a container's own home."
fi
write_ssh_folder
if [ "$(id -u)" = 0 ]; then mkdir -p /run/sshd; fi
# In front (-D), so that it is the container's process. Of the system's settings none: PAM would be root's alone.
exec /usr/sbin/sshd -D -e -f /dev/null -p "$port" -h "$folder/id_ed25519" -o PidFile=none \
    -o PasswordAuthentication=no -o KbdInteractiveAuthentication=no
