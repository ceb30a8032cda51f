"""Network interfaces of this host, in the networks that the launcher has chosen.

    python -m partial_fc.distributed.interfaces 10.0.0.0/24,ib0

exits with code 1 and an error unless this host has an interface in one of these networks.
"""

import ipaddress
import socket
import sys
from collections.abc import Mapping, MutableMapping, Sequence

from partial_fc.utils.text import say


def networks(environment: Mapping[str, str]) -> list[str]:
    """Returns the networks that the launcher has chosen: interfaces or subnets; empty if it has chosen none."""
    # mpirun passes its parameters on to the ranks; horovodrun over Gloo sets the second.
    return _split(environment.get("OMPI_MCA_btl_tcp_if_include") or environment.get("HOROVOD_GLOO_IFACE") or "")


def addresses_in(networks: Sequence[str]) -> dict[str, list[str]]:
    """Returns the IPv4 addresses of this host in some networks, interfaces or subnets, by interface.

    No networks are all addresses but those of the loopback interface. Raises ValueError if this host has no interface
    in any of the networks, or a subnet is malformed.
    """
    import psutil  # not where only the source address of this host is asked for, and nothing may be installed

    subnets = [_subnet(network) for network in networks if "/" in network]

    def is_chosen(name: str, address: str) -> bool:
        found = ipaddress.IPv4Address(address)
        return name in networks or any(found in subnet for subnet in subnets) or not (networks or found.is_loopback)

    interfaces = {
        name: [entry.address for entry in entries if entry.family == socket.AF_INET]
        for name, entries in psutil.net_if_addrs().items()
    }
    chosen = {name: [one for one in addresses if is_chosen(name, one)] for name, addresses in interfaces.items()}
    if networks and not any(chosen.values()):  # with hosts in several subnets, each has an interface in one of them
        known = ", ".join(" ".join([name, *(found or ["without an address"])]) for name, found in interfaces.items())
        raise ValueError(f"this host has no interface in the network {','.join(networks)}, but: {known}")
    return {name: addresses for name, addresses in chosen.items() if addresses}


def job_addresses(environment: Mapping[str, str]) -> list[str]:
    """Returns the IPv4 addresses of this host in the networks of the job; all but the loopback if none is chosen.

    Raises:
        ValueError: this host has no interface in the networks that the launcher has chosen.
    """
    chosen = networks(environment)
    gloo = [] if chosen else _split(environment.get("GLOO_SOCKET_IFNAME", ""))  # see name_interface_to
    found = addresses_in(chosen)
    return [address for name, addresses in found.items() if not gloo or name in gloo for address in addresses]


def name_interfaces(environment: MutableMapping[str, str]) -> None:
    """Sets NCCL_SOCKET_IFNAME to the interfaces of this host: NCCL takes names only, and they differ between hosts.

    Raises:
        ValueError: this host has no interface in the networks that the launcher has chosen.
    """
    chosen = networks(environment)
    if chosen and "NCCL_SOCKET_IFNAME" not in environment:
        environment["NCCL_SOCKET_IFNAME"] = "=" + ",".join(addresses_in(chosen))


def name_interface_to(environment: MutableMapping[str, str], host: str) -> None:
    """Sets GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, unless they are set, to the interface that leads to a host.

    Without it Gloo takes the address of this host's own name, which is 127.0.1.1 on many, and NCCL the first interface,
    which may be a bridge of containers. If the name of ``host`` has no address, or one of the loopback interface,
    the choice is left to them.
    """
    source = source_address(host)
    for name, addresses in addresses_in([]).items():
        if source in addresses:
            environment.setdefault("GLOO_SOCKET_IFNAME", name)
            environment.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


def name_loopback(environment: MutableMapping[str, str]) -> None:
    """Sets both variables, unless they are set, to the loopback interface: ranks of one host need no other.

    Raises:
        ValueError: this host has no loopback interface.
    """
    if "GLOO_SOCKET_IFNAME" not in environment or "NCCL_SOCKET_IFNAME" not in environment:
        (name, *_) = addresses_in(["127.0.0.0/8"])
        environment.setdefault("GLOO_SOCKET_IFNAME", name)
        environment.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


def source_address(host: str) -> str:
    """Returns the IPv4 address of this host on the route to another one; "" without a route."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stream:
            stream.connect((host, 9))  # sends nothing, but selects the route
            return stream.getsockname()[0]
    except OSError:
        return ""


def _split(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _subnet(text: str) -> ipaddress.IPv4Network:
    try:
        return ipaddress.IPv4Network(text, strict=False)
    except ValueError as error:
        raise ValueError(f"{text} is not a subnet such as 10.0.0.0/24: {error}") from None


def main() -> int:
    """Checks the networks of the command line, separated by commas; returns the exit code."""
    try:
        addresses_in(_split(sys.argv[1]))
    except ValueError as error:
        say(error, sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
