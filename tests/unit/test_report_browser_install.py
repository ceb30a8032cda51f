"""setup-utils/install-browser.sh: does nothing where a browser is, else installs one or says what to do."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "setup-utils" / "install-browser.sh"
TOOLS = ("bash", "dirname", "cat", "grep", "sed", "tail", "uname")


@pytest.fixture
def install(tmp_path):
    """Runs the script with basic tools on the PATH, and programs of the test's own: name -> lines of shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(shutil.which(tool))

    def run(**programs):
        for name, lines in {"id": "echo 0", **programs}.items():
            path = folder / name.replace("_", "-")
            path.write_text(f"#!{shutil.which('bash')}\n{lines}\n")
            path.chmod(0o755)
        environment = {"PATH": str(folder), "HOME": os.environ.get("HOME", "/"), "CALLS": str(tmp_path / "calls")}
        done = subprocess.run(["bash", str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=30)
        calls = tmp_path / "calls"
        return done, calls.read_text().splitlines() if calls.exists() else []

    return run


RECORD = 'echo "$DEBIAN_FRONTEND $*" >>"$CALLS"'


@pytest.mark.parametrize("browser", ["chromium", "google_chrome"])
def test_a_browser_that_is_there_is_enough(install, browser):
    done, calls = install(apt_get=RECORD, **{browser: "exit 3"})
    assert (done.returncode, done.stdout, done.stderr, calls) == (0, "", "", [])


def test_root_installs_one_without_being_asked_anything(install):
    done, calls = install(apt_get=RECORD)
    assert done.returncode == 0, done.stderr
    assert calls == [
        "noninteractive update -q",
        "noninteractive install -y -q --no-install-recommends chromium",
    ]


def test_what_apt_get_says_is_shown_where_it_fails(install):
    done, calls = install(apt_get=f"{RECORD}\n[ $1 = update ] || {{ echo 'E: Unable to locate it' >&2; exit 100; }}")
    assert done.returncode == 1 and len(calls) == 2
    assert "E: Unable to locate it" in done.stderr and "could not install chromium" in done.stderr


def test_a_user_is_told_what_to_run(install):
    done, calls = install(apt_get=RECORD, id="echo 1000")
    assert (done.returncode, calls) == (1, [])
    assert "only root can" in done.stderr and "sudo apt-get install chromium" in done.stderr


def test_another_distribution_is_told_what_to_run(install):
    done, _ = install()
    assert done.returncode == 1
    assert "no apt-get" in done.stderr and "sudo dnf install chromium" in done.stderr
