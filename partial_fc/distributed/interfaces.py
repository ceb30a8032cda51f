"""Network interfaces of this host, restricted to the networks that the launcher has chosen.

    python -m partial_fc.distributed.interfaces 10.0.0.0/24,ib0

exits with code 1 and an error if this host has no interface in any of the networks.
"""

import ipaddress
import socket
import sys
from collections.abc import Mapping, MutableMapping, Sequence

from partial_fc.utils.text import say


def networks(environment: Mapping[str, str]) -> list[str]:
    """Returns the launcher's choice of networks, as interface names or subnets; empty if it has made none."""
    # mpirun passes its parameters to the ranks in the first variable; horovodrun over Gloo sets the second.
    return _split(environment.get("OMPI_MCA_btl_tcp_if_include") or environment.get("HOROVOD_GLOO_IFACE") or "")


def addresses_in(networks: Sequence[str]) -> dict[str, list[str]]:
    """Returns the IPv4 addresses of this host, by interface name.

    Args:
        networks: interface names or subnets; without any, all interfaces except loopback.

    Raises:
        ValueError: this host has no interface in any of the networks, or a subnet is malformed.
    """
    import psutil  # here, because source_address() also runs on hosts without packages

    subnets = [_subnet(network) for network in networks if "/" in network]

    def is_chosen(name: str, text: str) -> bool:
        address = ipaddress.IPv4Address(text)
        if not networks:
            return not address.is_loopback
        return name in networks or any(address in subnet for subnet in subnets)

    interfaces = {
        name: [entry.address for entry in entries if entry.family == socket.AF_INET]
        for name, entries in psutil.net_if_addrs().items()
    }
    chosen = {name: [one for one in addresses if is_chosen(name, one)] for name, addresses in interfaces.items()}
    if networks and not any(chosen.values()):  # one suffices: the subnets may be of different hosts
        known = ", ".join(" ".join([name, *(found or ["without an address"])]) for name, found in interfaces.items())
        raise ValueError(f"this host has no interface in the network {','.join(networks)}, but: {known}")
    return {name: addresses for name, addresses in chosen.items() if addresses}


def job_addresses(environment: Mapping[str, str]) -> list[str]:
    """Returns this host's IPv4 addresses in the job's networks; if none are chosen, all except loopback.

    Raises:
        ValueError: this host has no interface in the networks that the launcher has chosen.
    """
    chosen = networks(environment)
    gloo = [] if chosen else _split(environment.get("GLOO_SOCKET_IFNAME", ""))  # set by set_interface_to
    by_name = addresses_in(chosen)
    return [address for name, addresses in by_name.items() if not gloo or name in gloo for address in addresses]


def set_launcher_interfaces(environment: MutableMapping[str, str]) -> None:
    """Sets NCCL_SOCKET_IFNAME, unless it is set, to the interfaces in the launcher's networks.

    NCCL accepts no subnets, and interface names differ between hosts.

    Raises:
        ValueError: this host has no interface in the networks that the launcher has chosen.
    """
    chosen = networks(environment)
    if chosen and "NCCL_SOCKET_IFNAME" not in environment:
        environment["NCCL_SOCKET_IFNAME"] = "=" + ",".join(addresses_in(chosen))


def set_interface_to(environment: MutableMapping[str, str], host: str) -> None:
    """Sets GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, unless they are set, to the interface on the route to ``host``.

    By default Gloo uses the address of this host's own name, which is often 127.0.1.1, and NCCL uses the first
    interface, which may be a container bridge. These defaults remain if ``host`` does not resolve or is this host.
    """
    source = source_address(host)
    for name, addresses in addresses_in([]).items():
        if source in addresses:
            environment.setdefault("GLOO_SOCKET_IFNAME", name)
            environment.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


def set_loopback_interface(environment: MutableMapping[str, str]) -> None:
    """Sets GLOO_ and NCCL_SOCKET_IFNAME, unless set, to the loopback interface, for a job on one host.

    Raises:
        ValueError: this host has no loopback interface.
    """
    if "GLOO_SOCKET_IFNAME" not in environment or "NCCL_SOCKET_IFNAME" not in environment:
        (name, *_) = addresses_in(["127.0.0.0/8"])
        environment.setdefault("GLOO_SOCKET_IFNAME", name)
        environment.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


def source_address(host: str) -> str:
    """Returns the IPv4 address of this host on the route to ``host``; "" without a route."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stream:
            stream.connect((host, 9))  # only selects the route: UDP sends nothing here
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
    """Checks the comma-separated networks of the command line; returns the exit code."""
    try:
        addresses_in(_split(sys.argv[1]))
    except ValueError as error:
        say(error, sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
