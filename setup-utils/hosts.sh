# Sourced by run.sh: selects the hosts and the networks between them.
# choose_hosts sets:  hosts     arguments of mpirun
#                     networks  interfaces or subnets, separated by commas; empty to let mpirun use any
#                     NP        number of ranks, unless the user has set it
# shellcheck shell=bash
# shellcheck disable=SC2034  # used by run.sh

# check_hosts ARGUMENTS: checks the hosts for a training with these arguments. Sets PFC_NETWORKS, PFC_USABLE (name:slots
# of the hosts without problems) and PFC_RANKS (the sum of their slots).
check_hosts() {
    local result code=0
    PFC_NETWORKS='' PFC_USABLE='' PFC_RANKS=0
    result=$(mktemp)
    PYTHONPATH=$PFC_ROOT:$PFC_ROOT/tools "$VIRTUAL_ENV/bin/python" "$PFC_ROOT/setup-utils/check.py" "${named[@]}" \
        --for-run "$result" -- "$@" || code=$?
    # shellcheck source=/dev/null
    . "$result"
    rm -f "$result"
    return "$code"
}

# Exits with 2 if this host has no interface in the networks, with a better message than Open MPI's.
require_networks() {
    local error
    if [ -z "$networks" ]; then return 0; fi
    if ! error=$(cd "$PFC_ROOT" && "$VIRTUAL_ENV/bin/python" -m partial_fc.distributed.interfaces "$networks" 2>&1); then
        printf 'run.sh: %s%s\n' "${INTERFACE:+INTERFACE: }" "$error" >&2
        exit 2
    fi
}

# choose_hosts ARGUMENTS: exits with 2 if a host has problems.
choose_hosts() {
    if [ -z "${HOSTS:-}${HOSTFILE:-}" ]; then
        hosts=(-hostfile "$PFC_ROOT/deploy/hosts/localhost")
        NP=${NP:-$(ranks_of_this_host)}
        networks=${INTERFACE:-127.0.0.0/8}    # also for NCCL
        require_networks
        return
    fi
    networks=${INTERFACE:-}
    require_networks
    if [ -n "${HOSTS:-}" ]; then
        hosts=(-host "$HOSTS") named=(--hosts "$HOSTS")
    else
        hosts=(-hostfile "$HOSTFILE") named=(--hostfile "$HOSTFILE")
    fi
    if [ "${CHECK_HOSTS:-1}" != 0 ]; then
        local code=0
        check_hosts "$@" || code=$?
        case $code in 0) ;; 130) exit 130 ;; *) exit 2 ;; esac
        hosts=(-host "$PFC_USABLE")    # instead of the hostfile, which may be in horovodrun's format
        networks=${INTERFACE:-$PFC_NETWORKS}
        NP=${NP:-$PFC_RANKS}
    elif [ -z "${NP:-}" ]; then
        printf 'run.sh: CHECK_HOSTS=0 needs the number of ranks: NP=16\n' >&2
        exit 2
    fi
    all_hosts=("${hosts[@]}") all_ranks=$NP
}

# Before a restart: selects the same hosts, or the remaining ones if MIN_HOSTS permits. Waits for hosts that reboot, and
# fails if too few are available.
choose_hosts_again() {
    if [ -z "${HOSTS:-}${HOSTFILE:-}" ] || [ "${CHECK_HOSTS:-1}" = 0 ]; then return 0; fi
    local end=$((SECONDS + ${HOST_WAIT:-300})) code table=/dev/stdout    # only the first table is printed
    while :; do
        code=0
        check_hosts "$@" >>"$table" || code=$?
        if [ "$code" -eq 0 ]; then hosts=("${all_hosts[@]}") NP=$all_ranks; fi
        if [ "$code" -ne 1 ]; then return "$code"; fi
        if use_remaining_hosts; then return 0; fi
        if [ "$SECONDS" -ge "$end" ]; then
            printf 'run.sh: no restart: not all hosts are available (MIN_HOSTS=1 continues with the others)\n' >&2
            return 1
        fi
        if [ "$table" != /dev/null ]; then
            printf 'run.sh: waiting for these hosts (HOST_WAIT=%s s)\n' "${HOST_WAIT:-300}" >&2
        fi
        table=/dev/null
        sleep 5 >/dev/null 2>&1 &
        wait $!    # a signal interrupts wait, but not a sleep in the foreground
    done
}

# Selects the hosts without problems if there are at least MIN_HOSTS.
use_remaining_hosts() {
    local remaining
    read -r -a remaining <<<"${PFC_USABLE//,/ }"
    if [ -z "${MIN_HOSTS:-}" ] || [ "${#remaining[@]}" -eq 0 ] || [ "${#remaining[@]}" -lt "$MIN_HOSTS" ]; then return 1; fi
    hosts=(-host "$PFC_USABLE") NP=$((PFC_RANKS < all_ranks ? PFC_RANKS : all_ranks))
    printf 'run.sh: continuing with NP=%s on %s\n' "$NP" "$PFC_USABLE" >&2
}

# With a CUDA wheel every rank needs its own GPU.
ranks_of_this_host() {
    if [ "$PFC_WHEEL" != mxnet ] && [ "$(nvidia-smi -L | wc -l)" -lt 2 ]; then printf 1; else printf 2; fi
}
