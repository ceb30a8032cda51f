#!/usr/bin/env bash
# The command of each rank:  horovodrun -np 8 -H localhost:8 bash config.sh [--dataset ... name=value ...]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=setup-utils/env.sh
. "$here/setup-utils/env.sh"
exec python -u "$here/train_memory.py" "$@"
