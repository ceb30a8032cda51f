"""Hosts and their numbers of ranks; the expected values are what Open MPI 4.1.8 makes of the same lines."""

import pytest

from partial_fc.distributed.preflight.hostfile import Host, HostListError, read_hostfile, read_list
from paths import ROOT


def read(tmp_path, text):
    (tmp_path / "hosts").write_text(text)
    return read_hostfile(str(tmp_path / "hosts"))


@pytest.mark.parametrize(
    "text, hosts",
    [
        ("hosta slots=2\nhostb slots=3\n", [("hosta", 2), ("hostb", 3)]),
        ("# two\n\n  hosta\tslots = 2  # the first\n10.0.0.2 slots=1", [("hosta", 2), ("10.0.0.2", 1)]),
        ("hosta slots=2 max_slots=5\n", [("hosta", 2)]),
        ("hosta max-slots=5\n", [("hosta", 5)]),
        ("hosta cpu=2\nhostb count=3\n", [("hosta", 2), ("hostb", 3)]),
        ("hosta\n", [("hosta", None)]),  # as many as it has cores
        ("hosta\nhostb\nhosta\nhosta\n", [("hosta", 3), ("hostb", None)]),
        ("hosta:8\nhostb:4\n", [("hosta", 8), ("hostb", 4)]),
    ],
)
def test_hostfiles(tmp_path, text, hosts):
    assert read(tmp_path, text) == [Host(*host) for host in hosts]


@pytest.mark.parametrize(
    "text, message",
    [
        ("hosta slots=2\nhostb slot=2\n", "line 2: cannot parse 'slot'"),
        ("hosta slots=2 hostb slots=2\n", "line 1: cannot parse 'hostb'"),
        ("hosta slots=two\n", "slots=two is not a number of ranks"),
        ("hosta slots=0\n", "slots=0 is not a number of ranks"),
        ("^hosta slots=2\n", "cannot parse '^hosta'"),
        ("host_a slots=2\n", "cannot parse 'host_a'"),  # Open MPI takes letters, digits, dots and hyphens
        ("me@hosta slots=2\n", "~/.ssh/config"),
        ("hosta username=me\n", "~/.ssh/config"),
        ("hosta slots=2\nhosta slots=2\n", "names hosta 2 times: give it one line with all its slots"),
        ("hosta\nhosta slots=2\n", "names hosta 2 times"),
        ("# nothing\n", "names no host"),
    ],
)
def test_hostfiles_that_cannot_be_parsed(tmp_path, text, message):
    with pytest.raises(HostListError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value) and str(tmp_path / "hosts") in str(caught.value)


def test_the_hostfiles_of_this_project():
    folder = ROOT / "hosts"
    assert read_hostfile(str(folder / "localhost"))[0].name == "localhost"
    assert [host.slots for host in read_hostfile(str(folder / "two_machines"))] == [8, 8]


def test_lists():
    assert read_list("hosta:2,10.0.0.2:16, hostc") == [Host("hosta", 2), Host("10.0.0.2", 16), Host("hostc", 1)]
    assert read_list("hosta:2,hostb:1,hosta:2") == [Host("hosta", 4), Host("hostb", 1)]


@pytest.mark.parametrize("text", ["", "hosta:two", "hosta:2,,hostb:2", "hosta:2;hostb:2", "hosta:0", "hosta:2:2"])
def test_lists_that_cannot_be_parsed(text):
    with pytest.raises(HostListError, match="hosta:2"):
        read_list(text)
