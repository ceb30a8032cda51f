#!/usr/bin/env bash
# Trains under Open MPI:  bash run.sh [--dataset NAME] [--loss NAME] [--network NAME] [name=value ...]
#
#   NP=4 bash run.sh                                    ranks (2, or 1 where there is one GPU)
#   HOSTS=hosta:8,hostb:8 bash run.sh                   on several hosts, with so many ranks each; or
#   HOSTFILE=hosts/two_machines bash run.sh             the same from a file. NP is then the sum of them.
#   MAX_RESTARTS=3 bash run.sh                          goes on from the newest checkpoint when it has failed (0 times)
#   MAX_RESTARTS=3 MIN_HOSTS=1 HOSTS=... bash run.sh    and does so on the hosts that are left, so many at least (all);
#                                                       for more it waits HOST_WAIT seconds (300)
#
# Hosts are looked at before training begins (setup-utils/check.sh); CHECK_HOSTS=0 leaves that out.
#   INTERFACE=eth0 or INTERFACE=10.0.0.0/24             by which hosts talk (the one that ssh takes)
#   BIND_TO=socket                                      none, core, socket, numa ... (none)
#   OMP_NUM_THREADS=4                                   threads of a rank (a host's cores divided by its ranks)
#   FORWARD="NAME NAME"                                 variables that other hosts are told besides OMP_*, MXNET_*,
#                                                       HOROVOD_*, NCCL_*, UCX_* and PARTIAL_FC_*
#
# TERM or USR1 ask for a checkpoint and an end. Exit codes: 0, 2: refused before training began, 1 and others: failed,
# 75: stopped as asked, and saved, 130: Ctrl-C.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/setup-utils/install.sh"
# shellcheck source=setup-utils/env.sh
. "$here/setup-utils/env.sh"
# shellcheck source=setup-utils/hosts.sh
. "$here/setup-utils/hosts.sh"

# A rank under mpirun writes to a pipe: only this script can see whether a person is watching.
if [ -t 2 ]; then
    export PARTIAL_FC_TERMINAL=1
    COLUMNS=$(tput cols 2>/dev/null || echo 100)
    export COLUMNS
fi

# Restarts go on with checkpoints of this run, not with those of an earlier one that are still in the output folder.
PARTIAL_FC_RUN=${PARTIAL_FC_RUN:-$(uname -n)-$$-$(date +%s)}
export PARTIAL_FC_RUN

job='' asked='' interrupted='' woken=''
# shellcheck disable=SC2317  # traps call it
ask_to_stop() {
    asked=1 woken=1
    [ -n "$job" ] || exit 75
    kill -USR1 "$job" 2>/dev/null || true    # mpirun hands USR1 to all ranks; after TERM it would kill them
}
# shellcheck disable=SC2317
interrupt() {
    interrupted=1 woken=1
    [ -n "$job" ] || exit 130
    local fields
    read -r -a fields </proc/$$/stat
    # A terminal whose foreground group (7) is this process's group (4) has interrupted mpirun as well.
    [ "${fields[7]}" -eq "${fields[4]}" ] || kill -INT "$job" 2>/dev/null || true
}
trap ask_to_stop TERM USR1

# What the ranks of other hosts must be told: the user's own settings of the libraries, and how to show progress.
forwarded() {
    compgen -e | grep -E '^(COLUMNS|(PARTIAL_FC|OMP|MXNET|HOROVOD|NCCL|UCX)_.*)$'
    tr -s ' ' '\n' <<<"${FORWARD:-}" | grep . || true
}

# as_typed WORDS: one line that a shell reads as these words.
as_typed() {
    local word
    for word in "$@"; do
        if [[ $word =~ ^[[:alnum:]_./:,=@%+-]+$ ]]; then printf '%s ' "$word"; else printf '%q ' "$word"; fi
    done
}

# The full path of mpirun tells the other hosts where theirs is. -bind-to none: a rank uses several threads, and MPI
# would bind it to one core. -q: without it mpirun adds a page of its own to a rank's one-sentence error.
# In the background, because bash hears no signal while it waits for a command in front.
train() {
    local line=("$(command -v mpirun)" -np "$NP" "${hosts[@]}" -bind-to "$binding" -map-by slot -q) name
    if [ -n "$networks" ]; then
        line+=(-mca btl_tcp_if_include "$networks" -mca oob_tcp_if_include "$networks")
    fi
    while IFS= read -r name; do
        line+=(-x "$name")
    done < <(forwarded)
    line+=(bash "$PFC_ROOT/config.sh" "$@")
    printf 'run.sh: %s\n' "$(as_typed "${line[@]}")" >&2
    "${line[@]}" <&0 &
    job=$!
    trap interrupt INT
    while :; do
        woken='' code=0
        wait "$job" || code=$?
        [ -n "$woken" ] || break
    done
}

binding=${BIND_TO:-none}
case $binding in
    none) ;;
    hwthread | core | l1cache | l2cache | l3cache | socket | numa | board)
        binding=$binding:overload-allowed ;;    # else mpirun ends, without a word under -q, where ranks outnumber them
    *)
        printf 'run.sh: BIND_TO=%s is nothing that a rank can be bound to: none, core, socket, numa ...\n' "$binding" >&2
        exit 2 ;;
esac

# In a function, which bash has read to its end before it begins: who edits this file disturbs no training.
main() {
    choose_hosts "$@"
    for ((restart = 1; ; restart++)); do
        train "$@"
        [ -z "$interrupted" ] || code=130
        if [ "$code" -gt 128 ] && [ "$code" -le 192 ] && [ "$code" -ne 130 ]; then
            printf 'run.sh: a rank was ended by signal %s\n' $((code - 128)) >&2
        fi
        case $code in 0 | 2 | 75 | 130) break ;; esac
        if [ -n "$asked" ] || [ "$restart" -gt "${MAX_RESTARTS:-0}" ]; then break; fi
        job=''
        choose_hosts_again "$@" || break
        printf 'run.sh: exit code %s, restart %s of %s\n' "$code" "$restart" "$MAX_RESTARTS" >&2
    done
    [ -z "$interrupted" ] || code=130
    exit "$code"
}
main "$@"
