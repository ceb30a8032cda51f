"""The heartbeat between hosts, over the loopback interface, with real sockets and processes."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from partial_fc.distributed import heartbeat
from partial_fc.distributed.heartbeat import Contact, Heartbeat, open_listeners
from paths import ROOT
from virtual_hosts import unavailable
from waiting import LIMIT, happens

CLIENT = """
import sys, time
from partial_fc.distributed import heartbeat
heartbeat.PERIOD = 0.05
client = heartbeat.Heartbeat(heartbeat.Contact([("127.0.0.1", int(sys.argv[1]))], sys.argv[2]), ["a"], "b")
client.start()
while not client._peers: time.sleep(0.01)
print("connected", flush=True)
time.sleep(600)
"""
# Runs in its own network namespace, whose link is taken down.
CUT_WIRE = """
import subprocess, time
from partial_fc.distributed import heartbeat
heartbeat.PERIOD = 0.05
listeners, contact = heartbeat.open_listeners(["127.0.0.1"])
ends = [heartbeat.Heartbeat(contact, ["b"], listeners=listeners), heartbeat.Heartbeat(contact, ["a"], "b")]
SILENCE = 3
def silent():
    return [end.silent(SILENCE) for end in ends]
def wait_until(condition):
    while not condition(): time.sleep(0.01)
for end in ends: end.start()
wait_until(lambda: all(end._peers for end in ends))
print(silent())
subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
wait_until(lambda: silent() == [["b"], ["a"]])
print([end.lost() + end.stopped(SILENCE) for end in ends])
for end in ends: end.reset_timers()
print(silent())
wait_until(lambda: silent() == [["b"], ["a"]])
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(heartbeat, "PERIOD", 0.05)
    monkeypatch.setattr(heartbeat, "CONNECT_TIMEOUT", 0.5)


@pytest.fixture
def server():
    """A server that expects hosts b and c, and its Contact."""
    listeners, contact = open_listeners(["127.0.0.1"])
    watch = Heartbeat(contact, ["b", "c"], listeners=listeners)
    watch.start()
    return watch, contact


@pytest.fixture
def client(server):
    """A process that is host b."""
    contact = server[1]
    command = [sys.executable, "-c", CLIENT, str(contact.addresses[0][1]), contact.token]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "connected\n"
        yield process
        process.kill()


def connected(contact, greeting):
    """A connection that has sent a greeting."""
    connection = socket.create_connection(contact.addresses[0], timeout=LIMIT)
    connection.sendall(greeting.replace(b"TOKEN", contact.token.encode()))
    return connection


def _ends(connection):
    """Whether a connection is closed or reset."""
    try:
        return connection.recv(10) == b""
    except ConnectionResetError:
        return True


@pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "-")
def test_both_ends_detect_a_lost_link_and_reset_their_timers():
    script = 'ip link set lo up && exec "$0" -c "$1"'
    command = ["unshare", "--net", "bash", "-c", script, sys.executable, CUT_WIRE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stdout.split("\n")[:-1]) == (0, ["[[], []]"] * 3), done.stderr


def test_a_stopped_process_is_not_a_lost_host(server, client):
    watch, _ = server
    assert happens(lambda: watch._peers)
    os.kill(client.pid, signal.SIGSTOP)
    assert happens(lambda: watch.stopped(3) == ["b"])
    assert watch.silent(3) == [] and watch.lost() == []
    os.kill(client.pid, signal.SIGCONT)
    assert happens(lambda: watch.stopped(3) == [])


def test_a_killed_process_is_lost_and_one_that_says_goodbye_is_not(server, client):
    watch, contact = server
    other = Heartbeat(contact, ["a"], "c")
    other.start()
    assert happens(lambda: len(watch._peers) == 2 and other._peers)  # both ends are connected
    other.close()
    client.kill()
    assert happens(lambda: watch.lost() == ["b"] and not watch._peers)
    time.sleep(0.2)
    assert watch.lost() == ["b"] and watch.silent(0) == []


def test_a_killed_server_is_lost_for_the_client():
    listeners, contact = open_listeners(["127.0.0.1"])
    client = Heartbeat(contact, ["a"], "b")
    client.start()
    connection, _ = listeners[0].accept()
    assert connection.recv(100) == f"{contact.token} b\n".encode()
    connection.send(b".")
    assert happens(lambda: client._peers)
    connection.close()
    assert happens(lambda: client.lost() == ["a"])


@pytest.mark.parametrize(
    "greeting", [b"wrong b\n", b"\xff\xfe b\n", b"TOKEN elsewhere\n", b"TOKEN\n", b"x" * 5000, b"TOKEN"]
)
def test_a_client_that_does_not_authenticate_is_refused_and_delays_nobody(server, greeting):
    watch, contact = server
    with connected(contact, greeting) as unknown, connected(contact, b"TOKEN c\n") as friend:
        assert [friend.recv(1) for _ in range(4)] == [b"."] * 4
        assert _ends(unknown)
        assert list(watch._peers) == ["c"]


def test_greeting_and_goodbye_may_arrive_in_any_pieces(server):
    watch, contact = server
    with connected(contact, b"TOKEN") as connection:
        time.sleep(0.1)
        connection.sendall(b" b\n")
        assert connection.recv(1) == b"." and list(watch._peers) == ["b"]
        connection.sendall(b".q")
    assert happens(lambda: not watch._peers) and watch.lost() == []


def test_a_client_takes_the_address_that_answers(server, capfd):
    watch, contact = server
    # The server listens at its own address alone, so 127.0.0.2 refuses.
    refused = ("127.0.0.2", contact.addresses[0][1])
    Heartbeat(Contact([refused], contact.token), ["a"], "b").start()
    warning, printed = "warning: no heartbeat between host b and rank 0 on a, ", []
    assert happens(lambda: printed.append(capfd.readouterr().err) or "127.0.0.2: " in "".join(printed))
    assert "".join(printed).startswith(warning)
    addresses = [("255.255.255.255", 1), refused, *contact.addresses]
    found = Heartbeat(contact._replace(addresses=addresses), ["a"], "b")
    found.start()
    assert happens(lambda: found._peers) and capfd.readouterr().err == ""


def test_a_flood_takes_few_descriptors_and_keeps_no_host_out(server, monkeypatch):
    monkeypatch.setattr(heartbeat, "CONNECT_TIMEOUT", LIMIT)  # else silent connections end by themselves
    _, contact = server
    before = len(os.listdir("/proc/self/fd"))
    flood = [socket.create_connection(contact.addresses[0], timeout=LIMIT) for _ in range(200)]
    friend = connected(contact, b"TOKEN c\n")  # the server accepts it after the flood
    assert friend.recv(1) == b"." and _ends(flood[0])
    assert len(os.listdir("/proc/self/fd")) - before - len(flood) <= heartbeat._MAX_UNKNOWN + 5
    for connection in flood:
        connection.close()


def test_nobody_can_connect_once_all_hosts_have(server):
    _, contact = server
    friends = [connected(contact, b"TOKEN %s\n" % name) for name in (b"b", b"c")]
    assert all(friend.recv(1) == b"." for friend in friends)
    with pytest.raises(OSError):
        while True:
            socket.create_connection(contact.addresses[0], timeout=LIMIT).close()
    assert friends[0].recv(1) == b"."
