"""Hosts and their numbers of ranks, in the forms that Open MPI and Horovod take."""

import pytest

from partial_fc_tools.hosts.hostfile import Host, read_hostfile, read_list


def read(tmp_path, text):
    (tmp_path / "hosts").write_text(text)
    return read_hostfile(str(tmp_path / "hosts"))


@pytest.mark.parametrize(
    "text, hosts",
    [
        ("hosta slots=2\nhostb slots=3\n", [("hosta", 2), ("hostb", 3)]),
        ("# two\n\n  hosta\tslots = 2  # the first\n10.0.0.2 slots=1", [("hosta", 2), ("10.0.0.2", 1)]),
        ("hosta slots=2 max_slots=5\nhostb slots=2 max-slots=2", [("hosta", 2), ("hostb", 2)]),
        ("hosta\nhostb\nhosta\nhosta\n", [("hosta", 3), ("hostb", 1)]),  # as job systems write it
        ("hosta:8\nhostb:4\n", [("hosta", 8), ("hostb", 4)]),
    ],
)
def test_hostfiles(tmp_path, text, hosts):
    assert read(tmp_path, text) == [Host(*host) for host in hosts]


@pytest.mark.parametrize(
    "text, message",
    [
        ("hosta slots=2\nhostb slot=2\n", "line 2: cannot parse 'hostb slot=2': write hosta:8 or"),
        ("hosta slots=2 hostb slots=2\n", "line 1: cannot parse"),
        ("hosta slots=0\n", "line 1: cannot parse"),
        ("host_a slots=2\n", "without _ in names"),  # Open MPI takes letters, digits, dots and hyphens
        ("me@hosta slots=2\n", "~/.ssh/config"),
        ("# nothing\n", "names no host"),
    ],
)
def test_hostfiles_that_cannot_be_parsed(tmp_path, text, message):
    with pytest.raises(ValueError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value) and str(tmp_path / "hosts") in str(caught.value)


def test_lists():
    assert read_list("hosta:2,10.0.0.2:16, hostc") == [Host("hosta", 2), Host("10.0.0.2", 16), Host("hostc", 1)]
    assert read_list("hosta:2,hostb:1,hosta:2") == [Host("hosta", 4), Host("hostb", 1)]


@pytest.mark.parametrize("text", ["", "hosta:two", "hosta:2,,hostb:2", "hosta:2;hostb:2", "hosta:0", "hosta:2:2"])
def test_lists_that_cannot_be_parsed(text):
    with pytest.raises(ValueError, match="write hosta:8"):
        read_list(text)
