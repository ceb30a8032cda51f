#!/usr/bin/env bash
# Trains with PyTorch on this host:  bash pytorch/run.sh [--dataset NAME] [--loss NAME] [--network NAME] [name=value ...]
#
#   NP=4 bash pytorch/run.sh             number of processes (default: one for each GPU; 2 without a GPU)
#   MAX_RESTARTS=3 bash pytorch/run.sh   torchrun restarts all processes after a failure, from the newest checkpoint (0)
#   OMP_NUM_THREADS=4                    threads of a process (cores of the host / its processes)
#
# For several hosts see docs/hosts.md.
#
# TERM and USR1 save a checkpoint and stop. Exit codes: 0: finished; 2: refused before training started; 75: saved and
# stopped by a signal; 130: Ctrl-C; others: failed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=../setup-utils/help.sh
. "$root/setup-utils/help.sh"
help_if_asked "$root/pytorch/run.sh" "$root/.venv-torch/bin/python" "$root/train.py" "$@"
bash "$root/setup-utils/install-torch.sh"
python=$root/.venv-torch/bin/python
stop_signal=TERM    # torchrun sends it to its processes, and does not restart them
# shellcheck source=../setup-utils/job.sh
. "$root/setup-utils/job.sh"

# Seconds from the stop signal until torchrun kills a process, by default 30: saving may take a minute.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-75}
cd_root() { cd "$root"; }
NP=${NP:-$(cd_root; PYTHONPATH=setup-utils "$python" -c 'import cuda; print(len(cuda.probe_gpus()[0]) or 2)')}
# torchrun would set one thread.
OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(cd_root; "$python" -c \
    'import sys; from partial_fc.distributed.env import cores_of_rank; print(cores_of_rank(int(sys.argv[1])))' "$NP")}
export OMP_NUM_THREADS

main() {
    check_settings "$python" "$root/train.py" "$@"
    run_job "$python" "$root/pytorch/launch.py" --nproc_per_node="$NP" \
        --max-restarts="${MAX_RESTARTS:-0}" "$root/train.py" "$@"
    [ -z "$stopped" ] || [ "$code" -ne 143 ] || code=75    # stopped before torchrun had started a process
    [ -z "$interrupted" ] || code=130
    exit "$code"
}
main "$@"
