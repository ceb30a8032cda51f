"""By which networks the hosts of a training reach each other, and whether they do on ports other than ssh's."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import Any

from .probe import RemoteProbe, side_by_side
from .row import Row

NAMED = 3  # hosts named in a row; more are counted


def subnet(interfaces: Sequence[Sequence[Any]], address: str) -> tuple[str, str] | None:
    """(IPv4 address, its subnet) of the interface that has an address; None for none, and for the loopback.

    An IPv6 address stands for the first IPv4 address of its interface: MPI's TCP here speaks IPv4.
    """
    device = next((name for name, own, _ in interfaces if own == address), None)
    same = [(own, prefix) for name, own, prefix in interfaces if name == device and ":" not in own]
    same.sort(key=lambda entry: entry[0] != address)
    for own, prefix in same:
        network = ipaddress.ip_interface(f"{own}/{prefix}").network
        if not network.is_loopback:
            return own, str(network)
    return None


def way_to(address: str) -> str:
    """This host's address on the way to another; sends nothing. Empty where there is no way."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return probe.getsockname()[0]
    except OSError:
        return ""


def answering(here: RemoteProbe, visits: Sequence[RemoteProbe]) -> list[RemoteProbe]:
    """The other hosts whose facts are known."""
    return [visit for visit in visits if visit is not here and visit.facts]


def server(visit: RemoteProbe) -> str:
    """The address at which ssh came in there; where the server there does not tell, the one it was called at."""
    connection = visit.facts["connection"]
    return connection[2] if len(connection) == 4 else visit.call.hostname if visit.call else ""


def networks(here: RemoteProbe, visits: Sequence[RemoteProbe]) -> list[str]:
    """The subnets, each once, by which ssh came to the other hosts and left this one."""
    found = []
    for visit in answering(here, visits):
        address = server(visit)
        for host, own in ((visit, address), (here, way_to(address))):
            place = subnet(host.facts.get("interfaces", []), own)
            if place:
                found.append(place[1])
    return list(dict.fromkeys(found))


def try_each_other(here: RemoteProbe, visits: Sequence[RemoteProbe], until: float) -> None:
    """Has every host, this one too, connect to every other at the address that ssh takes, on a port of its own."""
    others = answering(here, visits)
    points = {}
    for visit in others:
        place = subnet(visit.facts.get("interfaces", []), server(visit))
        points[visit] = (place[0] if place else server(visit), visit.facts["port"])
    if not others or not here.facts:
        return
    plan = {here: {visit.host.name: point for visit, point in points.items()}}
    for visit in others:
        plan[visit] = {other.host.name: points[other] for other in others if other is not visit}
        plan[visit][here.host.name] = (way_to(points[visit][0]), here.facts["port"])
    side_by_side(lambda visit: visit.look_around(plan[visit]), plan, until)


def row(visit: RemoteProbe, here: RemoteProbe, visits: Sequence[RemoteProbe]) -> Row | None:
    """How the other hosts reach this one; None where there is no other."""
    others = [other for other in {here: None, **dict.fromkeys(answering(here, visits))} if other is not visit]
    others = [other for other in others if visit.host.name in other.tried]
    if not others:
        return None
    if not visit.reached:
        return Row("bad", "network", "it answers no more", "look at it again")
    cut = [other for other in others if other.reached.get(visit.host.name)]
    if not cut:
        return Row("ok", "network", f"reached by {_names(others)}, on ports of the system's choice")
    address, port = cut[0].tried[visit.host.name]
    why = cut[0].reached[visit.host.name]
    found = f"{_names(cut)} cannot reach it at {address}:{port}, though ssh works: {why}"
    return Row("bad", "network", found, "a firewall that lets only ssh through? Open all TCP ports between the hosts")


def _names(visits: Sequence[RemoteProbe]) -> str:
    names = [visit.host.name for visit in visits]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
