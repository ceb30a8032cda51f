"""The facts that a host reports, collected on this machine."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from partial_fc_tools.hosts import facts
from partial_fc_tools.hosts.facts import Listener
from paths import ROOT

ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
eth1\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
eth0\t0000A8C0\t0100000A\t0003\t0\t0\t0\t0000FFFF\t0\t0\t0
"""


@pytest.mark.parametrize(
    "address, network",
    [
        ("10.0.1.7", "10.0.0.0/16"),
        ("10.0.2.7", "10.0.2.0/24"),  # the smallest
        ("192.168.0.7", "192.168.0.7/32"),  # reached only through a gateway
        ("127.0.0.1", ""),
        ("", ""),
    ],
)
def test_network_of_an_address(tmp_path, monkeypatch, address, network):
    (tmp_path / "route").write_text(ROUTES)
    monkeypatch.setattr(facts, "ROUTES", tmp_path / "route")
    assert facts.network(address) == network


def test_digests_cover_only_programs(tmp_path):
    (tmp_path / "partial_fc" / "__pycache__").mkdir(parents=True)
    for name in (".a.py.swp", "a.py~", "a.py.orig", "__pycache__/a.pyc"):
        (tmp_path / "partial_fc" / name).write_text("no code")
    names = ["partial_fc/a.py", "mxnet/b.py", "pytorch/c.py", "setup-utils/d.sh"]
    names += ["config.sh", "config.py", "default.py", "train_memory.py", "train.py"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    expected = {name: hashlib.sha256(name.encode()).hexdigest()[:12] for name in names}
    assert facts.digests(str(tmp_path)) == expected


def test_versions_of_a_finished_installation(tmp_path):
    for name in ("mxnet_cu112-1.9.1", "torch-2.13.0+cpu", "other-1.0"):
        (tmp_path / "lib/python3.11/site-packages" / f"{name}.dist-info").mkdir(parents=True)
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.2\n")
    assert facts.versions(str(tmp_path)) == {}
    (tmp_path / ".partial_fc").mkdir()
    (tmp_path / ".partial_fc/ready").touch()
    assert facts.versions(str(tmp_path)) == {"Python": "3.11.2", "mxnet_cu112": "1.9.1", "torch": "2.13.0+cpu"}


def test_nvidia_smi_counts_the_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert facts.gpus() == 0
    lines = ["GPU 0: NVIDIA A100 (UUID: GPU-1)", "  MIG 1g.5gb Device 0: (UUID: MIG-1)", "GPU 1: V100 (UUID: GPU-2)"]
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert facts.gpus() == 2


def test_a_host_connects_to_the_machine_that_checks_and_back():
    port = Listener().server_address[1]
    assert facts.connection_error("127.0.0.1", port) == ""
    with socket.create_connection(("127.0.0.1", port), 10) as caller, socket.create_server(("", 0)) as closed:
        free = closed.getsockname()[1]
        closed.close()
        caller.sendall(f"{free}\n".encode())
        expected = f"{socket.gethostname()} cannot connect to 127.0.0.1:{free}: Connection refused\n"
        assert caller.makefile().read() == expected
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        error = pool.submit(facts.connection_error, "127.0.0.1", server.getsockname()[1])
        caller, _ = server.accept()
        with caller:
            assert int(caller.recv(10))
            caller.sendall(b"blocked\n")
            assert error.result() == "blocked"
    error = f"this host cannot connect to 127.0.0.1:{free}: Connection refused"
    assert facts.connection_error("127.0.0.1", free) == error


def test_hosts_connect_to_the_first_other_host_and_back():
    """The programs run on this machine as sshd would start them; the first one stays until the others have finished."""
    listener = Listener(address := Future())
    request = {"token": "pfc-1", "clone": "/none", "venv": "/none", "data": [], "marker": "/none"}

    def started(*first):
        words = json.dumps({**request, "port": listener.server_address[1], "first": first})
        environment = {**os.environ, "SSH_CONNECTION": "127.0.0.1 9 127.0.0.1 22"}
        command = [sys.executable, "-IS", facts.__file__, words]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def unreachable(program):
        return next(json.loads(line.split(" ", 1)[1])["unreachable"] for line in program.stdout if "pfc-1" in line)

    with started() as first:
        first_address = address.result(10)
        for _ in range(2):
            with started(first_address) as other:
                assert unreachable(other) == ""
        assert unreachable(first) == "" and first.poll() is None
        listener.finished.set()
    with started(first_address) as other:
        assert (
            unreachable(other)
            == f"this host cannot connect to {first_address[0]}:{first_address[1]}: Connection refused"
        )


@pytest.mark.parametrize(
    "program",
    [
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tools')!r}]; import partial_fc_tools.hosts.command",
        f"exec(open({facts.__file__!r}).read(), {{}})",
    ],
    ids=["the checks", "facts.py without the clone"],
)
def test_nothing_but_the_standard_library_is_needed(program):
    command = [sys.executable, "-ISB", "-c", program]  # -S leaves out site-packages
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
