# Sourced by install.sh and install-torch.sh after common.sh: installs an environment once, and again when its sources
# change. The caller sets NEWEST_PYTHON and defines the functions that install() calls:
#   sources                 prints the files that determine the installation
#   other_build_requested   succeeds if the user requests another build than the installed one
#   install_everything, install_dev
# shellcheck shell=bash

# Prints a key of the sources. It does not start Python, so a second install takes milliseconds.
current_key() {
    printf '%s %s ' "$CLONE" "$(sources | sha256sum)"
    sed -n 's/^version[_info]* *= *//p' "$VENV/pyvenv.cfg" 2>/dev/null || true
}

other_python_requested() {
    [ -n "${PYTHON:-}" ] || return 1
    local requested
    requested=$("$PYTHON" -I -c 'import platform; print(platform.python_version())') || die "PYTHON=$PYTHON does not start."
    ! grep -qs "^version *= *$requested" "$VENV/pyvenv.cfg"
}

is_ready() {
    [ -x "$VENV/bin/python" ] && [ "$(cat "$STATE/ready" 2>/dev/null)" = "$(current_key)" ] || return 1
    [ "$want_dev" = 0 ] || [ "$(cat "$STATE/dev-ready" 2>/dev/null)" = "$(current_key)" ] || return 1
    ! other_python_requested && ! other_build_requested
}

# Prints the real path of the interpreter $1, behind shims and a venv's links, if it is a supported 64-bit CPython.
usable_python() {
    "$1" -I - "$NEWEST_PYTHON" 2>/dev/null <<'PY'
import os, sys, sysconfig
good = sys.implementation.name == "cpython" and (3, 10) <= sys.version_info[:2] <= (3, int(sys.argv[1]))
if not good or sys.maxsize <= 2**32 or sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit(1)
base = getattr(sys, "_base_executable", None)
print(os.path.realpath(base if base and os.path.exists(base) else sys.executable))
PY
}

# Sets `python`. 3.11 and 3.10 come first, because MXNet runs on them without shims. Both environments use the same one.
find_python() {
    local candidate without_venv=""
    if [ -n "${PYTHON:-}" ]; then
        python=$(usable_python "$PYTHON") || die "PYTHON=$PYTHON is not a 64-bit CPython 3.10 to 3.$NEWEST_PYTHON."
        "$python" -I -c 'import venv, ensurepip' 2>/dev/null || die_without_venv "$python"
        return
    fi
    for candidate in python3.11 python3.10 python3.12 python3.13 python3 python; do
        python=$(usable_python "$candidate") || continue
        if "$python" -I -c 'import venv, ensurepip' 2>/dev/null; then return; fi
        without_venv=${without_venv:-$python}
    done
    [ -z "$without_venv" ] || die_without_venv "$without_venv"
    die "no Python 3.10 to 3.$NEWEST_PYTHON was found. Install one: " \
        "$(package_command 'python3 python3-venv' python3.11)  or set PYTHON=/path/to/python3."
}

die_without_venv() {
    local version
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    die "$1 lacks the venv and ensurepip modules. Install them with: " \
        "$(package_command "python$version-venv" "python3-libs python3-pip")"
}

# Keeps an existing environment if these scripts made it, and it is complete, in place and has the requested Python;
# otherwise removes it if these scripts made it. Sets `python`.
prepare_venv_folder() {
    if [ -e "$VENV" ] && [ ! -d "$STATE" ] && [ -n "$(ls -A "$VENV")" ]; then
        die "$VENV exists but was not made by this script: move it away, then run this again."
    fi
    if [ -d "$STATE" ] && { [ ! -x "$VENV/bin/python" ] || [ "$(cat "$STATE/place" 2>/dev/null)" != "$CLONE" ] ||
        other_python_requested; }; then
        [ ! -L "$VENV" ] || die "$VENV is a link to the environment of another clone: remove the link, then run this again."
        rm -rf "$VENV"
    fi
    mkdir -p "$STATE" || die "cannot write to $CLONE: clone the repository to a folder that you can write to."
    printf '%s\n' "$CLONE" >"$STATE/place"
    if [ ! -f "$STATE/venv" ]; then find_python; else python=$VENV/bin/python; fi
}

# write_pth FOLDER...: adds source roots for every program in the environment. Python reads a .pth file at every start,
# even through ssh, horovodrun or CMake, where PYTHONPATH would have to be passed on. Sets `site`.
write_pth() {
    site=$("$VENV/bin/python" -I -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    printf '%s\n' "$@" >"$site/partial_fc_stack.pth"
}

# Writes the command partial-fc, as a wheel would. Its program is in its own folder, so Python does not import modules
# from the current folder, but still from PYTHONPATH, where users have their detectors and readers.
write_command() {
    printf 'from partial_fc_tools.__main__ import run\n\nif __name__ == "__main__":\n    run()\n' >"$STATE/command.py"
    printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$VENV/bin/python" "$STATE/command.py" >"$VENV/bin/partial-fc"
    chmod +x "$VENV/bin/partial-fc"
}

# install [--dev]
install() {
    want_dev=0
    case "${1:-}" in
        "") ;;
        --dev) want_dev=1 ;;
        *) die "unknown argument \"$1\": the only one is --dev." ;;
    esac
    if is_ready; then return; fi
    lock_install
    if is_ready; then return; fi
    if ! want_dev=0 is_ready; then
        install_everything
        write_command
    fi
    current_key >"$STATE/ready"
    if [ "$want_dev" = 1 ]; then
        install_dev
        current_key >"$STATE/dev-ready"
    fi
    say "Installation finished in $SECONDS s. Check it with: bash setup-utils/check.sh"
}
