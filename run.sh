#!/usr/bin/env bash
# Trains under Open MPI:  bash run.sh [--dataset NAME] [--loss NAME] [--network NAME] [name=value ...]
#
#   NP=4 bash run.sh                                    ranks (2, or 1 where there is one GPU)
#   HOSTFILE=hosts/two_machines NP=16 bash run.sh       machines (this one)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/setup-utils/install.sh"
# shellcheck source=setup-utils/env.sh
. "$here/setup-utils/env.sh"

if [ -z "${NP:-}" ]; then
    NP=2
    # With a CUDA wheel a rank needs a GPU of its own.
    if [ "$PFC_WHEEL" != mxnet ] && [ "$(nvidia-smi -L | wc -l)" -lt 2 ]; then NP=1; fi
fi
HOSTFILE=${HOSTFILE:-$here/hosts/localhost}

# A rank under mpirun writes to a pipe: only this script can see whether a person is watching.
if [ -t 2 ]; then
    export PARTIAL_FC_TERMINAL=1
    COLUMNS=$(tput cols 2>/dev/null || echo 100)
    export COLUMNS
fi

# What the ranks of other hosts must be told: the user's own settings of the libraries, and how to show progress.
forward=()
while IFS= read -r name; do
    forward+=(-x "$name")
done < <(compgen -e | grep -E '^(PATH|COLUMNS|PARTIAL_FC_TERMINAL|(OMP|MXNET|HOROVOD|NCCL|UCX)_.*)$')

# The full path of mpirun tells the other hosts where theirs is. -bind-to none: a rank uses several threads, and MPI
# would bind it to one core. -q: without it mpirun adds a page of its own to a rank's one-sentence error.
exec "$(command -v mpirun)" -np "$NP" -hostfile "$HOSTFILE" -bind-to none -map-by slot -q "${forward[@]}" \
    bash "$here/config.sh" "$@"
