#!/usr/bin/env bash
# The command of each rank:  horovodrun -np 8 -H localhost:8 bash config.sh [--dataset ... name=value ...]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=setup-utils/env.sh
. "$here/setup-utils/env.sh"
[ -n "${HOROVOD_GLOO_RENDEZVOUS_PORT:-}" ] || exec python -u "$here/train_memory.py" "$@"

# `horovodrun --gloo` sends SIGTERM to the children of a rank's shell, and kills the shell when they have ended. The shell
# may be this process (bash replaces itself by its last command, dash does not), so Python has to be its child.
trap 'kill -TERM $! 2>/dev/null || true' TERM
python -u "$here/train_memory.py" "$@" &
while kill -0 $! 2>/dev/null; do wait $! || true; done    # SIGTERM interrupts `wait`
wait $!
