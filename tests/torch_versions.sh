#!/usr/bin/env bash
# Runs the tests of the PyTorch trainer in one process with the oldest PyTorch that requirement.txt admits and with the
# newest of the package index, each in a temporary environment. PyPI's builds contain CUDA: 3 GB to fetch and 6 GB of
# disk for each.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$here"
export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=
export PIP_COMPILE=0 PYTHONDONTWRITEBYTECODE=    # only what is imported is compiled, not all that pip unpacks
oldest=$(sed -n 's/^torch>=\([0-9.]*\).*/\1/p' requirement.txt)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

for build in "torch==$oldest.*" torch; do
    rm -rf "${folder:?}"/.venv-torch
    cp -r setup-utils requirement.txt "$folder"
    TORCH=$build bash "$folder/setup-utils/install-torch.sh" --dev
    python=$folder/.venv-torch/bin/python
    "$python" -c 'import torch; print("== PyTorch", torch.__version__)'
    "$python" -m pytest -q -n 2 tests/torch tests/parallel/torch
done
