"""The network interfaces of this host in the networks that the launcher has chosen."""

import subprocess
import sys

import pytest

from partial_fc.distributed.interfaces import (
    addresses_in,
    job_addresses,
    set_interface_to,
    set_launcher_interfaces,
    set_loopback_interface,
)
from paths import ROOT


@pytest.mark.parametrize(
    "given, named",
    [
        ({"OMPI_MCA_btl_tcp_if_include": "127.0.0.0/8"}, "=lo"),
        ({"OMPI_MCA_btl_tcp_if_include": "198.51.100.0/24,127.0.0.1/8"}, "=lo"),
        ({"HOROVOD_GLOO_IFACE": "lo"}, "=lo"),
        ({"OMPI_MCA_btl_tcp_if_include": "127.0.0.0/8", "NCCL_SOCKET_IFNAME": "eth5"}, "eth5"),
        ({}, None),
    ],
)
def test_nccl_gets_the_interfaces_of_this_host(given, named):
    set_launcher_interfaces(given)
    assert given.get("NCCL_SOCKET_IFNAME") == named


@pytest.mark.parametrize(
    "networks, code, error",
    [
        ("lo", 0, ""),
        ("ib9,127.0.0.0/8", 0, ""),
        ("ib9", 1, "no interface in the network ib9, but: "),
        ("198.51.100.0/24", 1, "no interface in the network 198.51.100.0/24, but: "),
        ("10.77.0.0/33", 1, "not a subnet"),
    ],
)
def test_the_command_checks_networks(networks, code, error):
    command = [sys.executable, "-m", "partial_fc.distributed.interfaces", networks]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == code and error in result.stderr and bool(error) == bool(result.stderr)


@pytest.mark.skipif(not addresses_in([]), reason="this host has only the loopback interface")
def test_the_interface_that_leads_to_a_host():
    (name, (address, *_)), *_ = addresses_in([]).items()
    environment = {}
    set_interface_to(environment, address)
    assert environment == {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}
    given = {"GLOO_SOCKET_IFNAME": "eth7"}
    set_interface_to(given, address)
    assert given == {"GLOO_SOCKET_IFNAME": "eth7", "NCCL_SOCKET_IFNAME": f"={name}"}


def test_the_addresses_of_the_job():
    assert job_addresses({"HOROVOD_GLOO_IFACE": "lo", "GLOO_SOCKET_IFNAME": "eth7"}) == ["127.0.0.1"]
    assert job_addresses({"GLOO_SOCKET_IFNAME": "eth7"}) == []
    everywhere = [address for addresses in addresses_in([]).values() for address in addresses]
    assert job_addresses({}) == everywhere and "127.0.0.1" not in everywhere


def test_one_host_uses_the_loopback_unless_the_user_has_chosen():
    environment, given, other = {}, {"NCCL_SOCKET_IFNAME": "eth7"}, {"GLOO_SOCKET_IFNAME": "eth7"}
    for each in (environment, given, other):
        set_loopback_interface(each)
    assert environment == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    assert given == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "eth7"}
    assert other == {"GLOO_SOCKET_IFNAME": "eth7", "NCCL_SOCKET_IFNAME": "=lo"}
