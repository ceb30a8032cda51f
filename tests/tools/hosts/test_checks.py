"""Rows that tests/commands/test_check_hosts.py cannot cause on one machine."""

import socket

import pytest

import default
from open_files import few_open_files
from partial_fc.training.resume import writes_checkpoints
from partial_fc.utils.check_rows import Row, failed_checks
from partial_fc.utils.config import parse_assignments
from partial_fc_tools.hosts.checks import Job, rows
from partial_fc_tools.hosts.command import probe_all
from partial_fc_tools.hosts.hostfile import Host
from partial_fc_tools.hosts.job_requirements import TRAINERS, Training
from partial_fc_tools.hosts.probe import Probe

FACTS = {
    "code": {"run.sh": "1"},
    "versions": {"mxnet": "1.9.1"},
    "data": {"/data/train.rec": 3, "/data/property": "No such file"},
    "outputs": True,
    "gpus": 0,
    "address": "10.0.0.2",
    "port": 7,
}
TRAINING = Training(["/data/train.rec"], ["/data/property"], "/models")


def table(changes, training=TRAINING, slots=2):
    """{what: row} of hosts a, b, ... whose facts differ in these changes; a is this machine."""
    probes = [Probe(Host(name, slots), local=name == "a") for name, _ in zip("abcdefgh", changes)]
    for probe, change in zip(probes, changes):
        probe.facts = {**FACTS, "hostname": probe.host.name, **change}
        probe.targets = {other.host.name: ("10.0.0.1", 7) for other in probes if other is not probe}
        probe.connections = dict.fromkeys(probe.targets, "")
    job = Job("/clone", probes, probes[0], training, TRAINERS["mxnet"])
    return [{row.what: row for row in rows(probe, job)} for probe in probes], probes, job


CUDA, TORCH, CPU = {"mxnet_cu112": "1.9.1"}, {"torch": "2.13.0"}, {"torch": "2.13.0+cpu"}


@pytest.mark.parametrize(
    "versions, gpus, mark",
    [(CUDA, 2, "ok"), (CUDA, 1, "bad"), (CUDA, 0, "bad"), (TORCH, 1, "bad"), (TORCH, 0, "ok"), (CPU, 1, "ok")],
)
def test_a_rank_needs_its_own_gpu_unless_it_trains_on_the_cpu(versions, gpus, mark):
    ((found,), *_) = table([{"versions": versions, "gpus": gpus}])
    assert found["GPUs"].mark == mark, found


def test_files_that_may_be_missing_are_missing_everywhere():
    (first, other), *_ = table([{}, {"data": {**FACTS["data"], "/data/property": 9}}])
    assert first["data"].found == "1 file, 3 bytes"
    assert other["data"].found == "/data/property: 9 bytes, on a No such file"


def test_the_advice_on_an_output_folder_that_is_not_shared_turns_all_checkpoints_off():
    (_, other), *_ = table([{}, {"outputs": False}])
    off = parse_assignments(other["outputs"].fix.partition("off: ")[2].split())
    config = default.generate_config(changes=off, recipe={"checkpoint_minutes": 30})
    assert not writes_checkpoints(config)


def test_no_host_has_the_data_or_needs_it():
    missing = {"data": dict.fromkeys(FACTS["data"], "No such file")}
    (first, other), *_ = table([missing, missing])
    assert first["data"] == Row(
        "bad", "data", "/data/train.rec: No such file", "set data_root= or rec= to its location"
    )
    for training in (None, Training([], [], "")):
        (first, other), *_ = table([{"data": {}}] * 2, training)
        assert "data" not in other


def test_more_hosts_are_probed_than_files_may_be_open():
    """This machine by several names, each probed by a program of its own."""
    with few_open_files(20):
        probes = probe_all([Host(f"127.0.0.{number}", 1) for number in range(1, 13)], None, TRAINERS["mxnet"], 0)
    assert [probe.facts.get("hostname") for probe in probes] == [socket.gethostname()] * 12
    assert not any(probe.error for probe in probes) and not any(probes[-1].connections.values())


@pytest.mark.parametrize("away, others", [("a", "b, c, d"), ("b", "a, c, d"), ("f", "a, b, c")])
def test_the_host_that_others_cannot_reach_is_reported(away, others):
    _, probes, job = table([{}] * 6)
    for probe in probes:
        probe.connections = {name: "no answer" if name == away else "" for name in probe.targets}
    found = {probe.host.name: {row.what: row for row in rows(probe, job)}["network"] for probe in probes}
    assert [name for name, row in found.items() if row.mark == "bad"] == [away]
    expected = f"{others} and 2 others cannot reach it at 10.0.0.1:7, though ssh works: no answer"
    assert found[away].found == expected
    probes[2].connections = {}
    assert failed_checks(rows(probes[2], job)) == ["network"]
