"""The preflight check of hosts: it reports each problem of virtual hosts with a fix."""

import contextlib
import os
import pwd
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LIMIT, needs_torch

from paths import ROOT
from virtual_hosts import Hosts, unavailable
from waiting import happens

BASHRC = Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".bashrc"  # sshd ignores HOME
CHECK = ROOT / "setup-utils" / "check.sh"
BOTH = ("--hosts", "hosta:2,hostb:2")
pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "bashrc").write_text("")  # the user's own may be slow
    existed = BASHRC.exists()
    BASHRC.touch()  # a bind mount needs an existing file
    try:
        with Hosts(["hosta", "hostb", "hostc"], folder) as running, replaced(running, BASHRC, folder / "bashrc"):
            yield running
    finally:
        if not existed:
            BASHRC.unlink()


@pytest.fixture
def arguments(faces, tmp_path):
    """Arguments of a training on a small set, with the test's own output folder."""
    (tmp_path / "models").mkdir()
    return ["dataset=demo", f"rec={faces}", f"models_root={tmp_path / 'models'}"]


@pytest.fixture
def check(hosts):
    """Runs the check on hosta; returns (exit code, host -> its part of the report, the whole output)."""

    def run_check(*arguments, options=BOTH, **environment):
        named = [f"{name}={value}" for name, value in environment.items()]
        done = hosts.run("hosta", ["env", *named, "bash", CHECK, *options, "--", *arguments], timeout=LIMIT)
        blocks = {re.split("[,:]", block)[0]: block for block in re.split(r"\n(?=\w)", done.stdout)}
        return done.returncode, blocks, done.stdout + done.stderr

    return run_check


@contextlib.contextmanager
def replaced(hosts, path, other=None, host="hostb"):
    """Mounts another file or folder, by default an empty folder, at a path of a host."""
    mount = ["mount", "--bind", other, path] if other else ["mount", "-t", "tmpfs", "none", path]
    assert hosts.run(host, mount).returncode == 0
    try:
        yield
    finally:
        hosts.run(host, ["umount", path])


@contextlib.contextmanager
def listening(hosts, host, port):
    """Runs a program that accepts connections to a port of a host, but does not answer."""
    program = f"import socket, time; s = socket.create_server(('', {port})); print(flush=True); time.sleep(60)"
    with subprocess.Popen(hosts.command(host, [sys.executable, "-c", program]), stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"\n"
        yield
        subprocess.run(["pkill", "-KILL", "-P", str(other.pid)], check=True)


def has(block, what, problem, fix=""):
    pattern = rf"^\[bad\] +{what} +.*(?:{problem}).*" + (rf"\n +-> .*{fix}" if fix else "")
    return re.search(pattern, block, re.MULTILINE)


def test_two_equal_hosts(hosts, check, arguments, tmp_path):
    for options in (BOTH, ("--hosts", "hostb:2,hosta:2")):
        code, blocks, text = check(*arguments, options=options)
        assert code == 0 and "[bad]" not in text and "2 of 2 hosts are ready" in text, text
    assert "hosta, 2 ranks, 0 GPUs, this machine: ready" in text and "hostb, 2 ranks, 0 GPUs: ready" in text
    assert list((tmp_path / "models").iterdir()) == []  # the marker file is removed
    # No process is left on the other host.
    assert happens(lambda: "pfc-" not in hosts.run("hostb", ["ps", "-A", "-o", "args"]).stdout, 5)


def test_a_host_without_the_clone(hosts, check, arguments):
    with replaced(hosts, ROOT):
        code, blocks, text = check(*arguments)
    assert code == 1 and has(blocks["hostb"], "clone", f"there is none at {ROOT}", "rsync .*install.sh"), text
    assert "Needs fixing: hostb (clone). 1 of 2 hosts are ready." in text


def test_a_host_that_only_starts_the_training(hosts, check, arguments, faces):
    with replaced(hosts, faces.parent):
        code, blocks, text = check(*arguments, options=("--hosts", "hostb:2"))
    assert code == 1 and list(blocks)[:2] == ["hosta", "hostb"], text
    problem, fix = f"{faces}: No such file or directory, on hosta", "on hosta: rsync .*, or set data_root="
    assert "ready" in blocks["hosta"] and has(blocks["hostb"], "data", problem, fix), text
    assert "Needs fixing: hostb (data)" in text, text


def test_differences_between_hosts(hosts, check, arguments, faces, tmp_path):
    contents = {ROOT / "default.py": (ROOT / "default.py").read_text() + "\n", faces: "another set"}
    (packages,) = (ROOT / ".venv").glob("lib/python3*/site-packages")
    with contextlib.ExitStack() as stack:
        for number, (path, content) in enumerate(contents.items()):
            (tmp_path / str(number)).write_text(content)
            stack.enter_context(replaced(hosts, path, tmp_path / str(number)))
        for folder in (packages, tmp_path / "models"):
            stack.enter_context(replaced(hosts, folder))
        stack.callback(hosts.run, "hostb", ["hostname", "hostb"])
        hosts.run("hostb", ["hostname", "hosta"])
        code, blocks, text = check(*arguments)
    for what, problem, fix in (
        ("hostname", "hosta has the same hostname, hosta", "set-hostname"),
        ("code", "differs from this host: default.py", "git pull on both, or: .*rsync"),
        ("versions", "horovod missing, here 0.28.1; ", r"rm -rf \S+/\.venv"),
        ("data", rf"{faces}: 11 bytes, on hosta {faces.stat().st_size:,} bytes", "on hosta: rsync"),
        ("outputs", "the output folder is not shared with this host", "models_root="),
    ):
        assert has(blocks["hostb"], what, problem, fix), text
    assert code == 1 and "Needs fixing: hosta (hostname); hostb (code, versions, hostname, data, outputs)" in text


@needs_torch
def test_the_environment_of_pytorch(hosts, check, arguments):
    options = ("--hosts", "hosta:1,hostb:1", "--trainer", "torch")
    code, blocks, text = check(*arguments, "output=models/own", options=options)
    assert code == 0, text
    with replaced(hosts, ROOT / ".venv-torch"):
        code, blocks, text = check(*arguments, options=options)
    assert code == 1 and has(blocks["hostb"], "versions", ".venv-torch: missing", "install-torch.sh"), text


@pytest.mark.parametrize("here, there", [("hosta", "hostb"), ("hostb", "hostc"), ("hostc", "hostb")])
def test_a_firewall_that_lets_only_ssh_through(hosts, check, arguments, here, there):
    """Also between two hosts that do not run the check."""
    # The kernel of the first host sends only to low ports of the second, which blocks answers, too.
    rule = f"to {hosts.address[there]} ipproto tcp dport 1024-65534 unreachable".split()
    if hosts.run(here, ["ip", "rule", "add", *rule]).returncode:
        pytest.skip("this kernel has no rules for ports")
    try:
        code, blocks, text = check(*arguments, options=("--hosts", "hosta,hostb,hostc"))
    finally:
        hosts.run(here, ["ip", "rule", "del", *rule])
    away = max(here, there)
    assert code == 1 and has(blocks[away], "network", r"cannot connect to 10\.77\.0\.\d:\d+: .*, though", "Open"), text
    assert f"Needs fixing: {away} (network). 2 of 3 hosts are ready." in text


def test_a_shell_that_prints_when_it_starts(hosts, check, arguments, tmp_path):
    (tmp_path / "bashrc").write_text("echo welcome; echo 'mind the step' >&2; printf 'no end of line'\n")
    with replaced(hosts, BASHRC, tmp_path / "bashrc"):
        assert "welcome" in hosts.run("hosta", ["ssh", "hostb", "true"]).stdout
        code, blocks, text = check(*arguments)
    assert code == 0, text


@pytest.mark.slow
def test_hosts_that_do_not_answer(hosts, check, arguments, faces, tmp_path):
    """The report has ssh's last message or the unreadable fact, and the other hosts' checks."""
    config = hosts.folder / "hosta" / "ssh" / "config"
    config.write_text("Host no-sshd\n Port 2300\n HostName hostb\nHost silent\n Port 2301\n HostName hostb\n")
    config.chmod(0o600)
    os.mkfifo(tmp_path / "hangs")  # blocks, as a file on a dead server does
    with listening(hosts, "hostb", 2301), replaced(hosts, faces, tmp_path / "hangs", "hostc"):
        code, blocks, text = check(*arguments, options=("--hosts", "hosta,hostb,hostc,no-sshd,silent"))
    config.unlink()
    assert code == 1, text
    for name, problem in (
        ("no-sshd", "ssh: connect to host hostb port 2300: Connection refused"),
        ("silent", "timed out|no answer in 12 s"),
        ("hostc", "no answer in 12 s; while checking: data"),
    ):
        assert has(blocks[name], "ssh", problem, f"ssh {name} true"), text
    assert "ready" in blocks["hosta"] and "ready" in blocks["hostb"], text
    assert hosts.run("hosta", ["pgrep", "-x", "ssh"]).stdout == ""


def test_arguments_of_mpirun_apply_to_ssh(hosts, check, arguments):
    hosts.start_sshd("hostb", 2310)
    assert check(*arguments, OMPI_MCA_plm_rsh_args="-p 2310")[0] == 0
    code, blocks, text = check(*arguments, OMPI_MCA_plm_rsh_args="-p 2311")
    assert code == 1 and has(blocks["hostb"], "ssh", "port 2311: Connection refused"), text


def test_invalid_arguments(check, tmp_path):
    for options, arguments, message in (
        (("--hostfile", tmp_path / "none"), (), "none: No such file or directory"),
        (("--hosts", "hosta:2"), ("--dataset", "emor"), "unknown dataset 'emor': did you mean 'emore'?"),
        (("--hosst", "hosta:2"), (), "usage: bash setup-utils/check.sh"),
    ):
        code, _, text = check(*arguments, options=options)
        assert code == 2 and message in text and "Traceback" not in text, text
