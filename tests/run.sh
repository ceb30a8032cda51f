#!/usr/bin/env bash
# Installs what is missing and runs the tests of both trainers, on two quiet cores:
#   bash tests/run.sh          in 5 minutes: one process, two ranks of MPI, short commands
#   bash tests/run.sh --ci     in 13 minutes, as .ci/run: three ranks, Gloo, faults, signals, restarts, other hosts, too
#   bash tests/run.sh --all    in 35 minutes: every launcher, page and example, the oldest PyTorch, kernels for all GPUs
# Prints the ten slowest tests of each group, and the seconds of all groups at the end.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=../setup-utils/help.sh
. "$here/setup-utils/help.sh"
help_if_asked "$here/tests/run.sh" '' '' "$@"
case ${1:-} in
    '') tier=short ;;
    --ci) tier=ci but=' and not thorough' ;;
    --all) tier=all but= ;;
    *) printf 'usage: bash tests/run.sh [--ci | --all]\n' >&2; exit 2 ;;
esac
bash "$here/setup-utils/install.sh" --dev
bash "$here/setup-utils/install-torch.sh" --dev
# shellcheck source=../setup-utils/env.sh
. "$here/setup-utils/env.sh"
cd "$here"
umask o-w    # the product refuses folders that all users can write to
export OMP_NUM_THREADS=1
# Containers often set it, and a thousand processes would compile the project's files again.
unset PYTHONDONTWRITEBYTECODE
# The groups have more ranks than most machines have GPUs, and their reference numbers are those of the CPU.
export CUDA_VISIBLE_DEVICES=

# What ranks save goes to memory where there is room: they would wait for the disk one after the other.
folder=$(mktemp -d)
if [ "$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 2000000 ] 2>/dev/null; then
    rmdir "$folder"
    folder=$(mktemp -d /dev/shm/partial_fc.XXXXXX)
fi
started=()
end() {
    local leader
    for leader in "${started[@]}"; do kill -- "-$leader" 2>/dev/null || true; done
    rm -rf "$folder"
}
trap end EXIT

# group NAME LIMIT COMMAND...: stops a group that hangs after LIMIT seconds, with an error. Limits are several times what a
# slow, busy machine takes.
group() {
    local name=$1 limit=$2 start=$SECONDS code=0
    shift 2
    printf '\n== %s: %s\n' "$name" "$*"
    timeout --foreground --kill-after=10 "$limit" "$@" || code=$?
    printf '%5d s  %s\n' $((SECONDS - start)) "$name" >>"$times"
    [ "$code" -ne 124 ] || printf 'error: group %s did not finish within %s s\n' "$name" "$limit" >&2
    [ "$code" -eq 0 ] || exit "$code"
}
ranks() { PYTEST_DEBUG_TEMPROOT=$folder group "$@"; }

# beside NAME LIMIT COMMAND...: a group at the lowest priority, beside those that follow. Linux may divide a processor by
# sessions, so it is one, of the lowest priority too until share_equally is called.
export -f group
export times=$folder/times session_nice=19
beside() {
    setsid nice -n 19 bash -c '{ printenv session_nice >/proc/self/autogroup; } 2>/dev/null; group "$@"' - "$@" \
        >"$folder/beside.${#started[@]}" 2>&1 &
    started+=($!)
}
# share_equally: the launchers of tests begin sessions of normal priority, for which the tests of a session of the lowest
# one wait longer than a command may take.
share_equally() {
    local leader
    session_nice=0
    for leader in "${started[@]}"; do { echo 0 >"/proc/$leader/autogroup"; } 2>/dev/null || true; done
}

pytest=(-m pytest -q --durations=10 --durations-min=1)
torch=$here/.venv-torch/bin/python
torchrun=("$torch" -m torch.distributed.run --standalone)
reading=tests/mx/test_reading_benchmark.py
# Compares images per second: beside others, its threads would wait for a processor.
[ "$tier" != all ] || group 'reading, alone' 900 python "${pytest[@]}" "$reading"
if [ "$tier" != short ]; then
    slow=("${pytest[@]}" -m "slow$but")
    # Mostly compiles kernels: waits for nobody and compares no times.
    beside 'PyTorch, slow, one process' 3600 "$torch" "${slow[@]}" tests/torch
fi
fast=("${pytest[@]}" -m 'not slow')
group 'one process' 1200 python "${fast[@]}" -n 3 --dist worksteal tests/unit tests/tools tests/mx tests/parallel/mx
ranks '2 ranks, MPI' 600 mpirun -q -np 2 python "${fast[@]}" tests/parallel/mx
if [ "$tier" != short ]; then
    # What mostly computes. Ranks that a launcher starts would be in sessions of normal priority: few here are.
    computing=(tests/commands/test_{demo_collapse,glyphs_experiment,models_script,package,recipe_training,speakers_example,torch_loops,words_experiment}.py)
    beside 'commands, computing' 3600 python "${pytest[@]}" -m "not timed$but" "${computing[@]}"
fi
group 'PyTorch, one process' 1200 "$torch" "${fast[@]}" -n 2 --dist worksteal tests/torch tests/parallel/torch
if [ "$tier" = short ]; then
    group commands 2400 python "${fast[@]}" -n 4 --dist worksteal tests/commands
else
    ranks 'collectives of a step' 300 env HOROVOD_TIMELINE=DYNAMIC mpirun -q -np 3 python "${fast[@]}" \
        tests/parallel/mx/test_collectives.py -k three_collectives
    # Ranks wait for each other, for launchers and for limits of time. This one does not, and compares no times.
    [ "$tier" != all ] || beside 'oldest PyTorch' 3600 bash tests/torch_versions.sh
    # With three, shares of classes and images are uneven or empty, and what is saved goes to other ranks.
    ranks '3 ranks, MPI' 600 mpirun -q -np 3 python "${fast[@]}" \
        tests/parallel/mx/test_{checkpoint,collectives,layer_oracle,module,pretrained,training,verifying}.py
    # Gloo transports the same bytes: only what calls each collective.
    ranks '2 ranks, Gloo' 600 env HOROVOD_TIMELINE=DYNAMIC horovodrun --gloo -np 2 -H localhost:2 python "${fast[@]}" \
        tests/parallel/mx/test_{collectives,fp16,module}.py
    # The commands below train on two.
    ranks 'PyTorch, 3 processes' 900 "${torchrun[@]}" --nproc_per_node=3 "${pytest[@]}" -m "not slow$but" \
        tests/parallel/torch
    ranks 'PyTorch, slow, 2 processes' 900 "${torchrun[@]}" --nproc_per_node=2 "${slow[@]}" tests/parallel/torch
    # Beside more, ranks would take longer than these limits allow: horovodrun kills them 5 s after a SIGTERM.
    group 'commands, timed' 2400 python "${pytest[@]}" -m "timed$but" -n 2 --dist worksteal tests/commands
    share_equally
    beside 'slow, one process' 3600 python "${slow[@]}" --ignore="$reading" tests/{unit,tools,mx}
    # With more beside these groups, refusals take longer than their tests allow.
    beside commands 3600 python "${pytest[@]}" -m "not timed$but" -n 3 --dist worksteal "${computing[@]/#/--ignore=}" \
        tests/commands
    for number in "${!started[@]}"; do
        code=0
        wait "${started[number]}" || code=$?
        cat "$folder/beside.$number"
        [ "$code" -eq 0 ] || exit "$code"
    done
fi
printf '\n== seconds by group\n'
cat "$times"
