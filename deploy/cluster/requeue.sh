# Sourced by the batch scripts. On USR1, which Slurm sends before the time limit, the training saves and stops, and the
# job goes back to the queue. The caller defines stop_training, which is called with the process id of the command.
# shellcheck shell=bash

# For run_until_signal alone, whose variables it uses.
stop_once() {
    if [ -z "$job" ] || [ -n "$stopped" ]; then return 0; fi    # in a trap, return alone has another code
    stopped=1
    # The first step of the job may not have begun.
    until stop_training "$job" || ! kill -0 "$job" 2>/dev/null; do sleep 1; done
}

# run_until_signal COMMAND...: ends the script with the exit code of the command, or puts the job back into the queue.
run_until_signal() {
    local code asked='' stopped='' job=''
    trap 'asked=1; stop_once' USR1    # not after the wait: the signal may arrive before it
    "$@" &
    job=$!
    if [ -n "$asked" ]; then stop_once; fi
    while :; do
        code=0
        wait "$job" || code=$?    # also ends when a signal arrives
        kill -0 "$job" 2>/dev/null || break
    done
    if [ "$code" -eq 0 ]; then exit 0; fi
    if [ -z "$asked" ] && [ "$code" -ne 75 ]; then exit "$code"; fi
    printf 'stopped by a signal: job %s goes back to the queue\n' "$SLURM_JOB_ID"
    scontrol requeue "$SLURM_JOB_ID"
}
