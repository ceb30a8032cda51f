#!/usr/bin/env bash
# Starts Open MPI's daemon on another host with this clone's environment. mpirun calls it through ssh.
set -euo pipefail
# shellcheck source=env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
exec orted "$@"
