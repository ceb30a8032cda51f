"""The networks that connect the hosts of a training, and whether ports other than ssh's are open between them."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import Any

from .probe import RemoteProbe, run_in_threads
from .row import Row

NAMED = 3  # hosts named in a row; more are counted


def subnet(interfaces: Sequence[Sequence[Any]], address: str) -> tuple[str, str] | None:
    """(IPv4 address, its subnet) of the interface with an address; None if there is none, and for the loopback.

    For an IPv6 address it is the first IPv4 address of the interface: MPI uses TCP over IPv4.
    """
    device = next((name for name, own, _ in interfaces if own == address), None)
    same = [(own, prefix) for name, own, prefix in interfaces if name == device and ":" not in own]
    same.sort(key=lambda entry: entry[0] != address)
    for own, prefix in same:
        network = ipaddress.ip_interface(f"{own}/{prefix}").network
        if not network.is_loopback:
            return own, str(network)
    return None


def source_address(address: str) -> str:
    """The address of this machine on the route to another one, without sending anything; empty without a route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as stream:
            stream.connect((address, 9))
            return stream.getsockname()[0]
    except OSError:
        return ""


def remote_answers(local: RemoteProbe, probes: Sequence[RemoteProbe]) -> list[RemoteProbe]:
    """The probes of other hosts that have facts."""
    return [probe for probe in probes if probe is not local and probe.facts]


def ssh_address(probe: RemoteProbe) -> str:
    """The address at which the host accepted the ssh connection, or the one that ssh called if sshd hides it."""
    connection = probe.facts["connection"]
    return connection[2] if len(connection) == 4 else probe.call.hostname if probe.call else ""


def subnets(local: RemoteProbe, probes: Sequence[RemoteProbe]) -> list[str]:
    """The subnets, each once, of both ends of the ssh connections to the other hosts."""
    found = []
    for probe in remote_answers(local, probes):
        address = ssh_address(probe)
        for host, own in ((probe, address), (local, source_address(address))):
            interface = subnet(host.facts.get("interfaces", []), own)
            if interface:
                found.append(interface[1])
    return list(dict.fromkeys(found))


def try_connections(local: RemoteProbe, probes: Sequence[RemoteProbe], deadline: float) -> None:
    """Let every host, this one included, connect to every other at the address that ssh uses, on an ephemeral port."""
    others = remote_answers(local, probes)
    points = {}
    for probe in others:
        interface = subnet(probe.facts.get("interfaces", []), ssh_address(probe))
        points[probe] = (interface[0] if interface else ssh_address(probe), probe.facts["port"])
    if not others or not local.facts:
        return
    plan = {local: {probe.host.name: point for probe, point in points.items()}}
    for probe in others:
        plan[probe] = {other.host.name: points[other] for other in others if other is not probe}
        plan[probe][local.host.name] = (source_address(points[probe][0]), local.facts["port"])
    run_in_threads(lambda probe: probe.try_connections(plan[probe]), plan, deadline)


def network_row(probe: RemoteProbe, local: RemoteProbe, probes: Sequence[RemoteProbe]) -> Row | None:
    """Whether the other hosts can connect to this one; None if there is no other."""
    others = [other for other in {local: None, **dict.fromkeys(remote_answers(local, probes))} if other is not probe]
    others = [other for other in others if probe.host.name in other.targets]
    if not others:
        return None
    if not probe.connections:
        return Row("bad", "network", "the host stopped answering", "run the check again")
    blocked = [other for other in others if other.connections.get(probe.host.name)]
    if not blocked:
        return Row("ok", "network", f"reached by {_names(others)}, on ephemeral ports")
    address, port = blocked[0].targets[probe.host.name]
    reason = blocked[0].connections[probe.host.name]
    found = f"{_names(blocked)} cannot reach it at {address}:{port}, though ssh works: {reason}"
    return Row("bad", "network", found, "does a firewall allow only ssh? Open all TCP ports between the hosts")


def _names(probes: Sequence[RemoteProbe]) -> str:
    names = [probe.host.name for probe in probes]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
