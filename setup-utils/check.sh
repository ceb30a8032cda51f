#!/usr/bin/env bash
# Prints what is there and what is wrong, each with the mend. Changes nothing; exit code 1 when something needed is bad.
#   bash setup-utils/check.sh
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

if [ -x "$here/../.venv/bin/python" ]; then
    # Stays quiet when the set-up is unfinished: check.py says so itself, with the mend.
    # shellcheck source=env.sh
    . "$here/env.sh" 2>/dev/null || true
    exec "$here/../.venv/bin/python" "$here/check.py"
fi
for python in ${PYTHON:-} python3.11 python3.10 python3.9 python3.12 python3.13 python3.8 python3; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
        exec "$python" "$here/check.py"
    fi
done
printf '[bad]   Python       no Python 3.8 to 3.13 was found: install one (python3 and python3-venv), or set PYTHON=/path\n'
exit 1
