"""Which hosts of a job have fallen silent: a lost link, a lost host.

The kernel keeps a connection for many minutes when no packet comes any more, and MPI and Gloo wait for as long. Here
one rank of each host holds a connection to rank 0, on which both say a byte a second.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import sys
import threading
import time
from typing import Any, Mapping, NamedTuple, Sequence

import psutil

PERIOD = 1.0  # seconds between two bytes
MEET = 5.0  # seconds to connect to an address, and to be answered there
_TOKEN_BYTES = 16


class Contact(NamedTuple):
    """How rank 0 is reached: the addresses of its host, any of which may be the one; a word that only the job knows."""

    addresses: Sequence[str]
    port: int
    token: str


class HostWatch(threading.Thread):
    """One end of the watch, or the middle of it. Make one with at_center() or at_edge(), then start() it.

    Attributes:
        unreached: why this edge cannot watch; empty as long as it can.
    """

    def __init__(self, connect: Contact | None, token: str, names: Mapping[str, str]):
        super().__init__(name="host-watch", daemon=True)
        self.unreached = ""
        self._connect, self._token, self._names = connect, token, names
        self._selector = selectors.DefaultSelector()
        self._heard: dict[str, float] = {}
        self._lock = threading.Lock()

    @classmethod
    def at_center(cls, listener: socket.socket, contact: Contact, hosts: Sequence[str]) -> HostWatch:
        """Rank 0's, which hears all others.

        Args:
            listener: from open_listener().
            contact: likewise.
            hosts: names of the others.
        """
        watch = cls(None, contact.token, {name: name for name in hosts})
        listener.setblocking(False)
        watch._selector.register(listener, selectors.EVENT_READ, None)
        return watch

    @classmethod
    def at_edge(cls, contact: Contact, host: str, center: str) -> HostWatch:
        """Another host's, which hears rank 0.

        Args:
            contact: rank 0's.
            host: the name of this one.
            center: the name of rank 0's.
        """
        return cls(contact, contact.token, {host: center})

    def silent(self, seconds: float) -> list[str]:
        """Names of the hosts that were heard once, but not for so long; one that has said goodbye is not silent."""
        now = time.monotonic()
        with self._lock:
            return sorted(name for name, heard in self._heard.items() if now - heard > seconds)

    def forgive(self) -> None:
        """Counts from now on: this process itself was held for a while."""
        with self._lock:
            self._heard = dict.fromkeys(self._heard, time.monotonic())

    def run(self) -> None:
        """Talks and listens until the process ends."""
        if self._connect is not None:
            self._meet(self._connect)
        spoken = 0.0
        while True:
            for key, _ in self._selector.select(max(0.0, spoken + PERIOD - time.monotonic())):
                if key.data is None:
                    self._accept(key.fileobj)
                else:
                    self._listen(key.fileobj, key.data)
            if time.monotonic() - spoken >= PERIOD:
                spoken = time.monotonic()
                for key in list(self._selector.get_map().values()):
                    if key.data is not None:
                        _say(key.fileobj)

    def _meet(self, contact: Contact) -> None:
        ((own, center),) = self._names.items()
        problems = []
        for address in contact.addresses:
            try:
                connection = socket.create_connection((address, contact.port), timeout=MEET)
                connection.sendall(f"{contact.token} {own}\n".encode())
                if not connection.recv(1):
                    raise ConnectionError("closed at once")
            except OSError as error:
                problems.append(f"{address}: {error}")
                continue
            self._keep(connection, center)
            return
        self.unreached = "; ".join(problems) or "it has no IPv4 address"
        print(
            f"warning: host {own} does not reach rank 0 on {center} to watch over it, so that a lost link ends the job "
            f"after step_timeout only ({self.unreached})",
            file=sys.stderr,
            flush=True,
        )

    def _accept(self, listener: Any) -> None:
        connection, _ = listener.accept()
        connection.settimeout(MEET)
        try:
            word, _, name = connection.makefile("r", encoding="utf-8").readline().strip().partition(" ")
            if not secrets.compare_digest(word.encode(), self._token.encode()) or name not in self._names:
                raise ConnectionError("a stranger")
        except (OSError, ValueError):
            connection.close()
            return
        self._keep(connection, name)
        _say(connection)

    def _keep(self, connection: socket.socket, name: str) -> None:
        connection.setblocking(False)
        with self._lock:
            self._heard[name] = time.monotonic()
        self._selector.register(connection, selectors.EVENT_READ, name)

    def _listen(self, connection: Any, name: str) -> None:
        try:
            words = connection.recv(4096)
        except (BlockingIOError, InterruptedError):
            return
        except ConnectionResetError:
            words = b""
        except OSError:  # no route at the moment: that is silence
            return
        with self._lock:
            if words:
                self._heard[name] = time.monotonic()
                return
            self._heard.pop(name, None)  # its process has ended, which others look after
        self._selector.unregister(connection)
        connection.close()


def open_listener() -> tuple[socket.socket, Contact]:
    """A socket at which the other hosts reach this one, at a port of the system's choice, and what they need to know.

    Raises:
        OSError: no socket.
    """
    listener = socket.create_server(("", 0), backlog=128)
    return listener, Contact(_addresses(), listener.getsockname()[1], secrets.token_hex(_TOKEN_BYTES))


def _addresses() -> list[str]:
    found = [entry for entries in psutil.net_if_addrs().values() for entry in entries]
    return [entry.address for entry in found if entry.family == socket.AF_INET and not entry.address.startswith("127.")]


def _say(connection: Any) -> None:
    try:
        connection.send(b".")
    except OSError:  # its buffer is full, or it is gone: whoever listens sees that
        pass
