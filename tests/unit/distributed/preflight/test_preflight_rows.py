"""What is said of a host, from the facts it answered: rows, networks, and the facts themselves on this machine."""

import copy
import hashlib
import json
import socket
import subprocess

import pytest

from partial_fc.distributed.preflight import (
    compare,
    facts,
)
from partial_fc.distributed.preflight.compare import Reference, size
from partial_fc.distributed.preflight.hostfile import Host
from partial_fc.distributed.preflight.job_requirements import Training
from partial_fc.distributed.preflight.network import row, subnet
from partial_fc.distributed.preflight.probe import RemoteProbe
from partial_fc.distributed.preflight.row import Row, failed_checks, format_row

GIB = 2**30
TRAINING = Training("faces", ["/data/train.rec", "/data/train.idx"], ["/data/property"], False, "/models", True)
FACTS = {
    "failed": {},
    "code": {"run.sh": "1", "partial_fc/a.py": "2"},
    "settings": {"config.py": "3", "default.py": "4"},
    "venv": "",
    "versions": {"Python": "3.10.1", "mxnet": "1.9.1", "Open MPI": "4.1.8", "wheel": "mxnet"},
    "data": {
        "/data/train.rec": {"size": 2 * GIB, "digest": "5"},
        "/data/train.idx": {"size": 100, "digest": "6"},
        "/data/property": {"error": "No such file or directory"},
    },
    "memory": {"free": 8 * GIB, "total": 16 * GIB},
    "disk": {"folder": "/models", "free": 50 * GIB, "total": 100 * GIB, "type": "ext4", "writable": True},
    "shared": True,
    "gpus": [],
    "cores": {"processors": 8, "cores": 4},
}


def rows(slots=2, training=TRAINING, **changes):
    """{what: row} of a host that is as the first one but for these changes."""
    standard = Reference("/clone", FACTS, FACTS["data"], "hosta", training)
    found = compare.rows("hostb", slots, {**copy.deepcopy(FACTS), **changes}, standard)
    return {row.what: row for row in found}


def test_a_host_that_is_as_it_should_be():
    assert {row.mark for row in rows().values()} == {"ok"}
    assert "2.0 GiB" in rows()["data"].found and "no GPU, 8 CPUs, for 2 ranks" in rows()["processors"].found


GPUS = {"gpus": ["H"] * 4, "versions": {**FACTS["versions"], "wheel": "mxnet-cu112"}}


@pytest.mark.parametrize(
    "what, mark, found, fix, changes",
    [
        ("clone", "bad", "none at /clone", "hostb:/clone/", {"code": {}}),
        ("code", "bad", "run.sh", "git pull", {"code": {**FACTS["code"], "run.sh": "9"}}),
        ("code", "bad", "a, b, c and 1 more", "rsync", {"code": {**FACTS["code"], "a": "", "b": "", "c": "", "d": ""}}),
        ("code", "bad", "PermissionError", "", {"code": None, "failed": {"code": "PermissionError: no"}}),
        ("settings", "bad", "not as here: config.py", "rsync", {"settings": {"config.py": "", "default.py": "4"}}),
        ("versions", "bad", ".venv: missing", "bash /clone/setup-utils/install.sh", {"venv": "missing"}),
        (
            "versions",
            "bad",
            "mxnet 1.6.0, here 1.9.1",
            "rm -rf /clone/.venv",
            {"versions": {**FACTS["versions"], "mxnet": "1.6.0"}},
        ),
        (
            "data",
            "bad",
            "/data/train.idx: 99 bytes (6), on hosta 100 bytes (6)",
            "on hosta: rsync -a --checksum /data/ hostb:/data/",
            {"data": {**FACTS["data"], "/data/train.idx": {"size": 99, "digest": "6"}}},
        ),
        (
            "data",
            "bad",
            "/data/train.rec: Permission denied",
            "rsync -a --checksum /data/",
            {"data": {**FACTS["data"], "/data/train.rec": {"error": "Permission denied"}}},
        ),
        (
            "data",
            "bad",
            "/data/property: 3 bytes (7), on hosta No such file",
            "rsync",
            {"data": {**FACTS["data"], "/data/property": {"size": 3, "digest": "7"}}},
        ),
        ("data", "bad", "no answer in 7 s", "", {"data": None, "failed": {"data": "no answer in 7 s"}}),
        ("memory", "warn", "512 MiB free", "end what", {"memory": {"free": GIB // 2, "total": GIB}}),
        ("disk", "warn", "1.0 GiB free of 100 GiB", "room", {"disk": {**FACTS["disk"], "free": GIB}}),
        ("disk", "bad", "/models cannot be written", "models_root=", {"disk": {**FACTS["disk"], "writable": False}}),
        ("outputs", "bad", "a folder of its own", "models_root=", {"shared": False}),
        (
            "outputs",
            "warn",
            "a folder of its own",
            "models_root=",
            {"shared": False, "training": TRAINING._replace(checkpoints=False)},
        ),
        ("processors", "warn", "8 CPUs, for 9 ranks", "fewer slots", {"slots": 9}),
        ("processors", "bad", "4 x H, 8 CPUs, for 5 ranks", "GPU of its own", {"slots": 5, **GPUS}),
    ],
)
def test_what_is_wrong_with_a_host(what, mark, found, fix, changes):
    row = rows(**changes)[what]
    assert row.mark == mark and found in row.found and fix in row.fix, row


def test_as_many_ranks_as_gpus():
    assert rows(slots=4, **GPUS)["processors"].mark == "ok"


def test_a_data_set_that_is_drawn_may_be_missing_but_not_be_another():
    drawn = TRAINING._replace(name="demo", drawn=True)
    none = {path: {"error": "No such file or directory"} for path in FACTS["data"]}
    assert rows(training=drawn, data=none)["data"].mark == "ok"
    other = {**FACTS["data"], "/data/train.rec": {"size": 1, "digest": "1"}}
    assert rows(training=drawn, data=other)["data"].mark == "bad"


def test_dummy_images_and_words_that_are_not_known_need_no_files():
    assert "no files" in rows(training=TRAINING._replace(needed=[], beside=[]), data={})["data"].found
    assert "data" not in rows(training=None, data={})


def test_clocks():
    assert compare.clock(7.0, 0.1).mark == "warn" and "7.0 s ahead" in compare.clock(7.0, 0.1).found
    assert "6.0 s behind" in compare.clock(-6.0, 0.5).found
    assert compare.clock(7.0, 3.0).mark == "ok"  # a slow answer tells little
    assert compare.clock(0.02, 0.01) == Row("ok", "clock", "as here")


INTERFACES = [
    ["lo", "127.0.0.1", 8],
    ["eth0", "10.1.2.3", 20],
    ["eth0", "10.9.0.1", 24],
    ["eth0", "fd00::3", 64],
    ["docker0", "172.17.0.1", 16],
]


@pytest.mark.parametrize(
    "address, expected",
    [
        ("10.1.2.3", ("10.1.2.3", "10.1.0.0/20")),
        ("10.9.0.1", ("10.9.0.1", "10.9.0.0/24")),
        ("fd00::3", ("10.1.2.3", "10.1.0.0/20")),
        ("127.0.0.1", None),
        ("192.0.2.1", None),
    ],
)
def test_the_network_of_an_address(address, expected):
    assert subnet(INTERFACES, address) == expected


def test_who_is_blamed_for_a_wall_between_hosts():
    visits = [RemoteProbe(Host(f"host{letter}", 1)) for letter in "abcdef"]
    points = {visit.host.name: ("10.0.0.1", 7) for visit in visits}
    for visit in visits:
        visit.facts = {"user": "me"}
        visit.tried = {name: point for name, point in points.items() if name != visit.host.name}
        visit.reached = {name: "no answer" if name == "hostb" else "" for name in visit.tried}
    found = [row(visit, visits[0], visits) for visit in visits]
    assert [one.mark for one in found] == ["ok", "bad", "ok", "ok", "ok", "ok"]
    assert found[1].found == "hosta, hostc, hostd and 2 more cannot reach it at 10.0.0.1:7, though ssh works: no answer"
    visits[2].reached = {}
    assert row(visits[2], visits[0], visits).found == "it answers no more"
    assert row(visits[0], visits[0], visits[:1]) is None


def test_a_row_as_it_is_printed():
    row = Row("bad", "data", "nothing", "copy it")
    assert format_row(row) == ["[bad]   data         nothing", "                     -> copy it"]
    assert failed_checks([row, Row("warn", "disk", ""), Row("ok", "ssh", "")]) == ["data"]
    assert [size(n) for n in (0, 999, 1536, 200 * 2**20, 5 * 2**40)] == [
        "0 bytes",
        "999 bytes",
        "1.5 KiB",
        "200 MiB",
        "5120 GiB",
    ]


def test_addresses_are_those_that_ip_tells():
    done = subprocess.run(["ip", "-j", "addr"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip("no ip here")
    expected = {
        (link["ifname"], entry["local"], entry["prefixlen"])
        for link in json.loads(done.stdout)
        for entry in link.get("addr_info", [])
    }
    assert set(facts.interfaces()) == expected


def test_gpus_that_nvidia_smi_tells():
    told = [
        "GPU 0: NVIDIA A100 (UUID: GPU-1)",
        "  MIG 1g.5gb Device 0: (UUID: MIG-1)",
        "GPU 1: Tesla V100 (UUID: GPU-2)",
    ]
    assert facts.gpu_names("\n".join(told)) == ["NVIDIA A100", "Tesla V100"]
    assert facts.gpu_names("No devices found.\n") == []


@pytest.mark.parametrize("length", [0, 1, 3 << 20, 10**9])
def test_what_is_read_of_a_file(length):
    pieces = facts.pieces(length)
    assert pieces[0][0] == 0 and sum(pieces[-1]) == length
    assert all(0 <= offset and offset + count <= length for offset, count in pieces)
    assert sum(count for _, count in pieces) == min(length, 3 << 20)


def test_a_sample_tells_files_apart(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(bytes(9 << 20))
    assert facts.sample(str(first))["size"] == 9 << 20
    for place in (0, (1 << 20) - 1, (9 << 20) - 1):
        content = bytearray(9 << 20)
        content[place] = 1
        second.write_bytes(content)
        assert facts.sample(str(first)) != facts.sample(str(second))
    assert facts.sample(str(tmp_path / "none")) == {"error": "No such file or directory"}


def test_digests_are_of_text_alone(tmp_path):
    (tmp_path / "part" / "__pycache__").mkdir(parents=True)
    (tmp_path / "part" / "a.py").write_text("a")
    for name in (".a.py.swp", "a.py~", "a.py.orig"):
        (tmp_path / "part" / name).write_text("an editor's")
    (tmp_path / "part" / "__pycache__" / "a.pyc").write_text("machine code")
    (tmp_path / "run.sh").write_text("b")
    digests = {name: hashlib.sha256(text).hexdigest()[:12] for name, text in (("part/a.py", b"a"), ("run.sh", b"b"))}
    assert facts.code_digests(str(tmp_path), ["part", "run.sh", "none"]) == digests


def test_a_fact_that_does_not_come_leaves_the_others():
    given, failed = facts.in_time(
        {"now": lambda: 1, "late": lambda: facts.time.sleep(3), "never": lambda: {}["x"]}, 0.2
    )
    assert given == {"now": 1}
    assert failed == {"late": "no answer in 0.2 s", "never": "KeyError: 'x'"}


def test_who_listens_is_reached_and_others_are_not():
    port = facts.listen("word")
    assert facts.reach("127.0.0.1", port, "word") == ""
    assert facts.reach("127.0.0.1", port, "other") == "another machine answers"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert "refused" in facts.reach("127.0.0.1", free.getsockname()[1], "word")
