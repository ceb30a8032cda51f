#!/usr/bin/env bash
# Installs Debian packages that some tests need: a browser for report.html; sshd, ip and others for hosts in network
# namespaces; Slurm; espeak-ng. Does nothing if all of them are installed.
#   bash setup-utils/install-test-tools.sh
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# any_of PROGRAMS: succeeds if one of them is installed.
any_of() {
    local name
    for name in "$@"; do
        if PATH=$PATH:/usr/sbin:/sbin command -v "$name" >/dev/null 2>&1; then return 0; fi
    done
    return 1
}

packages=()
any_of chromium chromium-browser google-chrome google-chrome-stable || packages+=(chromium)
any_of sshd || packages+=(openssh-server)
any_of ssh || packages+=(openssh-client)
any_of ip || packages+=(iproute2)
any_of pkill || packages+=(procps)
any_of unshare || packages+=(util-linux)
any_of slurmctld || packages+=(slurm-wlm)
any_of munged || packages+=(munge)
any_of espeak-ng || packages+=(espeak-ng)
if [ "${#packages[@]}" -eq 0 ]; then exit 0; fi

by_hand="Install with:  sudo apt-get install ${packages[*]}  (other distributions: packages with similar names)"
any_of apt-get || die "not installed: ${packages[*]}, and there is no apt-get. $by_hand"
[ "$(id -u)" = 0 ] || die "not installed: ${packages[*]}, and only root can install them. $by_hand"

install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q && apt-get install -y -q --no-install-recommends "${packages[@]}"
}

say "Installing ${packages[*]}, for the tests of the report, of several hosts, of Slurm and of synthetic speakers"
if ! output=$(install_packages 2>&1 </dev/null); then
    printf '%s\n' "$output" | tail -n 25 >&2
    die "apt-get could not install ${packages[*]}; its last lines are above. Tests that need them are skipped."
fi
