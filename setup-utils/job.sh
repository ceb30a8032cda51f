# Sourced by run.sh: runs a launcher and forwards signals to it. The caller sets stop_signal, the
# signal with which the launcher asks all ranks to save and stop.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # the caller sets stop_signal and reads interrupted, stopped and code

# Ranks under mpirun write to a pipe, so this script tells them whether the output is a terminal.
if [ -t 2 ]; then
    export PARTIAL_FC_TERMINAL=1
    COLUMNS=$(tput cols 2>/dev/null || echo 100)
    export COLUMNS
fi

# Restarts resume from checkpoints of this run, not of an earlier run in the same output folder.
PARTIAL_FC_RUN=${PARTIAL_FC_RUN:-$(uname -n)-$$-$(date +%s)}
export PARTIAL_FC_RUN

# relay: copies its input to its output. If that fails (`| head -3`, a full disk), it records why and keeps reading,
# because mpirun ends the job when it cannot write. It ignores signals, which are meant for the other processes.
relay() {
    trap '' HUP INT TERM USR1 PIPE
    cat 2>>"${PARTIAL_FC_OUTPUT_LOST:-/dev/null}" || cat >/dev/null
    rm -f "$PARTIAL_FC_OUTPUT_LOST"
}

# The file for the recorded reason, which rank 0 writes to its log, see partial_fc/utils/streams.py.
PARTIAL_FC_OUTPUT_LOST=$(mktemp 2>/dev/null || true)    # empty if TMPDIR cannot be used
export PARTIAL_FC_OUTPUT_LOST
# A closed descriptor would be reused for the next opened file. So /dev/null takes its place, for reading only: writing
# still fails.
for descriptor in 0 1 2; do
    [ -e "/dev/fd/$descriptor" ] || eval "exec $descriptor</dev/null"
done
relays=()
if [ /dev/fd/1 -ef /dev/fd/2 ]; then
    exec > >(relay) 2>&1    # one relay keeps the order of the lines
else
    exec 2> >(relay >&2)
    relays+=($!)
    exec > >(relay)
fi
relays+=($!)

# Waits up to 5 s for the relays to write the last lines: a leftover process may keep their input open.
# shellcheck disable=SC2317
drain() {
    local end=$((SECONDS + 5))
    exec >&- 2>&-
    while [ "$SECONDS" -lt "$end" ] && kill -0 "${relays[@]}"; do sleep 0.05; done
}
trap drain EXIT

job='' stopped='' interrupted='' signaled=''
# shellcheck disable=SC2317  # called by traps
request_stop() {
    stopped=1 signaled=1
    [ -n "$job" ] || exit 75
    kill "-$stop_signal" "$job" 2>/dev/null || true
}
# shellcheck disable=SC2317
interrupt() {
    local number=$stop_signal
    [ -z "$interrupted$stopped" ] || number=INT    # the second one: the launcher ends all ranks at once
    interrupted=1 signaled=1
    [ -n "$job" ] || exit 130
    kill "-$number" "$job" 2>/dev/null || true
}
trap request_stop TERM USR1

# check_settings PYTHON PROGRAM ARGUMENTS...: exits with the program's one-line error and exit code if it refuses its
# arguments, before a launcher starts anything.
check_settings() {
    local python=$1 program=$2
    shift 2
    "$python" "$program" --print-config "$@" >/dev/null || exit
}

# quoted ARGUMENTS...: prints the arguments as one line that a shell would parse to the same arguments.
quoted() {
    local argument
    for argument in "$@"; do
        if [[ $argument =~ ^[[:alnum:]_./:,=@%+-]+$ ]]; then printf '%s ' "$argument"; else printf '%q ' "$argument"; fi
    done
}

# run_job COMMAND...: prints the command, runs it, and sets `code` to its exit code. The command runs in the background,
# because bash handles no signals while it waits for a command in the foreground.
run_job() {
    printf 'run.sh: %s\n' "$(quoted "$@")" >&2
    set -m    # another process group: Ctrl-C must not reach a launcher, which would end ranks before they save
    "$@" <&0 &
    job=$!
    set +m
    trap interrupt INT
    while :; do
        signaled='' code=0
        wait "$job" || code=$?
        [ -n "$signaled" ] || break
    done
}
