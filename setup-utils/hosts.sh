# Sourced by run.sh: which hosts take part, and by which networks they talk.
# choose_hosts sets:  hosts     mpirun's words for them
#                     networks  interfaces or subnets, with commas between; empty where mpirun may take any
#                     NP        ranks, where the user has not said
# shellcheck shell=bash
# shellcheck disable=SC2034  # run.sh uses what is set here

# look_at_hosts WORDS: asks each host that the user has named; sets PFC_NETWORKS and PFC_USABLE, name:slots of the good.
look_at_hosts() {
    local found code=0
    PFC_NETWORKS='' PFC_USABLE=''
    found=$(mktemp)
    PYTHONPATH=$PFC_ROOT "$VIRTUAL_ENV/bin/python" "$PFC_ROOT/setup-utils/check.py" "${named[@]}" --for-run "$found" -- "$@" || code=$?
    # shellcheck source=/dev/null
    . "$found"
    rm -f "$found"
    return "$code"
}

# slots_of LIST: the ranks that fit on a:2,b:2.
slots_of() {
    local total=0 host
    for host in ${1//,/ }; do total=$((total + ${host##*:})); done
    printf '%s' "$total"
}

# Refuses to begin, with exit code 2, where a host is not as it must be.
choose_hosts() {
    networks=${INTERFACE:-}
    if [ -n "$networks" ]; then
        local error
        if ! error=$(PYTHONPATH=$PFC_ROOT "$VIRTUAL_ENV/bin/python" -m partial_fc.distributed.interfaces "$networks" 2>&1); then
            printf 'run.sh: INTERFACE: %s\n' "$error" >&2
            exit 2
        fi
    fi
    if [ -z "${HOSTS:-}${HOSTFILE:-}" ]; then
        hosts=(-hostfile "$PFC_ROOT/hosts/localhost")
        NP=${NP:-$(ranks_of_this_host)}
        return
    fi
    if [ -n "${HOSTS:-}" ]; then
        hosts=(-host "$HOSTS") named=(--hosts "$HOSTS")
    else
        hosts=(-hostfile "$HOSTFILE") named=(--hostfile "$HOSTFILE")
    fi
    if [ "${CHECK_HOSTS:-1}" != 0 ]; then
        local code=0
        look_at_hosts "$@" || code=$?
        case $code in 0) ;; 130) exit 130 ;; *) exit 2 ;; esac
        hosts=(-host "$PFC_USABLE")    # horovodrun's hostfiles have another form, which is taken too
        networks=${INTERFACE:-$PFC_NETWORKS}
        NP=${NP:-$(slots_of "$PFC_USABLE")}
    elif [ -z "${NP:-}" ]; then
        printf 'run.sh: without a look at the hosts (CHECK_HOSTS=0) it needs to be told how many ranks: NP=16\n' >&2
        exit 2
    fi
    all_hosts=("${hosts[@]}") all_ranks=$NP
}

# Before a restart: the same hosts, or those that are left if the user allows it. It waits for a host that starts anew.
# Fails where there are too few.
choose_hosts_again() {
    if [ -z "${HOSTS:-}${HOSTFILE:-}" ] || [ "${CHECK_HOSTS:-1}" = 0 ]; then return 0; fi
    local end=$((SECONDS + ${HOST_WAIT:-300})) table code told='' taken=''
    table=$(mktemp)
    while :; do
        code=0
        look_at_hosts "$@" >"$table" || code=$?
        if [ -z "$told" ] || [ "$code" -ne 1 ]; then cat "$table"; fi
        if [ "$code" -ne 1 ] || take_those_left; then break; fi
        if [ "$SECONDS" -ge "$end" ]; then
            printf 'run.sh: no restart, as not all hosts are there (MIN_HOSTS=1 goes on with those that are)\n' >&2
            break
        fi
        if [ -z "$told" ]; then printf 'run.sh: waits for these hosts (HOST_WAIT=%s s)\n' "${HOST_WAIT:-300}" >&2; fi
        told=1
        sleep 5 >/dev/null 2>&1 &
        wait $!    # a signal ends this, but not a sleep in front
    done
    rm -f "$table"
    if [ "$code" -eq 0 ]; then hosts=("${all_hosts[@]}") NP=$all_ranks; fi
    [ "$code" -eq 0 ] || [ -n "$taken" ]
}

# take_those_left: goes on with the hosts that are good, where MIN_HOSTS allows it.
take_those_left() {
    local left ranks
    read -r -a left <<<"${PFC_USABLE//,/ }"
    if [ -z "${MIN_HOSTS:-}" ] || [ "${#left[@]}" -eq 0 ] || [ "${#left[@]}" -lt "$MIN_HOSTS" ]; then return 1; fi
    ranks=$(slots_of "$PFC_USABLE")
    hosts=(-host "$PFC_USABLE") NP=$((ranks < all_ranks ? ranks : all_ranks)) taken=1
    printf 'run.sh: goes on with NP=%s on %s\n' "$NP" "$PFC_USABLE" >&2
}

# With a CUDA wheel a rank needs a GPU of its own.
ranks_of_this_host() {
    if [ "$PFC_WHEEL" != mxnet ] && [ "$(nvidia-smi -L | wc -l)" -lt 2 ]; then printf 1; else printf 2; fi
}
