#!/usr/bin/env bash
# Prints what is there and what is wrong, each with the mend. Changes nothing; exit code 1 when something needed is bad.
#   bash setup-utils/check.sh
#   bash setup-utils/check.sh --hosts hosta:8,hostb:8       several hosts: can they train together? (--help)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
program=$here/check.py
export PYTHONPATH=${here%/*}

if [ -x "$here/../.venv/bin/python" ]; then
    # Stays quiet when the set-up is unfinished: check.py says so itself, with the mend.
    set +eu
    # shellcheck source=env.sh
    . "$here/env.sh" 2>/dev/null
    set -eu
    exec "$here/../.venv/bin/python" "$program" "$@"
fi
for python in ${PYTHON:-} python3.11 python3.10 python3.12 python3.13 python3; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        exec "$python" "$program" "$@"
    fi
done
printf '[bad]   Python       no Python 3.10 to 3.13 was found: install one (python3 and python3-venv), or set PYTHON=/path\n'
exit 1
