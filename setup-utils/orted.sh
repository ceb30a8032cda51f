#!/usr/bin/env bash
# Open MPI's daemon on another host, which mpirun starts there through ssh: found by its own path, as that shell knows
# nothing of this clone's environment.
set -euo pipefail
# shellcheck source=env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
exec orted "$@"
