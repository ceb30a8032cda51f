#!/usr/bin/env bash
# Trains with PyTorch on this host, as `partial-fc train` does, after installing .venv-torch:
#   bash pytorch/run.sh [--dataset NAME] [--loss NAME] [--network NAME] [name=value ...]
#
#   NP=4 bash pytorch/run.sh             number of processes (default: one for each GPU; 2 without a GPU)
#   MAX_RESTARTS=3 bash pytorch/run.sh   torchrun restarts all processes after a failure, from the newest checkpoint (0)
#   OMP_NUM_THREADS=4                    threads of a process (cores of the host / its processes)
#
# For several hosts see docs/hosts.md.
#
# TERM, USR1 and Ctrl-C save a checkpoint and stop; a second Ctrl-C stops at once. Exit codes: 0: finished; 2: refused
# before training started; 75: saved and stopped by a signal; 130: by Ctrl-C; others: failed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=../setup-utils/help.sh
. "$root/setup-utils/help.sh"
help_if_asked "$root/pytorch/run.sh" "$root/.venv-torch/bin/python" "$root/train.py" "$@"
bash "$root/setup-utils/install-torch.sh"
exec "$root/.venv-torch/bin/python" "$root/train.py" --nproc "${NP:-auto}" --max-restarts "${MAX_RESTARTS:-0}" "$@"
