#!/usr/bin/env bash
# record_code.sh FILE COMMAND...: runs the command, which gets SIGTERM too, and adds its exit code to the file
"${@:2}" &
trap 'kill -TERM $!' TERM
while kill -0 $! 2>/dev/null; do wait $!; done  # the signal interrupts it
wait $!
code=$?
echo "$code" >>"$1"
exit "$code"
