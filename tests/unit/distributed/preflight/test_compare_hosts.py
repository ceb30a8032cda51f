"""Rows of the table of hosts, from the facts of a host and those of this machine."""

import copy

import pytest

from partial_fc.distributed.preflight import compare
from partial_fc.distributed.preflight.compare import Reference, format_size
from partial_fc.distributed.preflight.job_requirements import Training
from partial_fc.distributed.preflight.row import Row, failed_checks, format_row
from partial_fc.distributed.preflight.software import TRAINERS

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


def rows(slots=2, training=TRAINING, trainer="mxnet", **changes):
    """{what: row} of a host that differs from this machine in these facts."""
    reference = Reference("/clone", FACTS, FACTS["data"], "hosta", training, TRAINERS[trainer])
    found = compare.rows("hostb", slots, {**copy.deepcopy(FACTS), **changes}, reference)
    return {row.what: row for row in found}


def test_equal_hosts():
    assert {row.mark for row in rows().values()} == {"ok"}
    assert "2.0 GiB" in rows()["data"].found and "no GPU, 8 CPUs, for 2 ranks" in rows()["processors"].found


@pytest.mark.parametrize("gpus, slots, mark", [(2, 2, "ok"), (2, 3, "bad"), (0, 3, "ok"), (0, 9, "warn")])
def test_pytorch_trains_on_the_cpu_of_a_host_without_gpus(gpus, slots, mark):
    found = rows(slots, trainer="torch", gpus=["H"] * gpus, versions={**FACTS["versions"], "wheel": "torch"})
    assert found["processors"].mark == mark


def test_the_environment_and_the_code_are_those_of_the_trainer():
    assert ".venv-torch: missing" in rows(trainer="torch", venv="missing")["versions"].found
    assert "setup-utils/install-torch.sh" in rows(trainer="torch", venv="missing")["versions"].fix


def test_the_port_of_the_first_host():
    assert compare.port_row(1234, FACTS) == Row("ok", "port", "1234 is free")
    used = compare.port_row(1234, {"failed": {"port": "Address already in use"}})
    assert used.mark == "bad" and "1234: Address already in use" in used.found and "--master_port" in used.fix


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
        ("memory", "warn", "512 MiB free", "end other programs", {"memory": {"free": GIB // 2, "total": GIB}}),
        ("disk", "warn", "1.0 GiB free of 100 GiB", "free space", {"disk": {**FACTS["disk"], "free": GIB}}),
        ("disk", "bad", "/models cannot be written", "models_root=", {"disk": {**FACTS["disk"], "writable": False}}),
        ("outputs", "bad", "not shared with this host", "models_root=", {"shared": False}),
        (
            "outputs",
            "warn",
            "not shared with this host",
            "models_root=",
            {"shared": False, "training": TRAINING._replace(checkpoints=False)},
        ),
        ("processors", "warn", "8 CPUs, for 9 ranks", "fewer slots", {"slots": 9}),
        ("processors", "bad", "4 x H, 8 CPUs, for 5 ranks", "its own GPU", {"slots": 5, **GPUS}),
    ],
)
def test_problems_of_a_host(what, mark, found, fix, changes):
    row = rows(**changes)[what]
    assert row.mark == mark and found in row.found and fix in row.fix, row


def test_as_many_ranks_as_gpus():
    assert rows(slots=4, **GPUS)["processors"].mark == "ok"


def test_a_drawn_data_set_may_be_missing_but_not_differ():
    drawn = TRAINING._replace(name="demo", drawn=True)
    none = {path: {"error": "No such file or directory"} for path in FACTS["data"]}
    assert rows(training=drawn, data=none)["data"].mark == "ok"
    other = {**FACTS["data"], "/data/train.rec": {"size": 1, "digest": "1"}}
    assert rows(training=drawn, data=other)["data"].mark == "bad"


def test_dummy_images_and_unknown_trainings_need_no_files():
    assert "no files" in rows(training=TRAINING._replace(needed=[], beside=[]), data={})["data"].found
    assert "data" not in rows(training=None, data={})


def test_clocks():
    assert compare.clock_row(7.0, 0.1).mark == "warn" and "7.0 s ahead" in compare.clock_row(7.0, 0.1).found
    assert "6.0 s behind" in compare.clock_row(-6.0, 0.5).found
    assert compare.clock_row(7.0, 3.0).mark == "ok"  # a slow answer is not precise
    assert compare.clock_row(0.02, 0.01) == Row("ok", "clock", "as here")


def test_format_of_a_row():
    row = Row("bad", "data", "nothing", "copy it")
    assert format_row(row) == ["[bad]   data         nothing", "                     -> copy it"]
    assert failed_checks([row, Row("warn", "disk", ""), Row("ok", "ssh", "")]) == ["data"]
    assert [format_size(n) for n in (0, 999, 1536, 200 * 2**20, 5 * 2**40)] == [
        "0 bytes",
        "999 bytes",
        "1.5 KiB",
        "200 MiB",
        "5120 GiB",
    ]
