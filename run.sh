#!/usr/bin/env bash
# Trains under Open MPI:  bash run.sh [--dataset NAME] [--loss NAME] [--network NAME] [name=value ...]
#
#   NP=4 bash run.sh                                    number of ranks (default 2, or 1 with one GPU)
#   HOSTS=hosta:8,hostb:8 bash run.sh                   on several hosts, with their numbers of ranks; or
#   HOSTFILE=deploy/hosts/two_machines bash run.sh      the same from a file. NP defaults to the sum.
#   MAX_RESTARTS=3 bash run.sh                          restarts from the newest checkpoint after a failure (0)
#   MAX_RESTARTS=3 MIN_HOSTS=1 HOSTS=... bash run.sh    restarts on the remaining hosts if at least MIN_HOSTS (all) are
#                                                       left; waits up to HOST_WAIT seconds (300) for lost hosts
#
# Checks the hosts before training starts (setup-utils/check.sh); CHECK_HOSTS=0 skips that.
#   INTERFACE=eth0 or INTERFACE=10.0.0.0/24             network between the hosts (the one that ssh uses)
#   BIND_TO=socket                                      none, core, socket, numa ... (none)
#   OMP_NUM_THREADS=4                                   threads of a rank (cores of the host / its ranks)
#   FORWARD="NAME NAME"                                 variables to pass to other hosts besides OMP_*, MXNET_*,
#                                                       HOROVOD_*, NCCL_*, UCX_* and PARTIAL_FC_*
#
# TERM, USR1 and Ctrl-C save a checkpoint and stop; a second Ctrl-C stops at once. Exit codes: 0: finished; 2: refused
# before training started; 75: saved and stopped by a signal; 130: by Ctrl-C; others: failed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=setup-utils/help.sh
. "$here/setup-utils/help.sh"
help_if_asked "$here/run.sh" "$here/.venv/bin/python" "$here/train_memory.py" "$@"
bash "$here/setup-utils/install.sh"
# shellcheck source=setup-utils/env.sh
. "$here/setup-utils/env.sh"
# shellcheck source=setup-utils/hosts.sh
. "$here/setup-utils/hosts.sh"

stop_signal=USR1    # mpirun forwards it to all ranks; on TERM it would kill them
# shellcheck source=setup-utils/job.sh
. "$here/setup-utils/job.sh"

# Prints the names of the variables to pass to other hosts: the libraries' settings, and the progress bar's width.
forwarded() {
    compgen -e | grep -E '^(COLUMNS|(PARTIAL_FC|OMP|MXNET|HOROVOD|NCCL|UCX)_.*)$'
    tr -s ' ' '\n' <<<"${FORWARD:-}" | grep . || true
}

# The full path of mpirun tells the other hosts where Open MPI is installed. -bind-to none: a rank uses several threads,
# and mpirun would bind it to one core. -q: otherwise mpirun adds a page of messages to a rank's one-line error.
train() {
    local line=("$(command -v mpirun)" -np "$NP" "${hosts[@]}" -bind-to "$binding" -map-by slot -q) name
    if [ -n "$networks" ]; then
        line+=(-mca btl_tcp_if_include "$networks" -mca oob_tcp_if_include "$networks")
    fi
    while IFS= read -r name; do
        line+=(-x "$name")
    done < <(forwarded)
    run_job "${line[@]}" bash "$PFC_ROOT/config.sh" "$@"
}

binding=${BIND_TO:-none}
case $binding in
    none) ;;
    hwthread | core | l1cache | l2cache | l3cache | socket | numa | board)
        binding=$binding:overload-allowed ;;    # otherwise mpirun -q exits silently if ranks outnumber cores
    *)
        printf 'run.sh: BIND_TO=%s is not supported, expected none, hwthread, core, l1cache, l2cache, l3cache,' "$binding" >&2
        printf ' socket, numa or board\n' >&2
        exit 2 ;;
esac

# In a function, because bash parses a function completely before it runs: editing this file does not affect a training.
main() {
    if [ -z "$PARTIAL_FC_OUTPUT_LOST" ]; then
        printf 'run.sh: cannot create a file in TMPDIR=%s: Open MPI needs a folder there\n' "${TMPDIR:-/tmp}" >&2
        exit 2
    fi
    check_settings python "$PFC_ROOT/train_memory.py" "$@"
    choose_hosts "$@"
    for ((restart = 1; ; restart++)); do
        train "$@"
        [ -z "$interrupted" ] || code=130
        if [ "$code" -gt 128 ] && [ "$code" -le 192 ] && [ "$code" -ne 130 ]; then
            printf 'run.sh: mpirun or a rank was killed by signal %s\n' $((code - 128)) >&2
        fi
        case $code in 0 | 2 | 75 | 130) break ;; esac
        if [ -n "$stopped" ] || [ "$restart" -gt "${MAX_RESTARTS:-0}" ]; then break; fi
        job=''
        choose_hosts_again "$@" || break
        printf 'run.sh: exit code %s, restart %s of %s\n' "$code" "$restart" "$MAX_RESTARTS" >&2
    done
    [ -z "$interrupted" ] || code=130
    exit "$code"
}
main "$@"
