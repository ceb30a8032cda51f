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
# Each process takes the next test: those of one process at a time compute, the commands mostly wait for others to start
# and to end.
group 400 "${pytest[@]}" -n 2 --dist worksteal tests/unit tests/mx tests/parallel
group 180 mpirun -q -np 2 "${pytest[@]}" tests/parallel
group 180 mpirun -q -np 3 "${pytest[@]}" tests/parallel
# Gloo is another way for the same bytes; each of its cycles takes a millisecond of both cores, so the tests that only
# compute again and again are left to MPI.
group 300 horovodrun --gloo -np 2 -H localhost:2 "${pytest[@]}" tests/parallel --ignore=tests/parallel/test_textbook.py
group 900 "${pytest[@]}" -n 3 --dist worksteal tests/commands
