#!/usr/bin/env bash
# Installs what is missing and runs the tests of both trainers:
#   bash tests/run.sh             9 to 19 minutes on 2 cores
#   bash tests/run.sh --slow      the long ones only, 16 to 35 minutes: several hosts, random kills, collapse of the demo,
#                                 the oldest PyTorch
#   bash tests/run.sh --all       both
# Prints the ten slowest tests of each group, and the seconds of all groups at the end.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=../setup-utils/help.sh
. "$here/setup-utils/help.sh"
help_if_asked "$here/tests/run.sh" '' '' "$@"
case ${1:-} in
    '') last=commands marks='not slow' paths=(tests/commands) ;;
    --slow) last=slow marks=slow paths=(tests/commands tests/unit tests/mx) ;;
    --all) last='commands and slow' marks='commands or slow' paths=(tests/commands tests/unit tests/mx) ;;
    *) printf 'usage: bash tests/run.sh [--slow | --all]\n' >&2; exit 2 ;;
esac
bash "$here/setup-utils/install.sh" --dev
bash "$here/setup-utils/install-torch.sh" --dev
# shellcheck source=../setup-utils/env.sh
. "$here/setup-utils/env.sh"
cd "$here"
export OMP_NUM_THREADS=1
# The groups have more ranks than most machines have GPUs, and their reference numbers are those of the CPU.
export CUDA_VISIBLE_DEVICES=

# group NAME LIMIT COMMAND...: stops a group that hangs after LIMIT seconds, with an error. Limits are several times what a
# slow, busy machine takes.
times=()
group() {
    local name=$1 limit=$2 start=$SECONDS code=0
    shift 2
    printf '\n== %s: %s\n' "$name" "$*"
    timeout --kill-after=10 "$limit" "$@" || code=$?
    times+=("$(printf '%5d s  %s' $((SECONDS - start)) "$name")")
    [ "$code" -ne 124 ] || printf 'error: group %s did not finish within %s s\n' "$name" "$limit" >&2
    [ "$code" -eq 0 ] || exit "$code"
}

# What ranks save goes to memory where there is room: they would wait for the disk one after the other.
memory=$(mktemp -d)
if [ "$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 2000000 ] 2>/dev/null; then
    rmdir "$memory"
    memory=$(mktemp -d /dev/shm/partial_fc.XXXXXX)
fi
trap 'rm -rf "$memory"' EXIT
ranks() { PYTEST_DEBUG_TEMPROOT=$memory group "$@"; }

pytest=(-m pytest -q --durations=10 --durations-min=1)
fast=("${pytest[@]}" -m 'not slow')
torch=$here/.venv-torch/bin/python
if [ "${1:-}" != --slow ]; then
    group 'one process' 1200 python "${fast[@]}" -n 3 --dist worksteal tests/unit tests/mx tests/parallel/mx
    ranks '2 ranks, MPI' 600 mpirun -q -np 2 python "${fast[@]}" tests/parallel/mx
    # With three, shares of classes and images are uneven or empty, and what is saved goes to other ranks.
    ranks '3 ranks, MPI' 600 mpirun -q -np 3 python "${fast[@]}" \
        tests/parallel/mx/test_{checkpoint,collectives,layer_oracle,module,pretrained,training,verifying}.py
    # Gloo transports the same bytes, and its cycles keep both cores busy: only what calls each collective.
    ranks '2 ranks, Gloo' 600 horovodrun --gloo -np 2 -H localhost:2 python "${fast[@]}" \
        tests/parallel/mx/test_{collectives,fp16,module}.py
    group 'PyTorch, one process' 1200 "$torch" "${fast[@]}" -n 2 --dist worksteal tests/torch tests/parallel/torch
    # The commands below train on two.
    ranks 'PyTorch, 3 processes' 900 "$torch" -m torch.distributed.run --standalone --nproc_per_node=3 \
        "${fast[@]}" tests/parallel/torch
fi
if [ -n "${1:-}" ]; then
    ranks 'PyTorch, slow, 2 processes' 900 "$torch" -m torch.distributed.run --standalone --nproc_per_node=2 \
        "${pytest[@]}" -m slow tests/parallel/torch
    group 'PyTorch, slow, one process' 900 "$torch" "${pytest[@]}" -m slow -n 2 --dist worksteal tests/torch
fi
# Beside other tests, ranks would take longer than these limits allow: horovodrun kills them 5 s after a SIGTERM.
group "$last, timed" 2400 python "${pytest[@]}" -m "timed and ($marks)" tests/commands
# Many of these wait: for a launcher, for the package index.
group "$last" 3600 python "${pytest[@]}" -m "not timed and ($marks)" -n 4 --dist worksteal "${paths[@]}"
printf '\n== seconds by group\n'
printf '%s\n' "${times[@]}"
