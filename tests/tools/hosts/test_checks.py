"""Problems that tests/commands/test_check_hosts.py cannot cause on one machine."""

import socket

import pytest

import default
from open_files import few_open_files
from partial_fc.training.saved_training import writes_checkpoints
from partial_fc.utils.config import parse_assignments
from partial_fc_tools.hosts.checks import Job, problems
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
    "unreachable": "",
}
TRAINING = Training(["/data/train.rec"], ["/data/property"], "/models")


def table(*changes, training=TRAINING):
    """Returns each host's problems {what: row}. The hosts' facts differ in the changes; the first is this machine."""
    probes = [Probe(Host(f"127.0.0.{number}", 2)) for number, _ in enumerate(changes, start=1)]
    for probe, change in zip(probes, changes):
        probe.facts = {**FACTS, "hostname": probe.host.name, **change}
    job = Job("/clone", probes, probes[0], training, TRAINERS["mxnet"])
    return [{row.what: row for row in problems(probe, job)} for probe in probes]


CUDA, TORCH, CPU = {"mxnet_cu112": "1.9.1"}, {"torch": "2.13.0"}, {"torch": "2.13.0+cpu"}


@pytest.mark.parametrize(
    "versions, gpus, expected",
    [
        (CUDA, (2, 1), [0, 1]),
        (CUDA, (0, 0), [1, 1]),
        (TORCH, (1, 0), [1, 1]),
        (TORCH, (0, 0), [0, 0]),
        (CPU, (1, 0), [0, 0]),
    ],
)
def test_a_rank_needs_its_own_gpu_unless_all_train_on_cpus(versions, gpus, expected):
    found = table(*({"versions": versions, "gpus": count} for count in gpus))
    assert ["GPUs" in rows for rows in found] == list(map(bool, expected)), found


def test_optional_files_must_be_missing_on_all_hosts():
    first, other = table({}, {"data": {**FACTS["data"], "/data/property": 9}})
    assert "data" not in first and other["data"].found == "/data/property: 9 bytes, on 127.0.0.1 No such file"


def test_a_missing_data_set_and_a_training_without_files():
    missing = {"data": dict.fromkeys(FACTS["data"], "No such file")}
    first, _ = table(missing, missing)
    assert first["data"].found == "/data/train.rec: No such file"
    assert table({"data": {}}, {"data": {}}, training=Training()) == [{}, {}]


def test_the_fix_for_an_unshared_output_folder_turns_all_checkpoints_off():
    _, other = table({}, {"outputs": False})
    off = parse_assignments(other["outputs"].fix.partition("off: ")[2].split())
    config = default.generate_config(changes=off, recipe={"checkpoint_minutes": 30})
    assert not writes_checkpoints(config)


@pytest.mark.parametrize("away", [0, 1, 5])
def test_the_host_that_is_not_connected_with_another_is_reported(away):
    changes = [{"unreachable": "timed out"} if number == away else {} for number in range(6)]
    assert [list(rows) for rows in table(*changes)] == [["network"] if number == away else [] for number in range(6)]


def test_more_hosts_are_probed_than_files_may_be_open(monkeypatch):
    """The hosts are this machine under several names; the user has logged in to it by ssh."""
    monkeypatch.setenv("SSH_CONNECTION", "127.0.0.1 9 127.0.0.1 22")
    with few_open_files(20):
        probes = probe_all([Host(f"127.0.0.{number}", 1) for number in range(1, 13)], Training(), TRAINERS["mxnet"])
    assert [probe.facts.get("hostname") for probe in probes] == [socket.gethostname()] * 12
    assert not any(probe.error or probe.facts["address"] for probe in probes)
