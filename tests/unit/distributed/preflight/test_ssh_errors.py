"""Explanations of ssh errors that tests/commands/test_check_hosts_ssh.py cannot cause."""

import pytest

from partial_fc.distributed.preflight.ssh import Call, command_line, look_up
from partial_fc.distributed.preflight.ssh_errors import explain, explain_configuration, explain_timeout, last_message

CALL = Call("hostb", "10.0.0.2", "me", "22", "the default", False, [])
FAR = CALL._replace(port="2222", port_from="from ~/.ssh/config")
CONNECTED = "OpenSSH_9.2p1\ndebug1: Connecting to hostb [10.0.0.2] port 22.\ndebug1: Connection established.\n"
GREETED = CONNECTED + "debug1: Remote protocol version 2.0, remote software version OpenSSH_9.2p1\n"


@pytest.mark.parametrize(
    "log, call, found, fix",
    [
        # Some systems report "Permission denied" for a prohibited route: not an error of keys.
        ("ssh: connect to host hostb port 22: Permission denied\r\n", CALL, "no route to hostb port 22", "ip route"),
        ("ssh: connect to host hostb port 22: Network is unreachable", CALL, "Network is unreachable", "ip route"),
        # OpenSSH before 8 prints the type of the key.
        (
            GREETED
            + "debug1: Offering RSA public key: /home/me/.ssh/id_rsa\nme@hostb: Permission denied (publickey).\n",
            FAR,
            "me@10.0.0.2 rejects the key /home/me/.ssh/id_rsa",
            "ssh-copy-id -p 2222 me@10.0.0.2",
        ),
        (GREETED + "me@hostb: Permission denied (publickey).\n", CALL, "no ssh key", "ssh-keygen -t ed25519"),
        (
            CONNECTED + "ssh_exchange_identification: Connection closed by remote host\n",
            CALL,
            "closes the conn",
            "MaxSt",
        ),
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
        ("", CALL, "no message", "ssh hostb true"),
    ],
)
def test_errors(log, call, found, fix):
    error = explain(log, call)
    assert found in error.found and fix in error.fix, error


def test_timeouts():
    assert "no answer from 10.0.0.2 port 22" in explain_timeout("debug1: Connecting to hostb", CALL).found
    assert "the name server does not answer" in explain_timeout("OpenSSH_9.2p1\n", CALL).found
    assert "accepts connections but sends nothing" in explain_timeout(CONNECTED, CALL).found
    assert "nothing answers in time" in explain_timeout(GREETED + "Authenticated to hostb", CALL).found


def test_configurations_that_ssh_rejects():
    error = explain_configuration("Bad owner or permissions on /home/me/.ssh/config\r\n")
    assert error.fix == "chmod 600 /home/me/.ssh/config"
    line = "/home/me/.ssh/config: line 2: Bad configuration option: nonsense"
    assert (
        line
        in explain_configuration(f"{line}\r\n/home/me/.ssh/config: terminating, 1 bad configuration options\r\n").found
    )


def test_the_last_message_is_not_debugging_output():
    assert last_message("first\nsecond\ndebug1: Exit status 1\nTransferred: sent 1\nBytes per second: 2\n") == "second"


def test_arguments_that_mpirun_passes_to_ssh_are_used():
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "OMPI_MCA_plm_rsh_args": "-p 2222 -l 'somebody'"}
    call = look_up("192.0.2.7", environ)
    assert (call.hostname, call.user, call.port) == ("192.0.2.7", "somebody", "2222")
    assert call.port_from == "from OMPI_MCA_plm_rsh_args"
    line = command_line(call, "true")
    assert line[line.index("-p") : line.index("-p") + 4] == ["-p", "2222", "-l", "somebody"]
    assert line[-3:] == ["-v", "192.0.2.7", "true"] and "BatchMode=yes" in line
