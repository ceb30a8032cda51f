#!/usr/bin/env bash
# Looks the pinned packages up in the advisories of PyPI, which needs access to pypi.org:
#   bash setup-utils/audit.sh
# Accepted, because the old stack needs these versions (requirements/training.txt says why):
#   setuptools < 70    CVE-2024-6345, CVE-2025-47273: a crafted URL of a package; nothing here fetches packages by it
#   protobuf 3.20.3    CVE-2025-4565: a deeply nested message ends the process that parses it; open ONNX files you trust
# Packages without a pin, most of the PyTorch environment, are always the newest.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -I -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pip-audit
code=0
for pins in training dev loops trackers sources words build docs; do
    "$folder/venv/bin/pip-audit" -r "$here/requirements/$pins.txt" --no-deps --disable-pip --strict \
        --ignore-vuln CVE-2024-6345 --ignore-vuln CVE-2025-47273 --ignore-vuln CVE-2025-4565 || code=1
done
exit "$code"
