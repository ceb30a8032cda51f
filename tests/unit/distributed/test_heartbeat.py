"""The watch over other hosts, over the loopback interface, with real sockets and processes."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from partial_fc.distributed import heartbeat
from partial_fc.distributed.heartbeat import Contact, HostWatch, open_listener
from paths import ROOT
from virtual_hosts import unavailable

EDGE = """
import sys, time
from partial_fc.distributed import heartbeat
heartbeat.PERIOD = 0.05
edge = heartbeat.HostWatch.client(heartbeat.Contact(["127.0.0.1"], int(sys.argv[1]), sys.argv[2]), "b", "a")
edge.start()
while not edge._peers: time.sleep(0.01)
print("there", flush=True)
time.sleep(60)
"""
# In a network of its own, whose wire is cut after a second.
CUT = """
import subprocess, time
from partial_fc.distributed import heartbeat
heartbeat.PERIOD = 0.05
listener, contact = heartbeat.open_listener(["127.0.0.1"])
ends = [heartbeat.HostWatch.server(listener, contact, ["b"]), heartbeat.HostWatch.client(contact, "b", "a")]
for end in ends: end.start()
time.sleep(1)
print([end.silent(0.5) for end in ends])
subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
time.sleep(1)
print([end.silent(0.5) for end in ends], [end.gone() + end.held(0.5) for end in ends])
for end in ends: end.reset_timers()
print([end.silent(0.5) for end in ends])
time.sleep(1)
print([end.silent(0.5) for end in ends])
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(heartbeat, "PERIOD", 0.05)
    monkeypatch.setattr(heartbeat, "MEET", 0.5)


@pytest.fixture
def center():
    """A watch that waits for hosts b and c, and how it is reached here."""
    listener, contact = open_listener(["127.0.0.1"])
    watch = HostWatch.server(listener, contact, ["b", "c"])
    watch.start()
    return watch, contact


@pytest.fixture
def edge(center):
    """A process that is host b."""
    contact = center[1]
    command = [sys.executable, "-c", EDGE, str(contact.port), contact.token]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "there\n"
        yield process
        process.kill()


def greeted(contact, name="b"):
    """A connection that has come in by hand."""
    connection = socket.create_connection(("127.0.0.1", contact.port), timeout=5)
    connection.sendall(f"{contact.token} {name}\n".encode())
    return connection


def comes(condition, seconds=5):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "-")
def test_both_ends_notice_a_cut_wire_and_forgive_on_request():
    script = 'ip link set lo up && exec "$0" -c "$1"'
    command = ["unshare", "--net", "bash", "-c", script, sys.executable, CUT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines() == ["[[], []]", "[['b'], ['a']] [[], []]", "[[], []]", "[['b'], ['a']]"], (
        done.stderr
    )


def test_a_process_that_is_stopped_is_not_a_host_that_is_lost(center, edge):
    watch, _ = center
    assert comes(lambda: watch._peers)
    os.kill(edge.pid, signal.SIGSTOP)
    time.sleep(1.5)
    assert watch.silent(0.5) == [] and watch.gone() == [] and watch.held(0.5) == ["b"]
    os.kill(edge.pid, signal.SIGCONT)
    assert comes(lambda: watch.held(0.5) == [])


def test_who_is_killed_is_gone_and_who_says_goodbye_is_not(center, edge):
    watch, contact = center
    other = HostWatch.client(contact, "c", "a")
    other.start()
    assert comes(lambda: len(watch._peers) == 2 and other._peers)  # both ends, else there is nobody to say it to
    other.say_goodbye()
    edge.kill()
    assert comes(lambda: watch.gone() == ["b"] and not watch._peers)
    time.sleep(0.2)
    assert watch.gone() == ["b"] and watch.silent(0) == []


def test_a_center_that_is_killed_is_gone_for_the_edge():
    listener, contact = open_listener(["127.0.0.1"])
    edge = HostWatch.client(contact, "b", "a")
    edge.start()
    connection, _ = listener.accept()
    assert connection.recv(100) == f"{contact.token} b\n".encode()
    connection.send(b".")
    assert comes(lambda: edge._peers)
    connection.close()
    assert comes(lambda: edge.gone() == ["a"])


@pytest.mark.parametrize(
    "greeting",
    [b"wrong b\n", b"GET / HTTP/1.1\r\n", b"\xff\xfe b\n", b"{token} elsewhere\n", b"{token}\n", b"x" * 5000],
)
def test_a_stranger_is_sent_away(center, greeting):
    watch, contact = center
    with socket.create_connection(("127.0.0.1", contact.port), timeout=5) as stranger:
        stranger.sendall(greeting.replace(b"{token}", contact.token.encode()))
        assert _ends(stranger)
    assert not watch._peers


@pytest.mark.parametrize("silent", [True, False])
def test_a_stranger_who_takes_his_time_holds_nobody_up(center, silent):
    watch, contact = center
    with socket.create_connection(("127.0.0.1", contact.port), timeout=5) as stranger:
        friend = greeted(contact, "c")
        assert friend.recv(1) == b"."
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            assert friend.recv(1) == b"."  # while the stranger is there
            if not silent:
                stranger.send(b"a")
        assert _ends(stranger)
    assert list(watch._peers) == ["c"]


def _ends(connection):
    """Whether it is closed, or reset, within some seconds."""
    try:
        return connection.recv(10) == b""
    except ConnectionResetError:
        return True


def test_a_greeting_may_come_in_pieces(center):
    watch, contact = center
    connection = socket.create_connection(("127.0.0.1", contact.port), timeout=5)
    connection.sendall(contact.token.encode())
    time.sleep(0.1)
    connection.sendall(b" b\n")
    assert connection.recv(1) == b"." and list(watch._peers) == ["b"]


def test_an_edge_takes_the_address_that_answers_with_the_word(center, capfd):
    watch, contact = center
    closed = socket.create_server(("127.0.0.2", 0))
    port_of_nobody = closed.getsockname()[1]
    closed.close()
    lost = HostWatch.client(Contact(["127.0.0.2"], port_of_nobody, contact.token), "b", "a")
    lost.start()
    assert comes(lambda: lost.unreached)
    assert "127.0.0.2: " in lost.unreached and lost.silent(0) == []
    lost.join(0.3)
    assert "warning: host b does not reach rank 0 on a to watch over it" in capfd.readouterr().err
    # 127.0.0.2 is not refused by the center, which listens on every address.
    found = HostWatch.client(contact._replace(addresses=["255.255.255.255", "127.0.0.2"]), "b", "a")
    found.start()
    assert comes(lambda: found._peers) and found.unreached == ""
