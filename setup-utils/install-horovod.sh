#!/usr/bin/env bash
# Builds Horovod in .venv with MXNet, MPI and Gloo (and NCCL, if MXNet has CUDA and NCCL is found), and tests it.
# Called by install.sh; called directly, it first installs what it needs.
#   HOROVOD_WHEELS=FOLDER    keeps the compiled wheel there for other clones (only with MXNet for CPUs and our Open MPI)
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
    if is_relocatable; then export HOROVOD_RELOCATABLE=1; fi
    if [ "$PFC_WHEEL" = mxnet ]; then return; fi
    export HOROVOD_CUDA_HOME="$PFC_CUDA_HOME"
    # CUDA 11.2 rejects compilers newer than gcc 10 only because of their version numbers.
    export NVCC_PREPEND_FLAGS="-allow-unsupported-compiler ${NVCC_PREPEND_FLAGS:-}"
    if [ -n "$PFC_NCCL_HOME" ]; then
        export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_HOME="$PFC_NCCL_HOME"
    fi
}

# With CUDA or a system's MPI, Horovod's library contains the absolute paths of those libraries and of this clone's MXNet.
is_relocatable() { [ "$PFC_WHEEL" = mxnet ] && [ -z "$PFC_MPI_BIN" ]; }

# Prints the folder for the wheel that these versions and this compiler make.
wheel_folder() {
    local folder=$VENV/horovod-wheel    # not pip's cache, which does not distinguish versions of MXNet and MPI
    if [ -n "${HOROVOD_WHEELS:-}" ] && is_relocatable; then
        folder=$HOROVOD_WHEELS/$({
            printf '%s\n' "$HOROVOD_VERSION $MXNET_VERSION $OPENMPI_VERSION $(uname -m) ${CFLAGS:-} ${CXXFLAGS:-} ${LDFLAGS:-}"
            "$VENV/bin/python" -VV
            "${CXX:-c++}" --version
            cat "$SETUP_DIR"/*.cmake "$SETUP_DIR/requirements/"{build,training}.txt
        } | sha256sum | cut -c 1-16)
    else
        rm -rf "$folder"
    fi
    say "$folder"
}

build_horovod() {
    local folder wheel
    build_flags
    rm -rf "$VENV"/lib/python3*/site-packages/horovod
    pip_install --no-deps -r "$SETUP_DIR/requirements/build.txt"
    folder=$(wheel_folder)
    wheel=$(compgen -G "$folder/horovod-*.whl" || true)
    if [ -z "$wheel" ]; then
        "$VENV/bin/python" -I -m pip wheel --no-deps --no-cache-dir --no-binary horovod --no-build-isolation \
            --wheel-dir "$folder.$$" "horovod==$HOROVOD_VERSION"
        mkdir -p "$folder"
        mv "$folder.$$"/*.whl "$folder"    # only a complete wheel has its name there
        rmdir "$folder.$$"
        wheel=$(compgen -G "$folder/horovod-*.whl")
    fi
    pip_install --no-deps --no-index --force-reinstall "$wheel"
    rm -rf "$VENV/horovod-wheel"
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
