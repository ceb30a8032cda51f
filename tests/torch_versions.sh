#!/usr/bin/env bash
# Runs the tests of the PyTorch trainer in one process with another PyTorch than that of .venv-torch, in a temporary
# environment. A build with CUDA takes 3 GB to fetch and 6 GB of disk.
#   bash tests/torch_versions.sh          the oldest that requirement.txt admits; a CPU build if an index at hand has one
#   bash tests/torch_versions.sh torch    the newest of the package index
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$here"
export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES='' PIP_DISABLE_PIP_VERSION_CHECK=1
export PIP_COMPILE=0    # only what is imported is compiled, not all that pip unpacks
cpu_index=https://download.pytorch.org/whl/cpu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Prints the arguments of pip for the oldest release.
oldest_build() {
    local oldest version
    oldest=$(sed -n 's/^torch>=\([0-9.]*\).*/\1/p' requirement.txt)
    version=$(.venv-torch/bin/python -m pip index versions torch 2>/dev/null |
        sed -n 's/^Available versions: //p' | tr -d ' ' | tr ',' '\n' | grep -m 1 "^${oldest//./\\.}\..*+cpu$" || true)
    if [ -n "$version" ]; then echo "torch==$version"
    elif .venv-torch/bin/python -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=10)' \
        "$cpu_index/torch/" 2>/dev/null; then echo "torch==$oldest.* --index-url $cpu_index"
    else echo "torch==$oldest.*"
    fi
}

cp -r setup-utils requirement.txt "$folder"
TORCH=${1:-$(oldest_build)} bash "$folder/setup-utils/install-torch.sh" --dev
python=$folder/.venv-torch/bin/python
"$python" -c 'import torch; print("== PyTorch", torch.__version__)'
# What the trainer needs of PyTorch: not what the planner and a benchmark predict for the newest.
"$python" -m pytest -q -n 2 tests/torch tests/parallel/torch \
    --ignore=tests/torch/test_planner_activations.py --ignore=tests/torch/test_gpu_benchmark.py
