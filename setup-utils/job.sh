# Sourced by run.sh and pytorch/run.sh: runs a launcher and forwards signals to it. The caller sets stop_signal, on which
# the launcher asks all ranks to save and stop.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # the caller sets stop_signal and reads interrupted, stopped and code

# A rank under mpirun writes to a pipe: only this script knows whether the output is a terminal.
if [ -t 2 ]; then
    export PARTIAL_FC_TERMINAL=1
    COLUMNS=$(tput cols 2>/dev/null || echo 100)
    export COLUMNS
fi

# Restarts continue from checkpoints of this run, not from those of an earlier run in the same output folder.
PARTIAL_FC_RUN=${PARTIAL_FC_RUN:-$(uname -n)-$$-$(date +%s)}
export PARTIAL_FC_RUN

job='' stopped='' interrupted='' signaled=''
# shellcheck disable=SC2317  # called by traps
request_stop() {
    stopped=1 signaled=1
    [ -n "$job" ] || exit 75
    kill "-$stop_signal" "$job" 2>/dev/null || true
}
# shellcheck disable=SC2317
interrupt() {
    interrupted=1 signaled=1
    [ -n "$job" ] || exit 130
    local fields
    read -r -a fields </proc/$$/stat
    # If the terminal's foreground group (field 7) is this process's group (4), the launcher got the signal as well.
    [ "${fields[7]}" -eq "${fields[4]}" ] || kill -INT "$job" 2>/dev/null || true
}
trap request_stop TERM USR1

# check_settings PYTHON PROGRAM ARGUMENTS...: if the program refuses its arguments, ends with one line and its exit code,
# before a launcher has started anything.
check_settings() {
    local python=$1 program=$2
    shift 2
    "$python" "$program" --print-config "$@" >/dev/null || exit
}

# quoted ARGUMENTS: one line that a shell parses to these arguments.
quoted() {
    local argument
    for argument in "$@"; do
        if [[ $argument =~ ^[[:alnum:]_./:,=@%+-]+$ ]]; then printf '%s ' "$argument"; else printf '%q ' "$argument"; fi
    done
}

# run_job COMMAND...: prints the command, runs it, and sets `code` to its exit code. In the background, because bash
# handles no signal while it waits for a command in the foreground.
run_job() {
    printf 'run.sh: %s\n' "$(quoted "$@")" >&2
    "$@" <&0 &
    job=$!
    trap interrupt INT
    while :; do
        signaled='' code=0
        wait "$job" || code=$?
        [ -n "$signaled" ] || break
    done
}
