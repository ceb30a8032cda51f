"""What ssh's words are taken for, where tests/commands/test_check_hosts_ssh.py cannot make it say them."""

import pytest

from partial_fc.distributed.preflight.ssh import Call, command_line, look_up
from partial_fc.distributed.preflight.ssh_errors import explain, explain_settings, explain_silence, last_word

CALL = Call("hostb", "10.0.0.2", "me", "22", "the usual one", ["/home/me/.ssh/id_rsa"], False, [])
FAR = CALL._replace(port="2222", port_from="from ~/.ssh/config")
CONNECTED = "OpenSSH_9.2p1\ndebug1: Connecting to hostb [10.0.0.2] port 22.\ndebug1: Connection established.\n"
GREETED = CONNECTED + "debug1: Remote protocol version 2.0, remote software version OpenSSH_9.2p1\n"


@pytest.mark.parametrize(
    "said, call, found, fix",
    [
        # Some systems say "Permission denied" of a route that is prohibited: no matter of keys.
        ("ssh: connect to host hostb port 22: Permission denied\r\n", CALL, "no way to hostb port 22", "ip route"),
        ("ssh: connect to host hostb port 22: Network is unreachable", CALL, "Network is unreachable", "ip route"),
        # OpenSSH before 8 names the kind of the key.
        (
            GREETED
            + "debug1: Offering RSA public key: /home/me/.ssh/id_rsa\nme@hostb: Permission denied (publickey).\n",
            FAR,
            "me@10.0.0.2 does not take the key /home/me/.ssh/id_rsa",
            "ssh-copy-id -p 2222 me@10.0.0.2",
        ),
        (GREETED + "me@hostb: Permission denied (publickey).\n", CALL, "no ssh key here", "ssh-keygen -t ed25519"),
        (CONNECTED + "ssh_exchange_identification: Connection closed by remote host\n", CALL, "ends the conn", "MaxSt"),
        (
            GREETED + "No RSA host key is known for hostb and you have requested strict checking.\n"
            "Host key verification failed.\n",
            FAR,
            "not known here",
            "ssh -p 2222 hostb ",
        ),
        (
            GREETED + "Unable to negotiate with 10.0.0.2 port 22: no matching cipher",
            CALL,
            "no matching cipher",
            "by hand",
        ),
        ("", CALL, "it says nothing", "ssh hostb true"),
    ],
)
def test_a_trouble(said, call, found, fix):
    trouble = explain(said, call)
    assert found in trouble.found and fix in trouble.fix, trouble


def test_a_silence():
    assert "no answer from 10.0.0.2 port 22" in explain_silence("debug1: Connecting to hostb", CALL).found
    assert "a name server is away" in explain_silence("OpenSSH_9.2p1\n", CALL).found
    assert "accepts connections but says nothing" in explain_silence(CONNECTED, CALL).found
    assert "nothing answers in time" in explain_silence(GREETED + "Authenticated to hostb", CALL).found


def test_settings_that_ssh_refuses():
    trouble = explain_settings("Bad owner or permissions on /home/me/.ssh/config\r\n")
    assert trouble.fix == "chmod 600 /home/me/.ssh/config"
    line = "/home/me/.ssh/config: line 2: Bad configuration option: nonsense"
    assert (
        line in explain_settings(f"{line}\r\n/home/me/.ssh/config: terminating, 1 bad configuration options\r\n").found
    )


def test_the_last_word_is_none_for_developers():
    assert last_word("first\nsecond\ndebug1: Exit status 1\nTransferred: sent 1\nBytes per second: 2\n") == "second"


def test_what_mpirun_gives_to_ssh_is_given_here():
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "OMPI_MCA_plm_rsh_args": "-p 2222 -l 'somebody'"}
    call = look_up("192.0.2.7", environ)
    assert (call.hostname, call.user, call.port) == ("192.0.2.7", "somebody", "2222")
    assert call.port_from == "from OMPI_MCA_plm_rsh_args"
    line = command_line(call, "true")
    assert line[line.index("-p") : line.index("-p") + 4] == ["-p", "2222", "-l", "somebody"]
    assert line[-3:] == ["-v", "192.0.2.7", "true"] and "BatchMode=yes" in line
