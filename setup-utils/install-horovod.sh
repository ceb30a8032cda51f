#!/usr/bin/env bash
# Builds Horovod in .venv with MXNet, MPI and Gloo (and NCCL, if MXNet has CUDA and NCCL is found), and tests it.
# Called by install.sh; called directly, it first installs what it needs.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ ! -f "$STATE/mpi" ]; then exec bash "$SETUP_DIR/install.sh"; fi
# shellcheck source=env.sh
. "$SETUP_DIR/env.sh"

# A compiler process takes up to 1.5 GB, so Horovod's default of 8 jobs needs too much memory on small machines.
build_jobs() {
    local cores kilobytes fitting
    cores=$(nproc)
    kilobytes=$(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo)
    fitting=$((kilobytes / 1572864))
    if [ "$fitting" -lt "$cores" ]; then cores=$fitting; fi
    say $((cores > 1 ? cores : 1))
}

build_flags() {
    export HOROVOD_WITH_MXNET=1 HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1
    export HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1
    export CMAKE_TOOLCHAIN_FILE="$SETUP_DIR/horovod-build.cmake"
    MPI_HOME=$(dirname "${PFC_MPI_BIN:-$VENV/bin}")   # CMake searches it before PATH
    export MPI_HOME MAKEFLAGS="${MAKEFLAGS:--j$(build_jobs)}"
    unset HOROVOD_CUDA_HOME HOROVOD_GPU_OPERATIONS   # set below, to match the installed MXNet
    if [ "$PFC_WHEEL" = mxnet ]; then return; fi
    export HOROVOD_CUDA_HOME="$PFC_CUDA_HOME"
    # CUDA 11.2 rejects compilers newer than gcc 10 only because of their version numbers.
    export NVCC_PREPEND_FLAGS="-allow-unsupported-compiler ${NVCC_PREPEND_FLAGS:-}"
    if [ -n "$PFC_NCCL_HOME" ]; then
        export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_HOME="$PFC_NCCL_HOME"
    fi
}

# Never from pip's cache: a wheel of Horovod contains the absolute paths of the MXNet and MPI that it was built with, so
# it would load them from another clone's .venv, or fail when this is deleted.
build_horovod() {
    build_flags
    rm -rf "$VENV"/lib/python3*/site-packages/horovod
    pip_install --no-deps -r "$SETUP_DIR/requirements/build.txt"
    pip_install --no-deps --no-cache-dir --no-binary horovod --no-build-isolation --force-reinstall \
        "horovod==$HOROVOD_VERSION"
}

check_horovod() {
    local report part
    cd /   # in the clone, its folder mxnet/ would be imported
    report=$(horovodrun --check-build)
    say "$report"
    for part in MXNet MPI Gloo; do
        say "$report" | grep -qF "[X] $part" || { say "Horovod was built without $part."; return 1; }
    done
    timeout 120 mpirun -np 2 -x OMP_NUM_THREADS=1 python "$SETUP_DIR/two_ranks.py"
}

build="$HOROVOD_VERSION $PFC_WHEEL ${PFC_NCCL_HOME:+nccl} $(cat "$STATE/mpi.env")"
phase horovod "$build" step "Horovod $HOROVOD_VERSION, compiled with $(build_jobs) jobs (1 to 4 minutes)" build_horovod
phase horovod-checked "$build" step "check: two ranks exchange arrays through Horovod" check_horovod
