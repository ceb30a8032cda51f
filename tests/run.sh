#!/usr/bin/env bash
# Installs what is missing and runs every test:  bash tests/run.sh
# Fast ones first, then the same parallel tests under 2 and 3 ranks and both launchers, then the commands themselves.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$here/setup-utils/install.sh" --dev
# shellcheck source=../setup-utils/env.sh
. "$here/setup-utils/env.sh"
cd "$here"
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
# The groups have more ranks than most machines have GPUs, and their figures are those of the CPU.
export CUDA_VISIBLE_DEVICES=

# A group that hangs ends here, loudly, after the given seconds.
group() {
    local seconds=$1
    shift
    printf '\n== %s\n' "$*"
    timeout --kill-after=10 "$seconds" "$@" || {
        local code=$?
        [ "$code" -ne 124 ] || printf 'error: not finished after %s s: %s\n' "$seconds" "$*" >&2
        exit "$code"
    }
}

pytest=(python -m pytest -q)
group 400 "${pytest[@]}" tests/unit tests/mx tests/parallel
group 180 mpirun -q -np 2 "${pytest[@]}" tests/parallel
group 180 mpirun -q -np 3 "${pytest[@]}" tests/parallel
group 300 horovodrun --gloo -np 2 -H localhost:2 "${pytest[@]}" tests/parallel

# The commands wait much, for processes to start and to end: two groups of them at once.
faults=(tests/commands/test_faults.py tests/commands/test_preemption.py tests/commands/test_restarts.py)
output=$(mktemp)
trap 'rm -f "$output"' EXIT
(group 600 "${pytest[@]}" "${faults[@]}") >"$output" 2>&1 &
failed=0
(group 600 "${pytest[@]}" tests/commands "${faults[@]/#/--ignore=}") || failed=$?
wait $! || failed=$?
cat "$output"
exit "$failed"
