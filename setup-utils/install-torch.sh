#!/usr/bin/env bash
# Installs the PyTorch trainer's environment, on x86-64 or aarch64, into .venv-torch in the clone. It can be called
# again at any time, as pytorch/run.sh and tests/run.sh do.
#   bash setup-utils/install-torch.sh          requirement.txt: what training needs, in the newest versions
#   bash setup-utils/install-torch.sh --dev    and test tools, libraries of examples/ and notebooks, trackers and datasets
#   PYTHON=python3.12 bash setup-utils/install-torch.sh    with this Python instead of the preferred one
#   TORCH=torch==2.11.0 bash setup-utils/install-torch.sh  with another build: the arguments of "pip install", such as
#       TORCH="torch --index-url https://download.pytorch.org/whl/cu126" for GPUs with an older driver
# Without TORCH, a machine with an NVIDIA GPU gets torch from the package index (PyPI's contains CUDA 13), or the build
# for CUDA 12.6 if its driver is older than CUDA 13. Other machines get the newest CPU build of the package index, or of
# PyTorch's own index if the package index has none.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=venv.sh
. "$SETUP_DIR/venv.sh"
use_venv .venv-torch install-torch.sh "8 GB (1 GB for a CPU build)"
NEWEST_PYTHON=14
OLDER_CUDA_INDEX=https://download.pytorch.org/whl/cu126
CPU_INDEX=https://download.pytorch.org/whl/cpu

sources() {
    cd "$SETUP_DIR"
    cat common.sh venv.sh install-torch.sh requirements/{dev,loops,trackers,sources,words,speakers,notebooks}.txt ../requirement.txt
}

other_build_requested() {
    [ -n "${TORCH:-}" ] && [ "$(cat "$STATE/torch" 2>/dev/null)" != "$TORCH" ]
}

check_machine() {
    [ "$(uname -s)" = Linux ] || die "this trainer runs on Linux only; this is $(uname -s)."
    case $(ldd --version 2>&1 || true) in
        *musl*) die "PyTorch's wheels need glibc; this system uses musl (Alpine). Use Debian, Ubuntu, Fedora or RHEL." ;;
    esac
}

# Prints the CUDA version of the driver, 12020 for 12.2; 0 without a GPU.
driver_of_gpus() {
    (cd "$SETUP_DIR" && "$VENV/bin/python" -c 'import cuda; gpus, _, driver = cuda.probe_gpus(); print(driver if gpus else 0)')
}

# Prints the newest version with "+cpu" that the package index has for this Python, or nothing.
newest_cpu_build() {
    "$VENV/bin/python" -I -m pip index versions torch 2>>"$LOG" |
        sed -n 's/^Available versions: //p' | tr -d ' ' | tr ',' '\n' | sed -n '/+cpu$/{p;q;}' || true
}

cpu_index_answers() {
    "$VENV/bin/python" -I - "$CPU_INDEX/torch/" >>"$LOG" 2>&1 <<'PY'
import sys, urllib.request
urllib.request.urlopen(sys.argv[1], timeout=10).close()
PY
}

# Sets `torch`, the arguments of pip, and `reason`. An installation keeps its build unless TORCH names another one.
choose_torch() {
    local version driver
    driver=$(driver_of_gpus)
    if [ -n "${TORCH:-}" ]; then torch=$TORCH reason="named by TORCH"
    elif [ -f "$STATE/torch" ]; then torch=$(cat "$STATE/torch") reason="as before"
    elif [ "$driver" -ge 13000 ]; then torch=torch reason="for this machine's GPU: about 3 GB to fetch"
    elif [ "$driver" -gt 0 ]; then
        torch="torch --index-url $OLDER_CUDA_INDEX"
        reason="for this machine's GPU, whose driver is older than CUDA 13: about 3 GB to fetch"
    else
        version=$(newest_cpu_build)
        if [ -n "$version" ]; then torch="torch==$version" reason="no NVIDIA GPU: the newest CPU build of the package index"
        elif cpu_index_answers; then torch="torch --index-url $CPU_INDEX" reason="no NVIDIA GPU: 200 MB to fetch"
        else torch=torch reason="no CPU build found: may contain CUDA, 3 GB to fetch; TORCH=... names another"
        fi
    fi
}

install_torch() {
    local arguments
    read -r -a arguments <<<"$torch"
    "$VENV/bin/python" -I -m pip uninstall -y torch    # otherwise pip keeps the installed build
    pip_install "${arguments[@]}"
}

# The constraint keeps the requirements from replacing the chosen torch.
install_packages() {
    "$VENV/bin/python" -I -m pip freeze | grep '^torch[ =]' >"$STATE/constraint.txt"
    pip_install -r "$CLONE/requirement.txt" -c "$STATE/constraint.txt"
}

check_packages() {
    cd /
    "$VENV/bin/python" -I -c "$(printf '%s\n' 'import torch, safetensors, numpy, cv2, easydict, tqdm, matplotlib, onnx, onnxruntime, psutil' \
        'import torch.distributed, torch.utils.tensorboard' 'assert torch.distributed.is_gloo_available()' \
        'assert torch.ones(2, 3).numpy().sum() == 6')"
}

install_everything() {
    check_machine
    prepare_venv_folder
    say "Setting up $VENV with $("$python" -V) (first time: 1 to 5 minutes; log: .venv-torch/install.log)"
    phase venv made step "virtual environment" "$python" -I -m venv "$VENV"
    local torch reason pins
    choose_torch
    say "  PyTorch: $torch ($reason)"
    phase torch "$torch" step "PyTorch" install_torch
    pins="$torch $(sha256sum <"$CLONE/requirement.txt")"
    phase packages "$pins" step "numpy, OpenCV, ONNX and the rest of requirement.txt" install_packages
    write_pth "$CLONE" "$CLONE/pytorch" "$CLONE/tools"    # always, as in install.sh
    phase packages-checked "$pins" step "check: PyTorch and the other packages import and compute" check_packages
}

# Uses the test tools' versions of the other environment, and keeps the chosen torch. --no-compile saves time, because
# the tests import few of thousands of files.
install_dev() {
    local lists=$SETUP_DIR/requirements
    phase dev "$(cat "$lists"/{dev,loops,trackers,sources,words,speakers,notebooks}.txt | sha256sum)" \
        step "test tools (pytest), Accelerate, Lightning Fabric, transformers, peft, Triton, trackers, datasets, a dictionary, filter banks, timm, Jupyter's kernel" \
        pip_install --no-compile pytest pytest-timeout pytest-xdist -r "$lists/loops.txt" -r "$lists/trackers.txt" \
        -r "$lists/sources.txt" -r "$lists/words.txt" -r "$lists/speakers.txt" \
        -r "$lists/notebooks.txt" -c "$lists/dev.txt" -c "$STATE/constraint.txt"
}

install "$@"
