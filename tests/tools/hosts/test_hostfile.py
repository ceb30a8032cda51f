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
    "text",
    [
        "hosta slots=2\nhostb slot=2\n",
        "hosta slots=2 hostb slots=2\n",
        "hosta slots=0\n",
        "host_a slots=2\n",
        "# none\n",
    ],
)
def test_hostfiles_that_cannot_be_parsed(tmp_path, text):
    with pytest.raises(ValueError, match=str(tmp_path / "hosts")):
        read(tmp_path, text)


def test_lists():
    assert read_list("hosta:2,10.0.0.2:16, hostc") == [Host("hosta", 2), Host("10.0.0.2", 16), Host("hostc", 1)]
    assert read_list("hosta:2,hostb:1,hosta:2") == [Host("hosta", 4), Host("hostb", 1)]
    for text in ("", "hosta:two", "hosta:2,,hostb:2", "hosta:2;hostb:2", "hosta:0", "me@hosta:2"):
        with pytest.raises(ValueError, match="write hosta:8"):
            read_list(text)
