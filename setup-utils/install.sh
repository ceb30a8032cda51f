#!/usr/bin/env bash
# Installs the MXNet trainer, which needs x86-64, into .venv in the clone. It can be called again at any time, as run.sh
# and tests/run.sh do.
#   bash setup-utils/install.sh          what training needs
#   bash setup-utils/install.sh --dev    and the test tools
#   PYTHON=python3.10 bash setup-utils/install.sh    with this Python instead of the preferred one
#   MXNET_WHEEL=mxnet-cu112 bash setup-utils/install.sh    for GPUs that are not in this machine (image, login node)
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=venv.sh
. "$SETUP_DIR/venv.sh"
NEWEST_PYTHON=13

sources() {
    cd "$SETUP_DIR"
    cat common.sh venv.sh install.sh install-{mpi,horovod}.sh {cuda,stack_shims,two_ranks}.py ./*.cmake requirements/*.txt
}

other_build_requested() {
    [ -n "${MXNET_WHEEL:-}" ] && ! grep -qsx "PFC_WHEEL=$MXNET_WHEEL" "$STATE/cuda.env"
}

check_machine() {
    case $CLONE in
        *[[:space:]]*) die "the path \"$CLONE\" has a space, which splits the options MPI hands to Horovod's build: move the clone." ;;
    esac
    [ "$(uname -s)" = Linux ] || die "this stack runs on Linux only (MXNet and Open MPI wheels); this is $(uname -s)."
    case $(uname -m) in
        x86_64) ;;
        *) die "MXNet $MXNET_VERSION and Open MPI have only x86-64 wheels; this machine is $(uname -m)." \
            "The PyTorch trainer does not need them:  bash pytorch/run.sh" ;;
    esac
    case $(ldd --version 2>&1 || true) in
        *musl*) die "MXNet's wheels need glibc; this system uses musl (Alpine). Use Debian, Ubuntu, Fedora or RHEL." ;;
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

make_venv() {
    "$python" -I -m venv "$VENV"
    "$VENV/bin/python" -I -m pip install "pip==$PIP_VERSION"
}

# Adds the source roots to Python's path, and imports the shims on Pythons that need them.
write_mxnet_pth() {
    local site
    write_pth "$CLONE" "$CLONE/mxnet" "$CLONE/tools"
    # Selects protobuf's pure-Python implementation before its first import, which may be by MXNet through onnx. The
    # compiled one (there is one for Python 3.10) crashes beside libmxnet, which contains another protobuf, and on 3.13
    # it rejects mxboard's generated code.
    printf 'import os; os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")\n' \
        >>"$site/partial_fc_stack.pth"
    if "$VENV/bin/python" -I -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then
        cp "$SETUP_DIR/stack_shims.py" "$site/stack_shims.py"
        "$VENV/bin/python" -I -m py_compile "$site/stack_shims.py"   # because every start of Python imports it
        printf 'import stack_shims\n' >>"$site/partial_fc_stack.pth"
    fi
}

install_packages() {
    pip_install --no-deps -r "$SETUP_DIR/requirements/training.txt" "$PFC_WHEEL==$MXNET_VERSION"
}

check_packages() {
    cd /
    "$VENV/bin/python" -I -c "$(printf '%s\n' 'import mxnet, numpy, cv2, easydict, tqdm, matplotlib, mxboard, onnx, onnxruntime' \
        'assert mxnet.nd.ones((2, 3)).sum().asscalar() == 6')"
}

install_everything() {
    check_machine
    check_compiler
    prepare_venv_folder
    say "Setting up $VENV with $("$python" -V) (first time: 2 to 6 minutes; log: .venv/install.log)"
    phase venv made step "virtual environment" make_venv
    "$VENV/bin/python" "$SETUP_DIR/cuda.py" >"$STATE/cuda.env.new"    # the old file stays if this fails
    mv "$STATE/cuda.env.new" "$STATE/cuda.env"
    # shellcheck source=/dev/null
    . "$STATE/cuda.env"
    say "  MXNet: $PFC_WHEEL $MXNET_VERSION ($PFC_REASON)"
    local pins
    pins="$PFC_WHEEL $(cat "$SETUP_DIR"/{requirements/training.txt,stack_shims.py} | sha256sum)"
    phase packages "$pins" step "MXNet, numpy, OpenCV and the rest, at pinned versions" install_packages
    write_mxnet_pth    # always, because an earlier version of the clone may have had other source roots
    phase packages-checked "$pins" step "check: MXNet and the other packages import and compute" check_packages
    bash "$SETUP_DIR/install-mpi.sh"
    bash "$SETUP_DIR/install-horovod.sh"
}

install_dev() {
    phase dev "$(sha256sum <"$SETUP_DIR/requirements/dev.txt")" \
        step "test tools (pytest, ruff, mypy, shellcheck, hadolint)" pip_install --no-deps -r "$SETUP_DIR/requirements/dev.txt"
}

install "$@"
