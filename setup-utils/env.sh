# Sourced by run.sh, config.sh and tests/run.sh: sets the environment variables that every rank needs, unless the user
# has set them. It finds the clone by its own path, so it works from any folder and through ssh.
# shellcheck shell=bash

PFC_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
export PFC_ROOT
if [ ! -x "$PFC_ROOT/.venv/bin/python" ] || [ ! -f "$PFC_ROOT/.venv/.partial_fc/mpi.env" ]; then
    printf 'No finished .venv in %s: run  bash %s/setup-utils/install.sh\n' "$PFC_ROOT" "$PFC_ROOT" >&2
    # shellcheck disable=SC2317  # `exit` is reached if this file is run instead of sourced
    return 1 2>/dev/null || exit 1
fi
export VIRTUAL_ENV="$PFC_ROOT/.venv"
# shellcheck source=/dev/null
. "$VIRTUAL_ENV/.partial_fc/mpi.env"    # PFC_MPI_BIN, PFC_MPI_LIB: empty if MPI is the wheel
# shellcheck source=/dev/null
. "$VIRTUAL_ENV/.partial_fc/cuda.env"   # by cuda.py; PFC_CUDA_LIBRARY_PATH: folders that the linker does not search

# pfc_first FOLDER LIST: prints the colon-separated list with FOLDER first, and without duplicates of FOLDER.
pfc_first() {
    local rest=":${2:-}:"
    rest=${rest//":$1:"/:}
    rest=${rest#:}
    rest=${rest%:}
    printf '%s' "$1${rest:+:$rest}"
}

if [ -n "$PFC_MPI_BIN" ]; then
    if [ "$(command -v mpirun || true)" != "$PFC_MPI_BIN/mpirun" ]; then
        PATH=$(pfc_first "$PFC_MPI_BIN" "$PATH")
    fi
    export MPI4PY_LIBMPI="${MPI4PY_LIBMPI:-$PFC_MPI_LIB}"   # otherwise mpi4py loads the first libmpi that it finds
else
    # The wheel was built for another prefix. Without this, a program without mpirun aborts in hvd.init().
    export OPAL_PREFIX="$VIRTUAL_ENV"
fi
PATH=$(pfc_first "$VIRTUAL_ENV/bin" "$PATH")
export PATH
if [ -n "$PFC_CUDA_LIBRARY_PATH" ]; then
    LD_LIBRARY_PATH=$(pfc_first "$PFC_CUDA_LIBRARY_PATH" "${LD_LIBRARY_PATH:-}")
    export LD_LIBRARY_PATH
fi

# Open MPI refuses to run as root without both of these; containers often have no other user.
if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# Without ssh, as in small containers, mpirun fails even for ranks on its own host unless its ssh launcher is disabled.
# Launchers of batch systems stay enabled.
if ! command -v ssh >/dev/null 2>&1 && ! command -v rsh >/dev/null 2>&1; then
    export OMPI_MCA_plm="${OMPI_MCA_plm:-^rsh}"
fi
# The shell that mpirun starts on another host through ssh then sources this file.
export OMPI_MCA_orte_launch_agent="${OMPI_MCA_orte_launch_agent:-$PFC_ROOT/setup-utils/orted.sh}"
# How mpirun and its daemons notice a lost peer: seconds until the first probe, interval, and number of probes. By
# default this takes 8 minutes.
export OMPI_MCA_oob_tcp_keepalive_time="${OMPI_MCA_oob_tcp_keepalive_time:-10}"
export OMPI_MCA_oob_tcp_keepalive_intvl="${OMPI_MCA_oob_tcp_keepalive_intvl:-5}"
export OMPI_MCA_oob_tcp_keepalive_probes="${OMPI_MCA_oob_tcp_keepalive_probes:-4}"
# Allows more ranks than cores (NP=4 on a laptop).
export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-1}"
# mpirun binds each of two ranks to one core by default, which all of MXNet's threads would share.
export OMPI_MCA_hwloc_base_binding_policy="${OMPI_MCA_hwloc_base_binding_policy:-none}"
# A rank that waits in MPI spins by default. On a CPU the same core may have to compute another thread's backward pass:
# yielding makes a step of the demo on two cores a third shorter (benchmarks/step.py of commit 370c392). On GPU hosts
# spinning has the lower latency.
if [ "$PFC_WHEEL" = mxnet ]; then
    export OMPI_MCA_mpi_yield_when_idle="${OMPI_MCA_mpi_yield_when_idle:-1}"
fi
# The same transports as horovodrun's, so that both launchers behave the same.
export OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"
export OMPI_MCA_btl="${OMPI_MCA_btl:-^openib}"
# By default Open MPI sends long messages between hosts with "put", whose acknowledgments queue behind the rank's own
# message. Over a slow link, the two directions of an exchange would then run one after the other (docs/scale.md).
export OMPI_MCA_btl_tcp_flags="${OMPI_MCA_btl_tcp_flags:-send,inplace}"
# Most containers forbid process_vm_readv, so Open MPI would print "Read -1, expected ..., errno = 1" for each message.
if [ -e /.dockerenv ] || [ -e /run/.containerenv ]; then
    export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"
fi
# PMIx's shared-memory store prints warnings on some kernels and file systems; hash is as fast on a few hosts.
export PMIX_MCA_gds="${PMIX_MCA_gds:-hash}"
