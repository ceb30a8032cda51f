#!/usr/bin/env bash
# A browser for the tests that look at report.html: does nothing where one is there, else installs Debian's chromium.
#   bash setup-utils/install-browser.sh
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done

by_hand="Install it with:  sudo apt-get install chromium  (Fedora: sudo dnf install chromium)"
command -v apt-get >/dev/null 2>&1 || die "no chromium or Chrome is on the PATH, and no apt-get to install one with. $by_hand"
[ "$(id -u)" = 0 ] || die "no chromium or Chrome is on the PATH, and only root can install one. $by_hand"

install_chromium() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q && apt-get install -y -q --no-install-recommends chromium
}

say "Installing chromium, for the tests of the training's report"
if ! output=$(install_chromium 2>&1 </dev/null); then
    printf '%s\n' "$output" | tail -n 25 >&2
    die "apt-get could not install chromium; its last lines are above. The tests that need it are left out without it."
fi
