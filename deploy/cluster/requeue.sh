# Sourced by the batch scripts. On USR1, which Slurm sends before the time limit, the training saves and stops, and the
# job is requeued. The caller defines stop_training, whose argument is the process id of the command.
# shellcheck shell=bash

# Called by run_until_signal, whose variables it uses.
stop_once() {
    if [ -z "$job" ] || [ -n "$stopped" ]; then return 0; fi    # `return` alone would return another code in a trap
    stopped=1
    # Retries, because the first step of the job may not have begun.
    until stop_training "$job" || ! kill -0 "$job" 2>/dev/null; do sleep 1; done
}

# run_until_signal COMMAND...: runs the command, then exits with its code or requeues the job.
run_until_signal() {
    local code asked='' stopped='' job=''
    trap 'asked=1; stop_once' USR1    # before the command starts, because the signal may arrive at any time
    "$@" &
    job=$!
    if [ -n "$asked" ]; then stop_once; fi
    while :; do
        code=0
        wait "$job" || code=$?    # also returns when a signal arrives
        kill -0 "$job" 2>/dev/null || break
    done
    if [ "$code" -eq 0 ]; then exit 0; fi
    if [ -z "$asked" ] && [ "$code" -ne 75 ]; then exit "$code"; fi
    printf 'stopped by a signal: job %s goes back to the queue\n' "$SLURM_JOB_ID"
    scontrol requeue "$SLURM_JOB_ID"
}
