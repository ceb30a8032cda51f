"""The watch over other hosts, over the loopback interface, with real sockets."""

import socket
import time

import pytest

from partial_fc import host_watch
from partial_fc.host_watch import Contact, HostWatch, open_listener


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(host_watch, "PERIOD", 0.05)
    monkeypatch.setattr(host_watch, "MEET", 0.5)


@pytest.fixture
def center():
    """A watch that waits for hosts b and c, and how it is reached here."""
    listener, contact = open_listener()
    watch = HostWatch.at_center(listener, contact, ["b", "c"])
    watch.start()
    return watch, contact._replace(addresses=["127.0.0.1"])


def edge_of(contact, name="b"):
    """A connection that has come in by hand, so that it may fall silent."""
    connection = socket.create_connection(("127.0.0.1", contact.port), timeout=5)
    connection.sendall(f"{contact.token} {name}\n".encode())
    return connection


def comes(condition, seconds=5):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_two_ends_that_talk_are_not_silent(center):
    watch, contact = center
    edge = HostWatch.at_edge(contact, "b", "a")
    edge.start()
    assert comes(lambda: watch._heard and edge._heard)
    time.sleep(1)
    assert watch.silent(0.5) == edge.silent(0.5) == [] and edge.unreached == ""
    assert watch.silent(0) == ["b"] and edge.silent(0) == ["a"]


def test_who_falls_silent_is_named_and_who_never_came_is_not(center):
    watch, contact = center
    connection = edge_of(contact)
    assert connection.recv(1) == b"."
    assert comes(lambda: watch.silent(0.3) == ["b"])
    watch.forgive()
    assert watch.silent(0.3) == []
    assert comes(lambda: watch.silent(0.3) == ["b"])
    connection.send(b".")  # it is back
    assert comes(lambda: watch.silent(0.3) == [])


def test_who_says_goodbye_is_not_silent(center):
    watch, contact = center
    connection = edge_of(contact)
    assert comes(lambda: watch.silent(0.3) == ["b"])
    connection.close()
    assert comes(lambda: watch.silent(0.3) == [])


@pytest.mark.parametrize("greeting", [b"a wrong word b\n", b"GET / HTTP/1.1\r\n", b"\xff\xfe\n", b""])
def test_a_stranger_is_sent_away_and_the_others_are_heard(center, greeting):
    watch, contact = center
    friend = edge_of(contact, "c")
    assert friend.recv(1) == b"."
    with socket.create_connection(("127.0.0.1", contact.port), timeout=5) as stranger:
        stranger.sendall(greeting)
        assert stranger.recv(10) == b""
    assert comes(lambda: watch.silent(0.3) == ["c"])


def test_a_host_of_another_name_is_a_stranger(center):
    watch, contact = center
    assert edge_of(contact, "elsewhere").recv(10) == b""
    assert watch.silent(0) == []


def test_an_edge_takes_the_address_that_answers_with_the_word(center, capfd):
    watch, contact = center
    closed = socket.create_server(("127.0.0.2", 0))
    port_of_nobody = closed.getsockname()[1]
    closed.close()
    lost = HostWatch.at_edge(Contact(["127.0.0.2"], port_of_nobody, contact.token), "b", "a")
    lost.start()
    assert comes(lambda: lost.unreached)
    assert "127.0.0.2: " in lost.unreached and lost.silent(0) == []
    assert "warning: host b does not reach rank 0 on a to watch over it" in capfd.readouterr().err
    # 127.0.0.2 is not refused by the center, which listens on every address.
    found = HostWatch.at_edge(contact._replace(addresses=["255.255.255.255", "127.0.0.2"]), "b", "a")
    found.start()
    assert comes(lambda: found._heard) and found.unreached == ""
