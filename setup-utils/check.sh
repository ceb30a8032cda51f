#!/usr/bin/env bash
# Checks the installation of both trainers, and prints problems and how to fix them. Changes nothing. The exit code is 1
# if a required part has a problem.
#   bash setup-utils/check.sh
#   bash setup-utils/check.sh --hosts hosta:8,hostb:8       can several hosts train together? (see --help)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
program=$here/check.py
export PYTHONPATH=${here%/*}:${here%/*}/tools

if [ -x "$here/../.venv/bin/python" ]; then
    # env.sh fails if the installation did not finish, which check.py reports with the fix.
    set +eu
    # shellcheck source=env.sh
    . "$here/env.sh" 2>/dev/null
    set -eu
    exec "$here/../.venv/bin/python" "$program" "$@"
fi
for python in ${PYTHON:-} "$here/../.venv-torch/bin/python" python3.11 python3.10 python3.12 python3.13 python3; do
    if "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        exec "$python" "$program" "$@"
    fi
done
printf '[bad]   Python       no Python 3.10 to 3.13 was found: install one (python3 and python3-venv), or set PYTHON=/path\n'
exit 1
