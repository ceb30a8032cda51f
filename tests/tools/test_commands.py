"""The tree of commands: help of every command without heavy imports, errors, and how missing packages are reported."""

import argparse
import importlib
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import exit_code, start
from partial_fc import __version__
from partial_fc.utils import cli
from partial_fc.utils.cli import Group, number_above_0, whole_number
from partial_fc.utils.cores import cpu_quota, usable_cores
from partial_fc_tools.__main__ import TREE
from paths import ROOT, with_root

HEAVY = ("mxnet", "torch", "onnx", "onnxruntime", "matplotlib")
# Documented as available on Linux, but not on macOS.
LINUX_ONLY = {
    "os": ("sched_getaffinity", "posix_fadvise", "posix_fallocate", "fdatasync", "memfd_create", "O_DIRECT"),
    "signal": ("sigtimedwait", "sigwaitinfo", "SIGRTMIN"),
    "time": ("CLOCK_BOOTTIME",),
    "socket": ("TCP_INFO", "AF_NETLINK"),
    "select": ("epoll",),
}


def commands(group=TREE, names=()):
    """Yields (names, Command) of all commands."""
    for name, entry in group.commands.items():
        if isinstance(entry, Group):
            yield from commands(entry, (*names, name))
        else:
            yield (*names, name), entry


# Without `train`, which replaces the process by train.py, see test_command_line.py.
COMMANDS = {names: command for names, command in commands() if names != ("train",)}


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_an_example(names, capsys):
    assert exit_code(*names, "--help") == 0
    shown = capsys.readouterr().out
    program = f"partial-fc {' '.join(names)}"
    assert shown.startswith(f"usage: {program} ") and f"example:\n  {program} " in shown
    assert importlib.import_module(COMMANDS[names].module).__doc__.splitlines()[0] in shown


def test_help_needs_no_heavy_package():
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in {HEAVY}: raise AssertionError(name)
sys.meta_path.insert(0, Refuse())
from command_line import exit_code, start
for names in {list(COMMANDS)}: assert exit_code(*names, "--help") == 0
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: partial-fc ") == len(COMMANDS)


@pytest.mark.parametrize("words, group", [([], TREE), (["sets"], TREE.commands["sets"])])
def test_groups_list_their_commands(words, group, capsys):
    assert exit_code(*words, "--help") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in group.commands)
    assert exit_code(*words) == 2 and "COMMAND" in capsys.readouterr().err


def test_the_command_of_the_environment_imports_nothing_from_the_current_folder(tmp_path):
    command = Path(sys.executable).with_name("partial-fc")
    if not command.exists():
        pytest.skip("not an environment of setup-utils")
    (tmp_path / "partial_fc").mkdir()
    (tmp_path / "partial_fc" / "__init__.py").write_text("raise SystemExit('the wrong package')")
    done = subprocess.run([command, "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"partial-fc {__version__}\n", done.stderr


@pytest.mark.parametrize(
    "parse, good, bad",
    [
        (whole_number(1, 100), ["1", "100"], ["0", "101", "1.5", "x", ""]),
        (number_above_0("a share", 4), ["4", "1e-3"], ["0", "4.01", "nan", "-1", "x"]),
        (number_above_0("a rate"), ["1e9"], ["0", "nan"]),
    ],
)
def test_numbers_of_options_have_bounds(parse, good, bad):
    assert [parse(text) for text in good] == [float(text) for text in good]
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError, match=f"got '{text}'"):
            parse(text)


def test_arguments_are_those_of_the_command_alone(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["program", str(tmp_path)])
    for words, message in (
        (["sets", "check"], "required: SET"),
        (["sets", "check", "--fast", "--", "--no-set"], "--no-set does not exist"),
        (["hosts", "--hosts", "a:2", "b:2"], "unknown argument b:2"),
    ):
        assert exit_code(*words) == 2 and message in capsys.readouterr().err


def test_the_number_of_cores_where_there_is_no_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    quota = cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup")
    assert usable_cores() == max(1, int(min(os.cpu_count(), quota)))


@pytest.mark.parametrize(
    "membership, files, expected",
    [
        ("0::/", {"cpu.max": "350000 100000"}, 3.5),
        ("0::/", {"cpu.max": "max 100000"}, math.inf),
        ("0::/", {}, math.inf),
        ("0::/jobs/mine", {"jobs/cpu.max": "200000 100000", "jobs/mine/cpu.max": "800000 100000"}, 2),
        ("0::/jobs/mine", {"jobs/cpu.max": "max 100000", "jobs/mine/cpu.max": "50000 100000"}, 0.5),
        ("0::/docker/of-the-host", {"cpu.max": "400000 100000"}, 4),
        ("4:memory:/\n2:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "150000", "cpu/a/cpu.cfs_period_us": "50000"}, 3),
        ("2:cpu,cpuacct:/job", {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"}, math.inf),
        ("3:cpuset:/", {"cpuset/cpu.max": "100000 100000"}, math.inf),
        (None, {}, math.inf),
    ],
)
def test_the_quota_of_control_groups_of_both_versions(membership, files, expected, tmp_path):
    if membership is not None:
        (tmp_path / "membership").write_text(membership + "\n")
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text + "\n")
    assert cpu_quota(str(tmp_path / "membership"), str(tmp_path / "groups")) == expected


def test_every_module_imports_without_what_only_linux_has():
    code = f"""
import importlib, pkgutil, sys
for name, missing in {LINUX_ONLY}.items():
    module = importlib.import_module(name)
    for attribute in missing: delattr(module, attribute)
sys.platform = "darwin"
for top in "partial_fc", "partial_fc_tools":
    for found in pkgutil.walk_packages(importlib.import_module(top).__path__, top + "."):
        try: importlib.import_module(found.name)
        except ModuleNotFoundError as error: assert not error.name.startswith("partial_fc"), error
        print(found.name)
"""
    environment = with_root()
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "partial_fc_tools.ijb.command" in done.stdout.split()


@pytest.mark.parametrize(
    "package, installed, hint",
    [
        ("torch", True, "extra torch"),
        ("cv2", True, "install the package again"),
        ("cv2", False, "setup-utils/install.sh"),
        ("partial_fc_torch", False, "setup-utils/install-torch.sh"),
    ],
)
def test_a_missing_package_is_reported_with_what_installs_it(package, installed, hint, monkeypatch, tmp_path, capsys):
    def fails():
        raise ModuleNotFoundError(f"No module named '{package}'", name=package)

    if installed:
        monkeypatch.setattr(cli, "__file__", str(tmp_path / "partial_fc" / "utils" / "cli.py"))
    with pytest.raises(SystemExit) as ended:
        cli.start(fails)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: No module named '{package}': ") and hint in error and error.count("\n") == 1


def test_control_characters_of_names_are_escaped(tmp_path):
    folder = tmp_path / "tree" / "clear\x1b[2J"
    folder.mkdir(parents=True)
    (folder / "a.jpg").write_bytes(b"no image")
    done = start("sets", "pack", tmp_path / "tree", tmp_path / "out\u202e")
    assert done.returncode == 2 and "clear\\x1b[2J/a.jpg" in done.stderr, done.stderr
    assert not {"\x1b", "\u202e"} & set(done.stdout + done.stderr)
