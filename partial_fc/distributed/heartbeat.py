"""Detects hosts that have lost their power or their network link.

When packets no longer arrive, the kernel keeps a connection open for many minutes, and MPI and Gloo wait as long. So
one rank per host holds a connection to rank 0 on which both ends send a byte per second. A host counts as alive as
long as its kernel acknowledges these bytes, which it does even while the process is busy or stopped.

Rank 0 listens in the network of the job only, and only until all hosts have connected. It keeps only a few
unauthenticated connections, and closes them within seconds.
"""

import secrets
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from partial_fc.utils.text import say

PERIOD = 1.0  # seconds between two bytes
CONNECT_TIMEOUT = 5.0  # seconds to connect to an address, and to authenticate
_BYTE, _GOODBYE = b".", b"q"
_MAX_GREETING = 1024  # bytes
_MAX_UNKNOWN = 32  # unauthenticated connections, in addition to one per host
_TOKEN_BYTES = 16
_LAST_DATA = 52  # offset of tcpi_last_data_recv in Linux's struct tcp_info; tcpi_last_ack_recv follows, both in ms


class Contact(NamedTuple):
    """How to reach the server."""

    addresses: Sequence[tuple[str, int]]  # IPv4 address and port pairs; a client may reach only some of them
    token: str  # a secret of this job


class _Peer:
    """A connection to a host. Its name is "" until the host has authenticated."""

    def __init__(self, connection: socket.socket, name: str):
        self.connection, self.name, self.greeting = connection, name, b""
        self.since = time.monotonic()  # when the connection was opened or its timers were reset

    def silence(self) -> tuple[float, float]:
        """Returns the seconds since the other process last sent a byte, and since its kernel last acknowledged one."""
        try:
            tcp_info = self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # closed by the other thread
            return 0.0, 0.0
        age = time.monotonic() - self.since
        received, acknowledged = struct.unpack_from("II", tcp_info, _LAST_DATA)
        return min(age, received / 1000), min(age, acknowledged / 1000)

    def send(self, message: bytes) -> None:
        try:
            self.connection.send(message)
        except OSError:  # the buffer is full or the host is lost: silence() and _receive() detect that
            pass


class Heartbeat(threading.Thread):
    """The server on rank 0, or the client on the first rank of another host.

    Args:
        contact: how to reach the server, from open_listeners().
        hosts: names of the hosts to watch: all other hosts for the server, the server's host for a client.
        own_name: the host name of a client; "" for the server.
        listeners: the server's sockets, from open_listeners().
    """

    def __init__(
        self, contact: Contact, hosts: Sequence[str], own_name: str = "", listeners: Sequence[socket.socket] = ()
    ):
        super().__init__(name="heartbeat", daemon=True)
        self._contact, self._hosts, self._own_name = contact, hosts, own_name
        self._listeners, self._awaited = list(listeners), set(hosts)
        self._selector = selectors.DefaultSelector()
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, None)
        # Only this thread changes these two. The watchdog thread reads copies, as both may change during iteration.
        self._peers: dict[str, _Peer] = {}
        self._lost: list[str] = []

    def silent(self, seconds: float) -> list[str]:
        """Returns the connected hosts that have acknowledged nothing for more than ``seconds``."""
        return [name for name, (_, acknowledged) in self._silences() if acknowledged > seconds]

    def stopped(self, seconds: float) -> list[str]:
        """Returns the hosts that acknowledge bytes, but whose process is stopped: it sent none for ``seconds``."""
        return [name for name, (received, acknowledged) in self._silences() if received > seconds >= acknowledged]

    def lost(self) -> list[str]:
        """Returns the hosts whose process ended without close(): it was killed, or its host was rebooted."""
        return self._lost.copy()

    def reset_timers(self) -> None:
        """Restarts the timers of all hosts, after this process itself was stopped for a while."""
        for peer in self._peers.copy().values():
            peer.since = time.monotonic()

    def close(self) -> None:
        """Notifies the other hosts that this process ends normally, or after a report."""
        for peer in self._peers.copy().values():
            peer.send(_GOODBYE)

    def run(self) -> None:
        """Sends and receives until the process ends."""
        if self._own_name:
            self._connect()
        sent = 0.0
        while True:
            for key, _ in self._selector.select(max(0.0, sent + PERIOD - time.monotonic())):
                if key.data is None:
                    self._accept(key.fileobj)
                else:
                    self._receive(key.data)
            while self._listeners and not self._awaited:  # all hosts have connected, and none connects twice
                listener = self._listeners.pop()
                self._selector.unregister(listener)
                listener.close()
            if time.monotonic() - sent >= PERIOD:
                sent = time.monotonic()
                for peer in self._peers.values():
                    peer.send(_BYTE)
                for peer in self._unknown():
                    if sent - peer.since > CONNECT_TIMEOUT:
                        self._drop(peer)

    def _unknown(self) -> list[_Peer]:
        """Returns the connections that have not authenticated yet, oldest first."""
        peers = [key.data for key in self._selector.get_map().values()]
        return [peer for peer in peers if peer is not None and not peer.name]

    def _silences(self) -> list[tuple[str, tuple[float, float]]]:
        return sorted((name, peer.silence()) for name, peer in self._peers.copy().items())

    def _connect(self) -> None:
        contact, server = self._contact, self._hosts[0]
        errors = []
        for address, port in contact.addresses:
            try:
                connection = socket.create_connection((address, port), timeout=CONNECT_TIMEOUT)
                connection.sendall(f"{contact.token} {self._own_name}\n".encode())
                if not connection.recv(1):
                    raise ConnectionError("closed by the server")
            except OSError as error:
                errors.append(f"{address}: {error}")
                continue
            self._peers[server] = self._add(connection, server)
            return
        say(
            f"warning: no heartbeat between host {self._own_name} and rank 0 on {server}, so a lost link ends the job "
            f"only after step_timeout: cannot connect to {'; '.join(errors) or 'it: it has no IPv4 address'}",
            sys.stderr,
        )

    def _accept(self, listener: Any) -> None:
        try:
            self._add(listener.accept()[0])
        except OSError:  # the client is gone already, or too many files are open
            time.sleep(0.1)
        unknown = self._unknown()
        if len(unknown) > _MAX_UNKNOWN + len(self._hosts):
            self._drop(unknown[0])  # the oldest, because a host of the job authenticates at once

    def _add(self, connection: socket.socket, name: str = "") -> _Peer:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = _Peer(connection, name)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        return peer

    def _receive(self, peer: _Peer) -> None:
        try:
            data = peer.connection.recv(_MAX_GREETING)
        except ConnectionResetError:
            data = b""
        except OSError:  # no route, which counts as silence, or just closed by _accept
            return
        if not peer.name and data:
            self._authenticate(peer, data)
        elif not data or _GOODBYE in data:
            if peer.name and not data:
                self._lost.append(peer.name)
            self._drop(peer)

    def _authenticate(self, peer: _Peer, data: bytes) -> None:
        peer.greeting += data
        if b"\n" not in peer.greeting and len(peer.greeting) < _MAX_GREETING:
            return  # the rest is still to come
        token, _, name = peer.greeting.partition(b"\n")[0].partition(b" ")
        names = {known.encode(): known for known in self._hosts}
        if not secrets.compare_digest(token, self._contact.token.encode()) or name not in names:
            self._drop(peer)
            return
        peer.name = names[name]
        self._awaited.discard(peer.name)
        self._peers[peer.name] = peer
        peer.send(_BYTE)

    def _drop(self, peer: _Peer) -> None:
        self._peers.pop(peer.name, None)
        self._selector.unregister(peer.connection)
        peer.connection.close()


def open_listeners(addresses: Sequence[str]) -> tuple[list[socket.socket], Contact]:
    """Opens a socket at each address, on ports that the system chooses; returns the sockets and their Contact.

    Args:
        addresses: IPv4 addresses of this host in the network of the job.

    Raises:
        OSError: a socket cannot be opened.
    """
    listeners = [socket.create_server((address, 0), backlog=128) for address in addresses]
    names = [listener.getsockname() for listener in listeners]
    return listeners, Contact([(address, port) for address, port in names], secrets.token_hex(_TOKEN_BYTES))
