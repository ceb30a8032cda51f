#!/usr/bin/env bash
# Runs the tests of the PyTorch trainer in one process with another PyTorch than that of .venv-torch, in a temporary
# environment. A build with CUDA takes 3 GB to fetch and 6 GB of disk.
#   bash tests/torch_versions.sh         the oldest that requirement.txt admits; a CPU build if an index has one
#   bash tests/torch_versions.sh torch   the newest of the package index
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$here"
export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES='' PIP_DISABLE_PIP_VERSION_CHECK=1
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

.venv-torch/bin/python -m venv --without-pip "$folder"
python=$folder/bin/python
# Triton 3.6, which PyTorch 2.11 for GPUs brings, interprets kernels with NumPy below 2.4 only.
wanted=${1:-oldest}
read -r -a build <<<"${wanted/#oldest/$(oldest_build) numpy<2.4}"
.venv-torch/bin/python -m pip --python "$python" install --quiet --no-compile "${build[@]}"
# All other packages are those of .venv-torch, whose PyTorch comes later in the path.
for packages in .venv-torch/lib/python3.*/site-packages; do
    echo "import site; site.addsitedir('$here/$packages')"
done >"$("$python" -c 'import site; print(site.getsitepackages()[0])')/others.pth"
"$python" -c 'import torch; print("== PyTorch", torch.__version__)'
# What the trainer needs of PyTorch: not all numbers, not what the planner and a benchmark predict for the newest, no
# trackers, pages, examples and files in int8, and of the networks those that compute fast. In one process, which
# compiles PyTorch's files once.
read -r -a without <<<"$(printf -- '--ignore=tests/torch/test_%s.py ' \
    {planner_torch,gpu_benchmark,trackers,extend_page,tasks_page,words,smaller_files,arrow_sources})"
PYTHONPATH=tests "$python" -m pytest -q -p two_cases -m 'not slow' -k 'not r18' \
    tests/torch tests/parallel/torch "${without[@]}"
