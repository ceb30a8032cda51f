"""Which hosts of a job are lost: their power, or the network between.

The kernel keeps a connection for many minutes when no packet comes any more, and MPI and Gloo wait for as long. Here
one rank of each host holds a connection to rank 0, on which both say a byte a second. What counts is that the other
host's kernel acknowledges it: it does so for a process that is busy or stopped, too.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

PERIOD = 1.0  # seconds between two bytes
MEET = 5.0  # seconds to connect to an address, and to be answered there
_BYTE, _GOODBYE = b".", b"q"
_LONGEST = 1024  # bytes of a greeting
_TOKEN_BYTES = 16
_LAST_DATA = 52  # place of tcpi_last_data_recv in Linux's struct tcp_info; tcpi_last_ack_recv follows, milliseconds too


class Contact(NamedTuple):
    """How rank 0 is reached: the addresses of its host, any of which may be the one; a word that only the job knows."""

    addresses: Sequence[str]
    port: int
    token: str


class _Peer:
    """One end of a connection: its socket, the host there ("" before it has greeted), what it has said of that."""

    def __init__(self, connection: socket.socket, name: str):
        self.connection, self.name, self.greeting = connection, name, b""
        self.since = time.monotonic()

    def silence(self) -> tuple[float, float]:
        """Seconds since the other process has said anything, and since its kernel has acknowledged anything."""
        try:
            facts = self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # closed just now
            return 0.0, 0.0
        here = time.monotonic() - self.since
        said, acknowledged = struct.unpack_from("II", facts, _LAST_DATA)
        return min(here, said / 1000), min(here, acknowledged / 1000)

    def say(self, word: bytes) -> None:
        try:
            self.connection.send(word)
        except OSError:  # its buffer is full, or it is gone: silence() and _listen() see that
            pass


class HostWatch(threading.Thread):
    """One end of the watch, or the middle of it. Make one with server() or client(), then start() it.

    Attributes:
        unreached: why this edge cannot watch; empty as long as it can.
    """

    def __init__(self, contact: Contact, names: Sequence[str], own: str):
        super().__init__(name="host-watch", daemon=True)
        self.unreached = ""
        self._contact, self._names, self._own = contact, names, own
        self._selector = selectors.DefaultSelector()
        self._peers: dict[str, _Peer] = {}
        self._gone: list[str] = []
        self._lock = threading.Lock()

    @classmethod
    def server(cls, listener: socket.socket, contact: Contact, hosts: Sequence[str]) -> HostWatch:
        """Rank 0's, which hears all others.

        Args:
            listener: from open_listener().
            contact: likewise.
            hosts: names of the others.
        """
        watch = cls(contact, hosts, "")
        listener.setblocking(False)
        watch._selector.register(listener, selectors.EVENT_READ, None)
        return watch

    @classmethod
    def client(cls, contact: Contact, host: str, center: str) -> HostWatch:
        """Another host's, which hears rank 0.

        Args:
            contact: rank 0's.
            host: the name of this one.
            center: the name of rank 0's.
        """
        return cls(contact, [center], host)

    def silent(self, seconds: float) -> list[str]:
        """Names of the hosts that were there once, but have acknowledged nothing for so long."""
        return [name for name, (_, acknowledged) in self._silences() if acknowledged > seconds]

    def held(self, seconds: float) -> list[str]:
        """Names of the hosts that acknowledge, but whose rank has said nothing for so long: it is stopped."""
        return [name for name, (said, acknowledged) in self._silences() if said > seconds >= acknowledged]

    def _silences(self) -> list[tuple[str, tuple[float, float]]]:
        with self._lock:
            return sorted((name, peer.silence()) for name, peer in self._peers.items())

    def gone(self) -> list[str]:
        """Names of the hosts whose rank has ended without a goodbye: it was killed, or its host has started anew."""
        with self._lock:
            return list(self._gone)

    def reset_timers(self) -> None:
        """Counts from now on: this process itself was held for a while."""
        with self._lock:
            for peer in self._peers.values():
                peer.since = time.monotonic()

    def say_goodbye(self) -> None:
        """This process ends as it should, or has told why not."""
        with self._lock:
            for peer in self._peers.values():
                peer.say(_GOODBYE)

    def run(self) -> None:
        """Talks and listens until the process ends."""
        if self._own:
            self._meet()
        spoken = 0.0
        while True:
            for key, _ in self._selector.select(max(0.0, spoken + PERIOD - time.monotonic())):
                if key.data is None:
                    self._accept(key.fileobj)
                else:
                    self._listen(key.data)
            if time.monotonic() - spoken >= PERIOD:
                spoken = time.monotonic()
                for peer in [key.data for key in self._selector.get_map().values() if key.data is not None]:
                    if peer.name:
                        peer.say(_BYTE)
                    elif spoken - peer.since > MEET:
                        self._forget(peer)

    def _meet(self) -> None:
        contact, center = self._contact, self._names[0]
        problems = []
        for address in contact.addresses:
            try:
                connection = socket.create_connection((address, contact.port), timeout=MEET)
                connection.sendall(f"{contact.token} {self._own}\n".encode())
                if not connection.recv(1):
                    raise ConnectionError("closed at once")
            except OSError as error:
                problems.append(f"{address}: {error}")
                continue
            self._keep(_Peer(connection, center))
            return
        self.unreached = "; ".join(problems) or "it has no IPv4 address"
        print(
            f"warning: host {self._own} does not reach rank 0 on {center} to watch over it, so that a lost link ends "
            f"the job after step_timeout only ({self.unreached})",
            file=sys.stderr,
            flush=True,
        )

    def _accept(self, listener: Any) -> None:
        try:
            self._keep(_Peer(listener.accept()[0], ""))
        except OSError:  # it has gone again, or there are too many files
            time.sleep(0.1)

    def _keep(self, peer: _Peer) -> None:
        peer.connection.setblocking(False)
        peer.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(peer.connection, selectors.EVENT_READ, peer)
        if peer.name:
            with self._lock:
                self._peers[peer.name] = peer

    def _listen(self, peer: _Peer) -> None:
        try:
            words = peer.connection.recv(_LONGEST)
        except ConnectionResetError:
            words = b""
        except OSError:  # no route at the moment: that is silence
            return
        if not peer.name and words:
            self._greet(peer, words)
        elif not words or _GOODBYE in words:
            self._forget(peer, gone=not words)

    def _greet(self, peer: _Peer, words: bytes) -> None:
        peer.greeting += words
        if b"\n" not in peer.greeting and len(peer.greeting) < _LONGEST:
            return  # there is more to come
        token, _, name = peer.greeting.partition(b"\n")[0].partition(b" ")
        names = {known.encode(): known for known in self._names}
        if not secrets.compare_digest(token, self._contact.token.encode()) or name not in names:
            self._forget(peer)
            return
        peer.name = names[name]
        with self._lock:
            self._peers[peer.name] = peer
        peer.say(_BYTE)

    def _forget(self, peer: _Peer, gone: bool = False) -> None:
        with self._lock:
            if self._peers.pop(peer.name, None) is not None and gone:
                self._gone.append(peer.name)
        self._selector.unregister(peer.connection)
        peer.connection.close()


def open_listener(addresses: Sequence[str]) -> tuple[socket.socket, Contact]:
    """A socket at which the other hosts reach this one, at a port of the system's choice, and what they need to know.

    Args:
        addresses: IPv4, of this host, in the networks that the job uses.

    Raises:
        OSError: no socket.
    """
    listener = socket.create_server(("", 0), backlog=128)
    return listener, Contact(list(addresses), listener.getsockname()[1], secrets.token_hex(_TOKEN_BYTES))
