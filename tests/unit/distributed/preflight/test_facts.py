"""The facts that a host reports, collected on this machine."""

import hashlib
import json
import shutil
import socket
import subprocess
import sys

import pytest

from partial_fc.distributed.preflight import facts
from partial_fc.utils.memory import free_memory
from paths import ROOT


def test_addresses_equal_those_of_ip():
    if not shutil.which("ip"):
        pytest.skip("the program ip is not installed")
    done = subprocess.run(["ip", "-j", "addr"], capture_output=True, text=True, check=True)
    expected = {
        (link["ifname"], entry["local"], entry["prefixlen"])
        for link in json.loads(done.stdout)
        for entry in link.get("addr_info", [])
    }
    assert set(facts.interfaces()) == expected


def test_gpu_names_of_nvidia_smi():
    output = [
        "GPU 0: NVIDIA A100 (UUID: GPU-1)",
        "  MIG 1g.5gb Device 0: (UUID: MIG-1)",
        "GPU 1: Tesla V100 (UUID: GPU-2)",
    ]
    assert facts.gpu_names("\n".join(output)) == ["NVIDIA A100", "Tesla V100"]
    assert facts.gpu_names("No devices found.\n") == []


@pytest.mark.parametrize("length", [0, 1, 3 << 20, 10**9])
def test_parts_of_a_file_to_read(length):
    pieces = facts.pieces(length)
    assert pieces[0][0] == 0 and sum(pieces[-1]) == length
    assert all(0 <= offset and offset + count <= length for offset, count in pieces)
    assert sum(count for _, count in pieces) == min(length, 3 << 20)


def test_samples_of_different_files_differ(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(bytes(9 << 20))
    assert facts.sample(str(first))["size"] == 9 << 20
    for place in (0, (1 << 20) - 1, (9 << 20) - 1):
        content = bytearray(9 << 20)
        content[place] = 1
        second.write_bytes(content)
        assert facts.sample(str(first)) != facts.sample(str(second))
    assert facts.sample(str(tmp_path / "none")) == {"error": "No such file or directory"}


def test_digests_are_of_the_code_alone(tmp_path):
    (tmp_path / "part" / "__pycache__").mkdir(parents=True)
    (tmp_path / "part" / "a.py").write_text("a")
    for name in (".a.py.swp", "a.py~", "a.py.orig"):
        (tmp_path / "part" / name).write_text("an editor's")
    (tmp_path / "part" / "__pycache__" / "a.pyc").write_text("machine code")
    (tmp_path / "run.sh").write_text("b")
    digests = {name: hashlib.sha256(text).hexdigest()[:12] for name, text in (("part/a.py", b"a"), ("run.sh", b"b"))}
    assert facts.code_digests(str(tmp_path), ["part", "run.sh", "none"]) == digests


def test_a_job_that_fails_or_hangs_does_not_affect_the_others():
    results, failed = facts.run_jobs(
        {"now": lambda: 1, "late": lambda: facts.time.sleep(3), "never": lambda: {}["x"]}, 0.2
    )
    assert results == {"now": 1}
    assert failed == {"late": "no answer in 0.2 s", "never": "KeyError: 'x'"}


def test_connections():
    port = facts.listen("token", 0)
    assert facts.connection_error("127.0.0.1", port, "token") == ""
    assert facts.connection_error("127.0.0.1", port, "other") == "another machine answers"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert "refused" in facts.connection_error("127.0.0.1", free.getsockname()[1], "token")


CACHE = "anon 1\n{0}inactive_file 20000\n{0}active_file 7000\n"


@pytest.mark.parametrize(
    "files, free, total",
    [
        ({}, 1_024_000, 2_048_000),
        ({"memory.max": "max", "memory.current": "400000"}, 1_024_000, 2_048_000),
        ({"memory.max": "500000", "memory.current": "400000", "memory.stat": CACHE.format("")}, 127_000, 500_000),
        (
            {
                "memory/memory.limit_in_bytes": "500000",
                "memory/memory.usage_in_bytes": "400000",
                "memory/memory.stat": CACHE.format("total_") + "inactive_file 1\nactive_file 1",
            },
            127_000,
            500_000,
        ),
        ({"memory.max": "500", "memory.current": "600", "memory.stat": "anon 600\n"}, 0, 500),
    ],
)
def test_memory_equals_that_of_utils(tmp_path, files, free, total):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  2000 kB\nMemAvailable:  1000 kB\nHugePages_Total: 0\n")
    for name, content in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content.rstrip() + "\n")
    assert facts.memory(str(tmp_path)) == {"free": free, "total": total}
    assert free_memory(tmp_path) == free


@pytest.mark.parametrize(
    "program",
    [
        f"import sys; sys.path.insert(0, {str(ROOT)!r});"
        "import partial_fc.distributed.preflight.command, partial_fc.utils.tables",
        f"exec(open({facts.__file__!r}).read(), {{}})",
    ],
    ids=["the checks", "facts.py without the clone"],
)
def test_nothing_but_the_standard_library_is_needed(program):
    command = [sys.executable, "-ISB", "-c", program]  # -S leaves out site-packages
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
