#!/usr/bin/env bash
# Builds the site into site/, strictly: a broken link, a wrong anchor or an unknown name is an error. Installs MkDocs into
# .venv-docs first; the build itself needs no network.
#   bash docs/build.sh            site/index.html
#   bash docs/build.sh serve      http://127.0.0.1:8000, built again at every change
set -euo pipefail
clone=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$clone/.venv-docs
pins=$clone/setup-utils/requirements/docs.txt
if ! cmp -s "$pins" "$venv/installed" || ! "$venv/bin/python" -I -c ''; then
    rm -rf "$venv"
    "${PYTHON:-python3}" -I -m venv "$venv"
    "$venv/bin/pip" install --quiet -r "$pins"
    cp "$pins" "$venv/installed"    # last: an interrupted installation runs again
fi
cd "$clone"
exec "$venv/bin/mkdocs" "${1:-build}" --strict
