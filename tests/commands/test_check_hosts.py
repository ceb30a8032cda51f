"""What can be wrong with a host that ssh reaches, made so on real ones: one fault at a time, undone after it."""

import contextlib
import os
import pwd
import re
import shlex
import shutil
import time
from pathlib import Path

import pytest

from paths import ROOT
from virtual_hosts import Hosts, unavailable

BASHRC = Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".bashrc"  # not by HOME, of which sshd knows nothing
CHECK = ROOT / "setup-utils" / "check.sh"
pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "bashrc").write_text("")  # that of this machine's user may be a slow one
    BASHRC.touch()  # an account may have none, and a mount needs a place; it stays, like the .ssh that Hosts makes
    with Hosts(["hosta", "hostb"], folder) as pair, instead(pair, BASHRC, folder / "bashrc"):
        yield pair


@pytest.fixture
def words(faces, tmp_path):
    """Words of a training on a small set, with outputs in a folder of its own."""
    (tmp_path / "models").mkdir()
    return [f"rec={faces}", f"models_root={tmp_path / 'models'}"]


@pytest.fixture
def check(hosts):
    """Runs the check of both hosts on hosta; returns (exit code, what the table says of each, everything)."""

    def run_check(*words, options=("--hosts", "hosta:2,hostb:2"), **environment):
        named = [f"{name}={value}" for name, value in environment.items()]
        done = hosts.run("hosta", ["env", *named, "bash", CHECK, *options, "--", *words], timeout=40)
        blocks = {block.split(",")[0].split(":")[0]: block for block in done.stdout.split("\n\n")}
        return done.returncode, blocks, done.stdout + done.stderr

    return run_check


@contextlib.contextmanager
def instead(hosts, path, other=None):
    """On hostb, another file or folder at a path, or an empty folder."""
    mount = ["mount", "--bind", other, path] if other else ["mount", "-t", "tmpfs", "none", path]
    assert hosts.run("hostb", mount).returncode == 0
    try:
        yield
    finally:
        hosts.run("hostb", ["umount", path])


def has(block, mark, what, found, mend=""):
    pattern = rf"^\[{mark}\] +{what} +.*{found}.*" + (rf"\n +-> .*{mend}" if mend else "")
    return re.search(pattern, block, re.MULTILINE)


def test_two_hosts_that_are_alike(hosts, check, words, tmp_path):
    code, blocks, text = check(*words)
    assert code == 0 and "[bad]" not in text, text
    for what in ("code", "settings", "versions", "data"):
        assert has(blocks["hostb"], "ok", what, "as here|as on hosta by size and samples"), text
    for what in ("ssh", "memory", "disk", "processors", "clock"):
        assert has(blocks["hostb"], "ok|warn", what, ""), text
    assert has(blocks["hostb"], "ok", "outputs", "this host sees") and "demo: 4 files" in blocks["hostb"]
    assert has(blocks["hosta"], "ok", "network", "reached by hostb")
    assert has(blocks["hostb"], "ok", "network", "reached by hosta")
    assert re.search(r"Hosts: 2 checked in \d+\.\d s: hosta, hostb", text)
    assert list((tmp_path / "models").iterdir()) == []  # the token is gone
    # Nor does anything stay behind on the other host.
    end = time.monotonic() + 5
    while "exec(zlib" in hosts.run("hostb", ["ps", "-A", "-o", "args"]).stdout and time.monotonic() < end:
        time.sleep(0.1)
    assert "exec(zlib" not in hosts.run("hostb", ["ps", "-A", "-o", "args"]).stdout


def result_of(hosts, tmp_path, *options, words=()):
    """(what run.sh would read, exit code, what was printed)."""
    path = tmp_path / "result"
    command = ["bash", ROOT / "setup-utils" / "check.sh", *options, "--for-run", path, "--", *words]
    done = hosts.run("hosta", command, timeout=40)
    source = f'. {shlex.quote(str(path))}; echo "$PFC_NETWORKS|$PFC_USABLE"'
    return hosts.run("hosta", ["bash", "-euc", source]).stdout.strip(), done.returncode, done.stdout + done.stderr


def test_what_run_sh_is_told(hosts, words, tmp_path):
    (tmp_path / "hosts").write_text("hosta slots=2\nhostb slots=3\n")
    told, code, text = result_of(hosts, tmp_path, "--hostfile", tmp_path / "hosts", words=words)
    # docker0 has the same subnet on both hosts; it is none by which they reach each other.
    assert (told, code) == ("10.77.0.0/24|hosta:2,hostb:3", 0), text
    assert text.splitlines()[-1].startswith("Hosts: 2 checked in") and "[ok]" not in text


def test_hosts_that_are_this_machine_need_no_network(hosts, words, tmp_path):
    told, code, text = result_of(hosts, tmp_path, "--hosts", "localhost:4", words=words)
    assert (told, code) == ("|localhost:4", 0), text


def test_the_same_machine_by_two_names(check, words):
    code, blocks, text = check(*words, options=("--hosts", "hosta:2,10.77.0.1:2"))
    assert code == 1 and has(blocks["10.77.0.1"], "bad", "name", "the same machine as hosta", "one name"), text


def test_a_host_that_only_starts_the_training(check, words):
    code, blocks, text = check(*words, options=("--hosts", "hostb:2"))
    assert code == 0 and list(blocks)[:2] == ["hosta", "hostb"], text
    assert "data" not in blocks["hosta"] and has(blocks["hosta"], "ok", "network", "reached by hostb")
    assert has(blocks["hostb"], "ok", "data", "2 ranks|demo")


def test_no_clone(hosts, check, words, tmp_path):
    with instead(hosts, ROOT):
        code, blocks, text = check(*words)
        assert code == 1, text
        assert has(blocks["hostb"], "bad", "clone", f"there is none at {ROOT}", "rsync .*install.sh"), text
        assert "Needs fixing: hostb (clone). 1 of 2 hosts are ready." in text
        told, code, text = result_of(hosts, tmp_path, "--hosts", "hosta:2,hostb:2", words=words)
        assert (told, code) == ("10.77.0.0/24|hosta:2", 1), text


def test_no_clone_and_no_python(hosts, check, words, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to(shutil.which("sh"))
    (tmp_path / "bashrc").write_text(f"PATH={tmp_path / 'bin'}\n")
    with instead(hosts, ROOT), instead(hosts, BASHRC, tmp_path / "bashrc"):
        code, blocks, text = check(*words)
    assert code == 1 and has(blocks["hostb"], "bad", "Python", "no Python 3.10", "install python3"), text


def test_no_venv(hosts, check, words):
    with instead(hosts, ROOT / ".venv"):
        code, blocks, text = check(*words)
    assert code == 1 and has(blocks["hostb"], "bad", "versions", ".venv: missing", "install.sh"), text


def test_other_code_settings_and_versions(hosts, check, words, tmp_path):
    (metadata,) = (ROOT / ".venv").glob("lib/python3*/site-packages/horovod-*.dist-info/METADATA")
    contents = {
        ROOT / "default.py": (ROOT / "default.py").read_text() + "\n",
        ROOT / "partial_fc" / "tiles.py": (ROOT / "partial_fc" / "tiles.py").read_text() + "\n",
        metadata: metadata.read_text().replace("\nVersion: 0.28.1", "\nVersion: 0.19.2"),
        ROOT / ".venv" / ".partial_fc" / "cuda.env": "PFC_WHEEL=mxnet-cu112\n",
    }
    with contextlib.ExitStack() as stack:
        for number, (path, content) in enumerate(contents.items()):
            (tmp_path / str(number)).write_text(content)
            stack.enter_context(instead(hosts, path, tmp_path / str(number)))
        code, blocks, text = check(*words)
    assert code == 1, text
    assert has(blocks["hostb"], "bad", "code", "not as here: .*partial_fc/layer/tiling.py", "git pull"), text
    assert has(blocks["hostb"], "bad", "settings", "not as here: default.py", "rsync"), text
    found = r"horovod 0\.19\.2, here 0\.28\.1; wheel mxnet-cu112, here mxnet"
    assert has(blocks["hostb"], "bad", "versions", found, r"rm -rf \S+/\.venv"), text
    assert has(blocks["hostb"], "bad", "processors", "no GPU, .* for 2 ranks", "GPU of its own"), text


def test_other_data(hosts, check, words, faces, tmp_path):
    content = bytearray(faces.read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "other.rec").write_bytes(content)
    with instead(hosts, faces, tmp_path / "other.rec"):
        code, blocks, text = check(*words)
    size = len(content)
    found = rf"{faces}: {size} bytes \(\w+\), on hosta {size} bytes"
    assert code == 1 and has(blocks["hostb"], "bad", "data", found, "on hosta: rsync"), text


@pytest.mark.parametrize("named", ["hosta:2,hostb:2", "hostb:2"])
def test_no_data(hosts, check, words, faces, named):
    with instead(hosts, faces.parent):
        code, blocks, text = check(*words, options=("--hosts", named))
    found = f"{faces}: No such file or directory"
    assert code == 1 and has(blocks["hostb"], "bad", "data", found, "on hosta: rsync .* or name the place"), text
    assert "Needs fixing: hostb (data). 1 of 2 hosts are ready." in text


def test_two_hosts_of_one_name(hosts, check, words):
    hosts.run("hostb", ["hostname", "hosta"])
    try:
        code, blocks, text = check(*words)
    finally:
        hosts.run("hostb", ["hostname", "hostb"])
    assert code == 1 and has(blocks["hostb"], "bad", "hostname", "calls itself hosta, as hosta does", "set-hostname"), (
        text
    )


def test_outputs_that_not_all_hosts_see(hosts, words, tmp_path):
    with instead(hosts, tmp_path / "models"):
        named = ("--hosts", "hosta:2,hostb:2")
        told, code, text = result_of(hosts, tmp_path, *named, words=[*words, "checkpoint_every=0"])
        assert (told, code) == ("10.77.0.0/24|hosta:2,hostb:2", 0), text
        assert has(text, "warn", "outputs", "hostb: in a folder of its own", "models_root="), text
        assert "[ok]" not in text, text
        told, code, text = result_of(hosts, tmp_path, *named, words=words)
    assert (told, code) == ("10.77.0.0/24|hosta:2", 1), text
    assert "[bad]" in text and "hostb (outputs)" in text, text


def test_outputs_that_cannot_be_written(hosts, check, words, tmp_path):
    with instead(hosts, tmp_path / "models"):
        hosts.run("hostb", ["mount", "-o", "remount,ro", tmp_path / "models"])
        code, blocks, text = check(*words)
    assert code == 1 and has(blocks["hostb"], "bad", "disk", "cannot be written to", "models_root="), text


def test_a_firewall_that_lets_only_ssh_through(hosts, check, words):
    # The kernel of hosta refuses to send to other ports of hostb, answers to hostb among them.
    rule = "to 10.77.0.2 ipproto tcp dport 1024-65534 unreachable".split()
    if hosts.run("hosta", ["ip", "rule", "add", *rule]).returncode:
        pytest.skip("this kernel has no rules for ports")
    try:
        code, blocks, text = check(*words)
    finally:
        hosts.run("hosta", ["ip", "rule", "del", *rule])
    found = r"hosta cannot reach it at 10\.77\.0\.2:\d+, though ssh works: Network is unreachable"
    assert code == 1 and has(blocks["hostb"], "bad", "network", found, "Open all TCP ports"), text
    found = r"hostb cannot reach it at 10\.77\.0\.1:\d+, though ssh works: no answer in 3 s"
    assert has(blocks["hosta"], "bad", "network", found, "Open all TCP ports"), text


def test_a_shell_that_talks_when_it_starts(hosts, check, words, tmp_path):
    (tmp_path / "bashrc").write_text("echo welcome; echo 'mind the step' >&2; printf 'no end of line'\n")
    with instead(hosts, BASHRC, tmp_path / "bashrc"):
        assert "welcome" in hosts.run("hosta", ["ssh", "hostb", "true"]).stdout
        code, blocks, text = check(*words)
    assert code == 0 and has(blocks["hostb"], "ok", "ssh", "as "), text


def test_a_port_that_mpirun_is_told(hosts, check, words):
    hosts.start_sshd("hostb", 2310)
    code, blocks, text = check(*words, OMPI_MCA_plm_rsh_args="-p 2310")
    assert code == 0 and has(blocks["hostb"], "ok", "ssh", "as "), text
    code, blocks, text = check(*words, OMPI_MCA_plm_rsh_args="-p 2311")
    found = r"no sshd at hostb port 2311 \(from OMPI_MCA_plm_rsh_args\)"
    assert code == 1 and has(blocks["hostb"], "bad", "ssh", found), text


def test_no_ssh_client(check, words, tmp_path):
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "dirname", "id"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    code, blocks, text = check(*words, PATH=str(tmp_path / "bin"))
    assert code == 1 and has(blocks["hostb"], "bad", "ssh", "no ssh client here", "openssh-client"), text


def test_words_that_cannot_be_read(hosts, check, tmp_path):
    (tmp_path / "hosts").write_text("hosta slots=2\nhostb slot=2\n")
    for options, words, told in (
        (("--hostfile", tmp_path / "hosts"), (), "line 2: cannot read 'slot'"),
        (("--hostfile", tmp_path / "none"), (), "none: No such file or directory"),
        (("--hosts", "hosta:2"), ("--dataset", "emor"), "unknown dataset 'emor': did you mean 'emore'?"),
        (("--hosts", ""), (), "cannot read '' of the hosts"),
        (("--hosst", "hosta:2"), (), "usage: bash setup-utils/check.sh"),
    ):
        code, _, text = check(*words, options=options)
        assert code == 2 and told in text and "Traceback" not in text, text
