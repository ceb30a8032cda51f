"""Problems of a host that ssh reaches, caused on virtual hosts one at a time."""

import contextlib
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import needs_torch

from paths import ROOT
from virtual_hosts import Hosts, unavailable

BASHRC = Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".bashrc"  # sshd ignores HOME
CHECK = ROOT / "setup-utils" / "check.sh"
pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "bashrc").write_text("")  # the one of this machine's user may be slow
    existed = BASHRC.exists()
    if not existed:
        BASHRC.touch()  # a mount needs a file below it
    try:
        with Hosts(["hosta", "hostb"], folder) as pair, replaced(pair, BASHRC, folder / "bashrc"):
            yield pair
    finally:
        if not existed:
            BASHRC.unlink()


@pytest.fixture
def arguments(faces, tmp_path):
    """Arguments of a training on a small set, with its own output folder."""
    (tmp_path / "models").mkdir()
    return ["dataset=demo", f"rec={faces}", f"models_root={tmp_path / 'models'}"]


@pytest.fixture
def check(hosts):
    """Runs the check of both hosts on hosta; returns (exit code, the rows of each host as text, the whole output)."""

    def run_check(*arguments, options=("--hosts", "hosta:2,hostb:2"), **environment):
        named = [f"{name}={value}" for name, value in environment.items()]
        done = hosts.run("hosta", ["env", *named, "bash", CHECK, *options, "--", *arguments], timeout=40)
        blocks = {block.split(",")[0].split(":")[0]: block for block in done.stdout.split("\n\n")}
        return done.returncode, blocks, done.stdout + done.stderr

    return run_check


@contextlib.contextmanager
def replaced(hosts, path, other=None):
    """On hostb, mounts another file or folder at a path, or an empty folder."""
    mount = ["mount", "--bind", other, path] if other else ["mount", "-t", "tmpfs", "none", path]
    assert hosts.run("hostb", mount).returncode == 0
    try:
        yield
    finally:
        hosts.run("hostb", ["umount", path])


@contextlib.contextmanager
def listening(hosts, host, port):
    """Another program listens on a port of a host."""
    program = (
        f"import socket, time; s = socket.create_server(('', {port})); print('listens', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(hosts.command(host, [sys.executable, "-c", program]), stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"listens\n"
        yield
        subprocess.run(["pkill", "-KILL", "-P", str(other.pid)], check=True)


def has(block, mark, what, found, fix=""):
    pattern = rf"^\[{mark}\] +{what} +.*{found}.*" + (rf"\n +-> .*{fix}" if fix else "")
    return re.search(pattern, block, re.MULTILINE)


def test_two_equal_hosts(hosts, check, arguments, tmp_path):
    code, blocks, text = check(*arguments)
    assert code == 0 and "[bad]" not in text, text
    for what in ("code", "settings", "versions", "data"):
        assert has(blocks["hostb"], "ok", what, "as here|as on hosta by size and samples"), text
    for what in ("ssh", "memory", "disk", "processors", "clock"):
        assert has(blocks["hostb"], "ok|warn", what, ""), text
    assert has(blocks["hostb"], "ok", "outputs", "is shared with this host") and "demo: 4 files" in blocks["hostb"]
    assert has(blocks["hosta"], "ok", "network", "reached by hostb")
    assert has(blocks["hostb"], "ok", "network", "reached by hosta")
    assert re.search(r"Hosts: 2 checked in \d+\.\d s: hosta, hostb", text)
    assert list((tmp_path / "models").iterdir()) == []  # the marker file is removed
    # No process is left on the other host.
    end = time.monotonic() + 5
    while "exec(zlib" in hosts.run("hostb", ["ps", "-A", "-o", "args"]).stdout and time.monotonic() < end:
        time.sleep(0.1)
    assert "exec(zlib" not in hosts.run("hostb", ["ps", "-A", "-o", "args"]).stdout


def result_of(hosts, tmp_path, *options, arguments=()):
    """(the result for run.sh, exit code, output)."""
    path = tmp_path / "result"
    command = ["bash", ROOT / "setup-utils" / "check.sh", *options, "--for-run", path, "--", *arguments]
    done = hosts.run("hosta", command, timeout=40)
    source = f'. {shlex.quote(str(path))}; echo "$PFC_NETWORKS|$PFC_USABLE"'
    return hosts.run("hosta", ["bash", "-euc", source]).stdout.strip(), done.returncode, done.stdout + done.stderr


def test_result_for_run_sh(hosts, arguments, tmp_path):
    (tmp_path / "hosts").write_text("hosta slots=2\nhostb slots=3\n")
    result, code, text = result_of(hosts, tmp_path, "--hostfile", tmp_path / "hosts", arguments=arguments)
    # docker0 has the same subnet on both hosts; it does not connect them.
    assert (result, code) == ("10.77.0.0/24|hosta:2,hostb:3", 0), text
    assert text.splitlines()[-1].startswith("Hosts: 2 checked in") and "[ok]" not in text


def test_localhost_needs_no_network(hosts, arguments, tmp_path):
    result, code, text = result_of(hosts, tmp_path, "--hosts", "localhost:4", arguments=arguments)
    assert (result, code) == ("|localhost:4", 0), text


def test_the_same_machine_by_two_names(check, arguments):
    code, blocks, text = check(*arguments, options=("--hosts", "hosta:2,10.77.0.1:2"))
    assert code == 1 and has(blocks["10.77.0.1"], "bad", "name", "the same machine as hosta", "list it once"), text


def test_a_host_that_only_starts_the_training(check, arguments):
    code, blocks, text = check(*arguments, options=("--hosts", "hostb:2"))
    assert code == 0 and list(blocks)[:2] == ["hosta", "hostb"], text
    assert "data" not in blocks["hosta"] and has(blocks["hosta"], "ok", "network", "reached by hostb")
    assert has(blocks["hostb"], "ok", "data", "2 ranks|demo")


def test_no_clone(hosts, check, arguments, tmp_path):
    with replaced(hosts, ROOT):
        code, blocks, text = check(*arguments)
        assert code == 1, text
        assert has(blocks["hostb"], "bad", "clone", f"there is none at {ROOT}", "rsync .*install.sh"), text
        assert "Needs fixing: hostb (clone). 1 of 2 hosts are ready." in text
        result, code, text = result_of(hosts, tmp_path, "--hosts", "hosta:2,hostb:2", arguments=arguments)
        assert (result, code) == ("10.77.0.0/24|hosta:2", 1), text


def test_no_clone_and_no_python(hosts, check, arguments, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to(shutil.which("sh"))
    (tmp_path / "bashrc").write_text(f"PATH={tmp_path / 'bin'}\n")
    with replaced(hosts, ROOT), replaced(hosts, BASHRC, tmp_path / "bashrc"):
        code, blocks, text = check(*arguments)
    assert code == 1 and has(blocks["hostb"], "bad", "Python", "no Python 3.10", "install python3"), text


def test_no_venv(hosts, check, arguments):
    with replaced(hosts, ROOT / ".venv"):
        code, blocks, text = check(*arguments)
    assert code == 1 and has(blocks["hostb"], "bad", "versions", ".venv: missing", "install.sh"), text


@needs_torch
def test_the_environment_and_the_port_of_pytorch(hosts, check, arguments, tmp_path):
    options = ("--hosts", "hosta:1,hostb:1", "--trainer", "torch", "--port", "1234")
    code, blocks, text = check(*arguments, "output=models/own", options=options)
    assert code == 0 and has(blocks["hosta"], "ok", "port", "1234 is free"), text
    assert has(blocks["hostb"], "ok", "versions", "torch [0-9.]+.*, as here"), text
    with replaced(hosts, ROOT / ".venv-torch"), listening(hosts, "hosta", 1234):
        code, blocks, text = check(*arguments, options=options)
    assert code == 1 and has(blocks["hosta"], "bad", "port", "1234: Address already in use", "--master_port"), text
    assert has(blocks["hostb"], "bad", "versions", ".venv-torch: missing", "install-torch.sh"), text


def test_other_code_settings_and_versions(hosts, check, arguments, tmp_path):
    (metadata,) = (ROOT / ".venv").glob("lib/python3*/site-packages/horovod-*.dist-info/METADATA")
    contents = {
        ROOT / "default.py": (ROOT / "default.py").read_text() + "\n",
        ROOT / "partial_fc/layer/tiling.py": (ROOT / "partial_fc/layer/tiling.py").read_text() + "\n",
        metadata: metadata.read_text().replace("\nVersion: 0.28.1", "\nVersion: 0.19.2"),
        ROOT / ".venv" / ".partial_fc" / "cuda.env": "PFC_WHEEL=mxnet-cu112\n",
    }
    with contextlib.ExitStack() as stack:
        for number, (path, content) in enumerate(contents.items()):
            (tmp_path / str(number)).write_text(content)
            stack.enter_context(replaced(hosts, path, tmp_path / str(number)))
        code, blocks, text = check(*arguments)
    assert code == 1, text
    assert has(blocks["hostb"], "bad", "code", "not as here: .*partial_fc/layer/tiling.py", "git pull"), text
    assert has(blocks["hostb"], "bad", "settings", "not as here: default.py", "rsync"), text
    found = r"horovod 0\.19\.2, here 0\.28\.1; wheel mxnet-cu112, here mxnet"
    assert has(blocks["hostb"], "bad", "versions", found, r"rm -rf \S+/\.venv"), text
    assert has(blocks["hostb"], "bad", "processors", "no GPU, .* for 2 ranks", "its own GPU"), text


def test_other_data(hosts, check, arguments, faces, tmp_path):
    content = bytearray(faces.read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "other.rec").write_bytes(content)
    with replaced(hosts, faces, tmp_path / "other.rec"):
        code, blocks, text = check(*arguments)
    size = len(content)
    found = rf"{faces}: {size} bytes \(\w+\), on hosta {size} bytes"
    assert code == 1 and has(blocks["hostb"], "bad", "data", found, "on hosta: rsync"), text


@pytest.mark.parametrize("named", ["hosta:2,hostb:2", "hostb:2"])
def test_no_data(hosts, check, arguments, faces, named):
    with replaced(hosts, faces.parent):
        code, blocks, text = check(*arguments, options=("--hosts", named))
    found = f"{faces}: No such file or directory"
    assert code == 1 and has(blocks["hostb"], "bad", "data", found, "on hosta: rsync .* or set data_root="), text
    assert "Needs fixing: hostb (data). 1 of 2 hosts are ready." in text


def test_two_hosts_with_one_hostname(hosts, check, arguments):
    hosts.run("hostb", ["hostname", "hosta"])
    try:
        code, blocks, text = check(*arguments)
    finally:
        hosts.run("hostb", ["hostname", "hostb"])
    assert code == 1 and has(
        blocks["hostb"], "bad", "hostname", "its hostname is hosta, as is that of hosta", "set-hostname"
    ), text


def test_output_folder_that_is_not_shared(hosts, arguments, tmp_path):
    with replaced(hosts, tmp_path / "models"):
        named = ("--hosts", "hosta:2,hostb:2")
        result, code, text = result_of(hosts, tmp_path, *named, arguments=[*arguments, "checkpoint_every=0"])
        assert (result, code) == ("10.77.0.0/24|hosta:2,hostb:2", 0), text
        assert has(text, "warn", "outputs", "hostb: the output folder is not shared", "models_root="), text
        assert "[ok]" not in text, text
        result, code, text = result_of(hosts, tmp_path, *named, arguments=arguments)
    assert (result, code) == ("10.77.0.0/24|hosta:2", 1), text
    assert "[bad]" in text and "hostb (outputs)" in text, text


def test_output_folder_that_is_read_only(hosts, check, arguments, tmp_path):
    with replaced(hosts, tmp_path / "models"):
        hosts.run("hostb", ["mount", "-o", "remount,ro", tmp_path / "models"])
        code, blocks, text = check(*arguments)
    assert code == 1 and has(blocks["hostb"], "bad", "disk", "cannot be written to", "models_root="), text


def test_a_firewall_that_lets_only_ssh_through(hosts, check, arguments):
    # The kernel of hosta does not send to other ports of hostb; this includes answers to hostb.
    rule = "to 10.77.0.2 ipproto tcp dport 1024-65534 unreachable".split()
    if hosts.run("hosta", ["ip", "rule", "add", *rule]).returncode:
        pytest.skip("this kernel has no rules for ports")
    try:
        code, blocks, text = check(*arguments)
    finally:
        hosts.run("hosta", ["ip", "rule", "del", *rule])
    found = r"hosta cannot reach it at 10\.77\.0\.2:\d+, though ssh works: Network is unreachable"
    assert code == 1 and has(blocks["hostb"], "bad", "network", found, "Open all TCP ports"), text
    found = r"hostb cannot reach it at 10\.77\.0\.1:\d+, though ssh works: no answer in 3 s"
    assert has(blocks["hosta"], "bad", "network", found, "Open all TCP ports"), text


def test_a_shell_that_prints_when_it_starts(hosts, check, arguments, tmp_path):
    (tmp_path / "bashrc").write_text("echo welcome; echo 'mind the step' >&2; printf 'no end of line'\n")
    with replaced(hosts, BASHRC, tmp_path / "bashrc"):
        assert "welcome" in hosts.run("hosta", ["ssh", "hostb", "true"]).stdout
        code, blocks, text = check(*arguments)
    assert code == 0 and has(blocks["hostb"], "ok", "ssh", "as "), text


def test_a_port_for_mpirun(hosts, check, arguments):
    hosts.start_sshd("hostb", 2310)
    code, blocks, text = check(*arguments, OMPI_MCA_plm_rsh_args="-p 2310")
    assert code == 0 and has(blocks["hostb"], "ok", "ssh", "as "), text
    code, blocks, text = check(*arguments, OMPI_MCA_plm_rsh_args="-p 2311")
    found = r"no sshd at hostb port 2311 \(from OMPI_MCA_plm_rsh_args\)"
    assert code == 1 and has(blocks["hostb"], "bad", "ssh", found), text


def test_no_ssh_client(check, arguments, tmp_path):
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "dirname", "id"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    code, blocks, text = check(*arguments, PATH=str(tmp_path / "bin"))
    assert code == 1 and has(blocks["hostb"], "bad", "ssh", "this machine has no ssh client", "openssh-client"), text


def test_invalid_arguments(hosts, check, tmp_path):
    (tmp_path / "hosts").write_text("hosta slots=2\nhostb slot=2\n")
    for options, arguments, message in (
        (("--hostfile", tmp_path / "hosts"), (), "line 2: cannot parse 'slot'"),
        (("--hostfile", tmp_path / "none"), (), "none: No such file or directory"),
        (("--hosts", "hosta:2"), ("--dataset", "emor"), "unknown dataset 'emor': did you mean 'emore'?"),
        (("--hosts", ""), (), "cannot parse '' in the host list"),
        (("--hosst", "hosta:2"), (), "usage: bash setup-utils/check.sh"),
    ):
        code, _, text = check(*arguments, options=options)
        assert code == 2 and message in text and "Traceback" not in text, text
