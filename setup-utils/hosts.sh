# Sourced by run.sh: which hosts take part, and by which networks they talk.
# choose_hosts sets:  hosts     mpirun's words for them
#                     networks  interfaces or subnets, with commas between; empty where mpirun may take any
#                     NP        ranks, where the user has not said
# shellcheck shell=bash
# shellcheck disable=SC2034  # run.sh uses what is set here

# look_at_hosts WORDS: asks each host that the user has named; sets PFC_NETWORKS and PFC_USABLE, name:slots of the good.
look_at_hosts() {
    local found code=0
    found=$(mktemp)
    "$VIRTUAL_ENV/bin/python" "$PFC_ROOT/setup-utils/check_hosts.py" "${named[@]}" --for-run "$found" -- "$@" || code=$?
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
    if [[ $networks =~ ^[[:alpha:]] ]] && ! grep -q "^ *$networks:" /proc/net/dev; then
        printf 'run.sh: this host has no interface %s (INTERFACE), but: %s\n' "$networks" \
            "$(sed -n 's/^ *\([^ :]*\):.*/\1/p' /proc/net/dev | xargs)" >&2
        exit 2
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
    PFC_NETWORKS='' PFC_USABLE=''
    if [ "${CHECK_HOSTS:-1}" != 0 ]; then
        look_at_hosts "$@" || exit 2
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
    local end=$((SECONDS + ${HOST_WAIT:-300})) left
    until look_at_hosts "$@"; do
        read -r -a left <<<"${PFC_USABLE//,/ }"
        if [ -n "${MIN_HOSTS:-}" ] && [ "${#left[@]}" -gt 0 ] && [ "${#left[@]}" -ge "$MIN_HOSTS" ]; then
            NP=$(slots_of "$PFC_USABLE")
            if [ "$NP" -gt "$all_ranks" ]; then NP=$all_ranks; fi
            hosts=(-host "$PFC_USABLE")
            printf 'run.sh: goes on with %s ranks on %s\n' "$NP" "$PFC_USABLE" >&2
            return 0
        fi
        if [ "$SECONDS" -ge "$end" ]; then
            printf 'run.sh: no restart, as not all hosts are there (MIN_HOSTS=1 goes on with those that are)\n' >&2
            return 1
        fi
        printf 'run.sh: looks again in 5 s, and gives up after %s s (HOST_WAIT)\n' $((end - SECONDS)) >&2
        sleep 5 &
        wait $!    # a signal ends this, but not a sleep in front
    done
    hosts=("${all_hosts[@]}") NP=$all_ranks
}

# With a CUDA wheel a rank needs a GPU of its own.
ranks_of_this_host() {
    if [ "$PFC_WHEEL" != mxnet ] && [ "$(nvidia-smi -L | wc -l)" -lt 2 ]; then printf 1; else printf 2; fi
}
