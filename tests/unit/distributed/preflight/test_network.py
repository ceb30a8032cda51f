"""Subnets of addresses, and hosts that others cannot reach."""

import pytest

from partial_fc.distributed.preflight.hostfile import Host
from partial_fc.distributed.preflight.network import network_row, subnet
from partial_fc.distributed.preflight.probe import RemoteProbe

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
def test_subnet_of_an_address(address, expected):
    assert subnet(INTERFACES, address) == expected


def test_the_host_that_others_cannot_reach_is_reported():
    probes = [RemoteProbe(Host(f"host{letter}", 1)) for letter in "abcdef"]
    points = {probe.host.name: ("10.0.0.1", 7) for probe in probes}
    for probe in probes:
        probe.facts = {"user": "me"}
        probe.targets = {name: point for name, point in points.items() if name != probe.host.name}
        probe.connections = {name: "no answer" if name == "hostb" else "" for name in probe.targets}
    rows = [network_row(probe, probes[0], probes) for probe in probes]
    assert [row.mark for row in rows] == ["ok", "bad", "ok", "ok", "ok", "ok"]
    assert rows[1].found == "hosta, hostc, hostd and 2 more cannot reach it at 10.0.0.1:7, though ssh works: no answer"
    probes[2].connections = {}
    assert network_row(probes[2], probes[0], probes).found == "the host stopped answering"
    assert network_row(probes[0], probes[0], probes[:1]) is None
