#!/usr/bin/env bash
# Installs everything into .venv in the clone; can be called again at any time (run.sh and tests/run.sh do).
#   bash setup-utils/install.sh          what training needs
#   bash setup-utils/install.sh --dev    the test tools too
#   PYTHON=python3.10 bash setup-utils/install.sh    with this Python instead of the preferred one
#   MXNET_WHEEL=mxnet-cu112 bash setup-utils/install.sh    for GPUs that this machine does not have (image, login node)
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

want_dev=0
case "${1:-}" in
    "") ;;
    --dev) want_dev=1 ;;
    *) die "unknown argument \"$1\": the only one is --dev." ;;
esac

# Identifies what an install was made from. It starts no Python, so that a second call takes milliseconds.
current_key() {
    printf '%s %s ' "$CLONE" "$(cd "$SETUP_DIR" && cat common.sh install.sh install-{mpi,horovod}.sh \
        {cuda,stack_shims,two_ranks}.py ./*.cmake requirements/*.txt | sha256sum)"
    sed -n 's/^version[_info]* *= *//p' "$VENV/pyvenv.cfg" 2>/dev/null || true
}

other_python_requested() {
    [ -n "${PYTHON:-}" ] || return 1
    local requested
    requested=$("$PYTHON" -c 'import platform; print(platform.python_version())') || die "PYTHON=$PYTHON does not start."
    ! grep -qs "^version *= *$requested" "$VENV/pyvenv.cfg"
}

other_wheel_requested() {
    [ -n "${MXNET_WHEEL:-}" ] && ! grep -qsx "PFC_WHEEL=$MXNET_WHEEL" "$STATE/cuda.env"
}

is_ready() {
    [ -x "$VENV/bin/python" ] && [ "$(cat "$STATE/ready" 2>/dev/null)" = "$(current_key)" ] || return 1
    [ "$want_dev" = 0 ] || [ "$(cat "$STATE/dev-ready" 2>/dev/null)" = "$(current_key)" ] || return 1
    ! other_python_requested && ! other_wheel_requested
}

check_machine() {
    case $CLONE in
        *[[:space:]]*) die "the path \"$CLONE\" has a space, which splits the options MPI hands to Horovod's build: move the clone." ;;
    esac
    [ "$(uname -s)" = Linux ] || die "this stack runs on Linux only (MXNet and Open MPI wheels); this is $(uname -s)."
    case $(uname -m) in
        x86_64) ;;
        *) die "MXNet $MXNET_VERSION and Open MPI come as x86-64 wheels; this machine is $(uname -m)." ;;
    esac
    case $(ldd --version 2>&1 || true) in
        *musl*) die "MXNet's wheels need glibc; this system uses musl (Alpine). Take Debian, Ubuntu, Fedora or RHEL." ;;
    esac
}

check_compiler() {
    local missing="" tool
    command -v "${CC:-gcc}" >/dev/null 2>&1 || command -v cc >/dev/null 2>&1 || missing="$missing C"
    for tool in "${CXX:-g++}" make; do
        command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
    done
    [ -z "$missing" ] || die "Horovod is compiled here and needs a C and a C++ compiler and make; missing:$missing." \
        "Install them with:  $(package_command build-essential 'gcc gcc-c++ make')"
}

# Prints the real path of the interpreter $1 (not of a shim or a venv's link) when it is a 64-bit CPython 3.10 to 3.13.
usable_python() {
    "$1" - 2>/dev/null <<'PY'
import os, sys, sysconfig
good = sys.implementation.name == "cpython" and (3, 10) <= sys.version_info[:2] <= (3, 13) and sys.maxsize > 2**32
if not good or sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit(1)
base = getattr(sys, "_base_executable", None)
print(os.path.realpath(base if base and os.path.exists(base) else sys.executable))
PY
}

# Sets `python`. 3.10 and 3.11 run the stack without shims, so they come first.
find_python() {
    local candidate without_venv=""
    if [ -n "${PYTHON:-}" ]; then
        python=$(usable_python "$PYTHON") || die "PYTHON=$PYTHON is not a 64-bit CPython 3.10 to 3.13."
        "$python" -c 'import venv, ensurepip' 2>/dev/null || die_without_venv "$python"
        return
    fi
    for candidate in python3.11 python3.10 python3.12 python3.13 python3 python; do
        python=$(usable_python "$candidate") || continue
        if "$python" -c 'import venv, ensurepip' 2>/dev/null; then return; fi
        without_venv=${without_venv:-$python}
    done
    [ -z "$without_venv" ] || die_without_venv "$without_venv"
    die "no Python 3.10 to 3.13 was found. Install one:  $(package_command 'python3 python3-venv' python3.11)  or set" \
        "PYTHON=/path/to/python3."
}

die_without_venv() {
    local version
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    die "$1 lacks the venv and ensurepip modules. Install them with: " \
        "$(package_command "python$version-venv" "python3-libs python3-pip")"
}

# Keeps an existing .venv if these scripts made it, it is complete, was not moved and has the requested Python.
prepare_venv_folder() {
    if [ -e "$VENV" ] && [ ! -d "$STATE" ] && [ -n "$(ls -A "$VENV")" ]; then
        die "$VENV exists but was not made by this script: move it away, then run this again."
    fi
    if [ -d "$STATE" ] && { [ ! -x "$VENV/bin/python" ] || [ "$(cat "$STATE/place" 2>/dev/null)" != "$CLONE" ] ||
        other_python_requested; }; then
        rm -rf "$VENV"
    fi
    mkdir -p "$STATE" || die "cannot write to $CLONE: clone the repository to a folder that you can write to."
    printf '%s\n' "$CLONE" >"$STATE/place"
}

make_venv() {
    "$python" -m venv "$VENV"
    "$VENV/bin/python" -m pip install "pip==$PIP_VERSION"
}

# Every start of this Python reads a .pth file (through ssh, horovodrun or CMake too), while PYTHONPATH would have to be
# passed along. So the file lists the clone's two source roots, and imports the shims where they are needed.
write_pth() {
    local site
    site=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    printf '%s\n%s\n' "$CLONE" "$CLONE/mxnet" >"$site/partial_fc_stack.pth"
    # protobuf's compiled form (3.10 has one) crashes beside libmxnet, which contains another, and on 3.13 it rejects
    # mxboard's generated code. The first import of protobuf decides, and MXNet itself imports it, through onnx.
    printf 'import os; os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")\n' \
        >>"$site/partial_fc_stack.pth"
    if "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then
        cp "$SETUP_DIR/stack_shims.py" "$site/stack_shims.py"
        "$VENV/bin/python" -m py_compile "$site/stack_shims.py"   # every start of Python imports it
        printf 'import stack_shims\n' >>"$site/partial_fc_stack.pth"
    fi
}

install_packages() {
    pip_install -r "$SETUP_DIR/requirements/training.txt" "$PFC_WHEEL==$MXNET_VERSION"
    write_pth
}

check_packages() {
    cd /
    "$VENV/bin/python" -c "$(printf '%s\n' 'import mxnet, numpy, cv2, easydict, tqdm, matplotlib, mxboard, onnx, onnxruntime' \
        'assert mxnet.nd.ones((2, 3)).sum().asscalar() == 6')"
}

install_everything() {
    check_machine
    check_compiler
    prepare_venv_folder
    if [ ! -f "$STATE/venv" ]; then find_python; else python=$VENV/bin/python; fi
    say "Setting up $VENV with $("$python" -V) (first time: 2 to 6 minutes; log: .venv/install.log)"
    phase venv made step "virtual environment" make_venv
    "$VENV/bin/python" "$SETUP_DIR/cuda.py" >"$STATE/cuda.env.new"    # a rejected wheel leaves the old file
    mv "$STATE/cuda.env.new" "$STATE/cuda.env"
    # shellcheck source=/dev/null
    . "$STATE/cuda.env"
    say "  MXNet: $PFC_WHEEL $MXNET_VERSION ($PFC_REASON)"
    local pins
    pins="$PFC_WHEEL $(cat "$SETUP_DIR"/{requirements/training.txt,stack_shims.py} | sha256sum)"
    phase packages "$pins" step "MXNet, numpy, OpenCV and the rest, at pinned versions" install_packages
    phase packages-checked "$pins" step "check: MXNet and the other packages import and compute" check_packages
    bash "$SETUP_DIR/install-mpi.sh"
    bash "$SETUP_DIR/install-horovod.sh"
}

install_dev() {
    phase dev "$(sha256sum <"$SETUP_DIR/requirements/dev.txt")" \
        step "test tools (pytest, ruff, mypy, shellcheck, hadolint)" pip_install -r "$SETUP_DIR/requirements/dev.txt"
}

if is_ready; then exit 0; fi
lock_install
if is_ready; then exit 0; fi
if ! want_dev=0 is_ready; then install_everything; fi
current_key >"$STATE/ready"
if [ "$want_dev" = 1 ]; then
    install_dev
    current_key >"$STATE/dev-ready"
fi
say "Installation finished in $SECONDS s. Check it with: bash setup-utils/check.sh"
