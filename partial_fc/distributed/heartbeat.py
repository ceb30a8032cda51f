"""Detects hosts that a job has lost: their power, or the network between.

The kernel keeps a connection for many minutes when no packet arrives any more, and MPI and Gloo wait as long. Here
one rank of each host holds a connection to rank 0, on which both ends send a byte a second. What counts is that the
kernel of the other host acknowledges it: it does so for a process that is busy or stopped, too.

Rank 0 listens in the network of the job only, and only until all hosts have connected. Of connections that have not
sent the token it keeps a few, for some seconds.
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
CONNECT_TIMEOUT = 5.0  # seconds to connect to an address, and to authenticate there
_BYTE, _GOODBYE = b".", b"q"
_MAX_GREETING = 1024  # bytes
_MAX_UNKNOWN = 32  # connections without a token, beside one of each host
_TOKEN_BYTES = 16
_LAST_DATA = 52  # offset of tcpi_last_data_recv in Linux's struct tcp_info; tcpi_last_ack_recv follows, both in ms


class Contact(NamedTuple):
    """How to reach the server."""

    addresses: Sequence[tuple[str, int]]  # IPv4 and port, of its host; any of them may be the one that answers
    token: str  # a secret that only this job knows


class _Peer:
    """One connection to the host ``name``, which is "" until it has sent its greeting."""

    def __init__(self, connection: socket.socket, name: str):
        self.connection, self.name, self.greeting = connection, name, b""
        self.since = time.monotonic()  # when the connection was made or its timers were reset

    def silence(self) -> tuple[float, float]:
        """Seconds since the other process sent anything, and since its kernel acknowledged anything."""
        try:
            tcp_info = self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # just closed
            return 0.0, 0.0
        age = time.monotonic() - self.since
        received, acknowledged = struct.unpack_from("II", tcp_info, _LAST_DATA)
        return min(age, received / 1000), min(age, acknowledged / 1000)

    def send(self, message: bytes) -> None:
        try:
            self.connection.send(message)
        except OSError:  # its buffer is full, or the host is lost: silence() and _receive() detect that
            pass


class Heartbeat(threading.Thread):
    """The server on rank 0, or a client on the first rank of another host.

    Args:
        contact: of the server, from open_listeners().
        hosts: names of those that it watches: all others for the server, that of rank 0 for a client.
        own_name: of the host of a client.
        listeners: of the server, from open_listeners().

    Attributes:
        connect_error: why this client could not connect; "" otherwise.
    """

    def __init__(
        self, contact: Contact, hosts: Sequence[str], own_name: str = "", listeners: Sequence[socket.socket] = ()
    ):
        super().__init__(name="heartbeat", daemon=True)
        self.connect_error = ""
        self._contact, self._names, self._own_name = contact, hosts, own_name
        self._selector = selectors.DefaultSelector()
        self._listeners, self._awaited = list(listeners), set(hosts)
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, None)
        self._peers: dict[str, _Peer] = {}
        self._lost: list[str] = []
        self._lock = threading.Lock()

    def silent(self, seconds: float) -> list[str]:
        """Returns the hosts that were connected, but have acknowledged nothing for longer than ``seconds``."""
        return [name for name, (_, acknowledged) in self._silences() if acknowledged > seconds]

    def stopped(self, seconds: float) -> list[str]:
        """Returns the hosts that acknowledge, but whose process has sent nothing for ``seconds``: it is stopped."""
        return [name for name, (received, acknowledged) in self._silences() if received > seconds >= acknowledged]

    def lost(self) -> list[str]:
        """Returns the hosts whose process ended without `close`: it was killed, or its host was restarted."""
        with self._lock:
            return list(self._lost)

    def reset_timers(self) -> None:
        """Counts the silence of all hosts from now on, after this process itself was stopped for a while."""
        with self._lock:
            for peer in self._peers.values():
                peer.since = time.monotonic()

    def close(self) -> None:
        """Notifies the other hosts that this process ends as it should, or has reported an error."""
        with self._lock:
            for peer in self._peers.values():
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
            while self._listeners and not self._awaited:  # a host connects once
                listener = self._listeners.pop()
                self._selector.unregister(listener)
                listener.close()
            if time.monotonic() - sent >= PERIOD:
                sent = time.monotonic()
                for peer in self._connections():
                    if peer.name:
                        peer.send(_BYTE)
                    elif sent - peer.since > CONNECT_TIMEOUT:
                        self._drop(peer)

    def _connections(self) -> list[_Peer]:
        """All of them, the oldest first."""
        return [key.data for key in self._selector.get_map().values() if key.data is not None]

    def _silences(self) -> list[tuple[str, tuple[float, float]]]:
        with self._lock:
            return sorted((name, peer.silence()) for name, peer in self._peers.items())

    def _connect(self) -> None:
        contact, server = self._contact, self._names[0]
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
            self._add(_Peer(connection, server))
            return
        self.connect_error = "; ".join(errors) or "it has no IPv4 address"
        say(
            f"warning: no heartbeat between host {self._own_name} and rank 0 on {server}, so a lost link ends the job "
            f"only after step_timeout: cannot connect to {self.connect_error}",
            sys.stderr,
        )

    def _accept(self, listener: Any) -> None:
        try:
            self._add(_Peer(listener.accept()[0], ""))
        except OSError:  # it was closed again, or too many files are open
            time.sleep(0.1)
        unknown = [peer for peer in self._connections() if not peer.name]
        if len(unknown) > _MAX_UNKNOWN + len(self._names):
            self._drop(unknown[0])  # not the newest: a host of the job sends its token at once

    def _add(self, peer: _Peer) -> None:
        peer.connection.setblocking(False)
        peer.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(peer.connection, selectors.EVENT_READ, peer)
        if peer.name:
            with self._lock:
                self._peers[peer.name] = peer

    def _receive(self, peer: _Peer) -> None:
        try:
            data = peer.connection.recv(_MAX_GREETING)
        except ConnectionResetError:
            data = b""
        except OSError:  # no route at the moment: counts as silence; or closed by _accept just now
            return
        if not peer.name and data:
            self._authenticate(peer, data)
        elif not data or _GOODBYE in data:
            self._drop(peer, lost=not data)

    def _authenticate(self, peer: _Peer, data: bytes) -> None:
        peer.greeting += data
        if b"\n" not in peer.greeting and len(peer.greeting) < _MAX_GREETING:
            return  # incomplete
        token, _, name = peer.greeting.partition(b"\n")[0].partition(b" ")
        names = {known.encode(): known for known in self._names}
        if not secrets.compare_digest(token, self._contact.token.encode()) or name not in names:
            self._drop(peer)
            return
        peer.name = names[name]
        self._awaited.discard(peer.name)
        with self._lock:
            self._peers[peer.name] = peer
        peer.send(_BYTE)

    def _drop(self, peer: _Peer, lost: bool = False) -> None:
        with self._lock:
            if self._peers.pop(peer.name, None) is not None and lost:
                self._lost.append(peer.name)
        self._selector.unregister(peer.connection)
        peer.connection.close()


def open_listeners(addresses: Sequence[str]) -> tuple[list[socket.socket], Contact]:
    """Opens a socket at each address, at ports of the system's choice; returns them, and what the clients need.

    ``addresses`` are IPv4, of this host, in the network that the job uses. Raises OSError if one cannot be opened.
    """
    listeners = [socket.create_server((address, 0), backlog=128) for address in addresses]
    names = [listener.getsockname() for listener in listeners]
    return listeners, Contact([(address, port) for address, port in names], secrets.token_hex(_TOKEN_BYTES))
