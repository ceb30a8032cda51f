# Sourced by the batch scripts. On USR1, which Slurm sends before the time limit, the training saves and stops, and the
# job goes back to the queue. The caller defines stop_training, which is called with the process id of the command.
# shellcheck shell=bash

# run_until_signal COMMAND...: ends the script with the exit code of the command, or puts the job back into the queue.
run_until_signal() {
    local code asked='' stopped='' job
    trap 'asked=1' USR1
    "$@" &
    job=$!
    while :; do
        code=0
        wait "$job" || code=$?
        if [ -z "$asked" ] || [ -n "$stopped" ]; then break; fi
        stopped=1    # wait has ended because of the signal, and the training is still running
        stop_training "$job"
    done
    if [ -z "$asked" ] && [ "$code" -ne 75 ]; then exit "$code"; fi
    printf 'stopped by a signal: job %s goes back to the queue\n' "$SLURM_JOB_ID"
    scontrol requeue "$SLURM_JOB_ID"
}
