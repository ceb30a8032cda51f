"""setup-utils/install-test-tools.sh does nothing if everything is installed, else installs it or reports what to do."""

import os
import shutil
import subprocess

import pytest

from paths import ROOT

SCRIPT = ROOT / "setup-utils" / "install-test-tools.sh"
TOOLS = ("bash", "dirname", "cat", "grep", "sed", "tail", "uname")


@pytest.fixture
def install(tmp_path):
    """Runs the script with basic tools and fake programs on the PATH: name -> lines of shell.

    The script searches /usr/sbin itself, so it does not ask for what this machine has there.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(shutil.which(tool))

    def run(**programs):
        for name, lines in {"id": "echo 0", **programs}.items():
            path = folder / name.replace("_", "-")
            path.unlink(missing_ok=True)
            path.write_text(f"#!{shutil.which('bash')}\n{lines}\n")
            path.chmod(0o755)
        environment = {"PATH": str(folder), "HOME": os.environ.get("HOME", "/"), "CALLS": str(tmp_path / "calls")}
        done = subprocess.run(["bash", str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=30)
        calls = tmp_path / "calls"
        return done, calls.read_text().splitlines() if calls.exists() else []

    return run


RECORD = 'echo "$DEBIAN_FRONTEND $*" >>"$CALLS"'


PROGRAMS = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ip": "iproute2",
    "pkill": "procps",
    "unshare": "util-linux",
}
THERE = dict.fromkeys([*PROGRAMS, "chromium"], "exit 3")


def without(*names):
    return {name: lines for name, lines in THERE.items() if name not in names}


@pytest.mark.parametrize("browser", ["chromium", "google_chrome"])
def test_nothing_is_installed_if_nothing_is_missing(install, browser):
    done, calls = install(apt_get=RECORD, **without("chromium"), **{browser: "exit 3"})
    assert (done.returncode, done.stdout, done.stderr, calls) == (0, "", "", [])


@pytest.mark.parametrize("absent", [("chromium",), ("ssh", "pkill", "unshare")])
def test_root_installs_what_is_missing_without_prompts(install, absent):
    done, calls = install(apt_get=RECORD, **without(*absent))
    assert done.returncode == 0, done.stderr
    packages = " ".join({**PROGRAMS, "chromium": "chromium"}[name] for name in absent)
    assert calls == ["noninteractive update -q", f"noninteractive install -y -q --no-install-recommends {packages}"]


def test_output_of_apt_get_is_shown_if_it_fails(install):
    lines = f"{RECORD}\n[ $1 = update ] || {{ echo 'E: Unable to locate it' >&2; exit 100; }}"
    done, calls = install(apt_get=lines, **without("chromium"))
    assert done.returncode == 1 and len(calls) == 2
    assert "E: Unable to locate it" in done.stderr and "could not install chromium" in done.stderr


def test_other_users_see_the_command_to_run(install):
    done, calls = install(apt_get=RECORD, id="echo 1000", **without("chromium"))
    assert (done.returncode, calls) == (1, [])
    assert "only root can" in done.stderr and "sudo apt-get install chromium" in done.stderr
