#!/usr/bin/env bash
# Checks the pinned packages against PyPI's security advisories, which needs access to pypi.org:
#   bash setup-utils/audit.sh
# Ignored, because the old stack needs these versions (requirements/training.txt says why):
#   setuptools < 70    CVE-2024-6345, CVE-2025-47273: crafted package URLs; nothing here fetches packages by setuptools
#   protobuf 3.20.3    CVE-2025-4565: a deeply nested message crashes its parser; open only ONNX files that you trust
# Packages without a pin, which are most of the PyTorch environment, are always the newest.
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
