"""Training of the MXNet trainer on several virtual hosts, see virtual_hosts.py."""

import os
import re
import time

import groups
import pytest
from conftest import LIMIT, needs_hosts
from groups import SHELL, SILENCE, checkpoints_in, digests, endless, processes_with, ranks_with, read_until, wait_until

from waiting import happens

# Timed, because a host that is silent for a few seconds counts as lost.
pytestmark = [pytest.mark.timed, needs_hosts]

# First probe, interval and number of probes: with these, mpirun detects a lost host within 8 to 13 s instead of 25.
# With an interval of 1 s it detects the loss after 5.03 s or more, but the ranks need 5 s to name a silent host.
PROBES = {f"OMPI_MCA_oob_tcp_keepalive_{name}": n for name, n in (("time", "5"), ("intvl", "2"), ("probes", "3"))}
MPI = ["bash", "run.sh"]
ACTIVE = ["bash", "-c", '. setup-utils/env.sh && exec "$@"', "-"]
HOROVOD_GLOO = [*ACTIVE, "horovodrun", "--gloo", "-np", "2"]


def started(hosts, command, arguments, **environment):
    """Starts a command on hosta, or on this machine."""
    line = [*command, *arguments]
    if not hosts:
        return groups.started(line, SHELL, **environment)
    return groups.started_on(hosts, "hosta", line, **environment)


def run(hosts, command, arguments, **environment):
    """Returns the exit code and the output of a command."""
    with started(hosts, command, arguments, **environment) as group:
        output, _ = group.communicate(timeout=LIMIT)
        return group.returncode, output


@pytest.mark.parametrize("launcher, ranks", [("MPI", 3), ("Gloo", 2)])
def test_two_hosts_save_what_one_machine_saves(hosts, launcher, ranks, settings, tmp_path):
    hostfile = tmp_path / "two_hosts"
    hostfile.write_text("hosta slots=2\nhostb slots=1  # the other\n")
    one = [argument for argument in settings if not argument.startswith("models_root=")]
    one.append(f"models_root={tmp_path / 'one'}")
    alike = {"OMP_NUM_THREADS": "1"}  # with more threads, a rank alone on its host would add in another order
    if launcher == "MPI":
        results = [run(hosts, MPI, settings, HOSTFILE=str(hostfile), **alike), run(None, MPI, one, NP="3", **alike)]
        assert "-mca btl_tcp_if_include 10.77.0.0/24" in results[0][1]  # not docker0, which has one address on both
    else:
        cases = [(hosts, "hosta:1,hostb:1", settings), (None, "localhost:2", one)]
        results = [
            run(on, [*HOROVOD_GLOO, "-H", names, "bash", "config.sh"], words, **alike) for on, names, words in cases
        ]
    for code, output in results:
        assert code == 0 and f"{ranks} ranks" in output, output
    expected, saved = (digests(tmp_path / name, "*_centers*.param", "*.params") for name in ("one", "models"))
    assert saved == expected and len(saved) == 2 * ranks + 1  # centers, their momentum, the backbone


def test_a_lost_host_is_named_and_the_others_continue_without_it(hosts, settings, tmp_path):
    arguments = endless(settings)
    environment = dict(PROBES, HOSTS="hosta:1,hostb:1,hostc:1", MAX_RESTARTS="1", MIN_HOSTS="2")
    with started(hosts, MPI, arguments, **environment) as group:
        wait_until(lambda: checkpoints_in(tmp_path / "models"), group)
        hosts.power_off("hostc")
        lost = time.time()
        lines = read_until(group, "continuing with NP=2")
        last = max(checkpoints_in(tmp_path / "models"))
        lines += read_until(group, "2 ranks on cpu")
        assert time.time() - lost < 90
        wait_until(lambda: max(checkpoints_in(tmp_path / "models")) > last + 2, group)
        assert len(ranks_with(settings[1])) == 2
        os.kill(own_process(settings[1], "run.sh"), 15)
        rest, _ = group.communicate(timeout=30)
    output = "".join(lines)
    assert f"error: nothing received from host hostc (rank 2) for {SILENCE} s at update" in output
    assert re.search(r"\[bad\] +ssh +.*(No route to host|timed out|no answer)", output)
    assert "run.sh: continuing with NP=2 on hosta:1,hostb:1" in output
    assert "-np 2 -host hosta:1,hostb:1" in output
    assert group.returncode == 75, rest


@pytest.mark.parametrize(
    "launcher, fault, timeout, silence",
    # In the last case, mpirun detects the loss before the ranks do.
    [("horovodrun over MPI", "drop", SILENCE, SILENCE), ("Gloo", "cut", SILENCE, SILENCE), ("MPI", "cut", 60, 5)],
)
def test_a_lost_link_ends_both_sides_with_an_error(hosts, launcher, fault, timeout, silence, settings, tmp_path):
    words = [*settings, f"host_timeout={timeout}"]
    code, output, seconds, left = lose(hosts, launcher, lambda: getattr(hosts, fault)("hostb"), words, tmp_path)
    assert code not in (0, 2, 75)
    assert f"error: nothing received from host hostb (rank 1) for {silence} s at update" in output
    assert output.count("error: ") == 1
    assert seconds < 30
    assert not left  # not even on the side without its launcher


def test_a_link_that_comes_back_too_late_ends_the_job_at_once(hosts, settings, tmp_path):
    arguments = endless(settings)
    with started(hosts, MPI, arguments, HOSTS="hosta:1,hostb:1") as group:  # with mpirun's own limits
        wait_until(lambda: checkpoints_in(tmp_path / "models"), group)
        hosts.drop("hostb")
        read_until(group, "error: nothing received from host hostb")
        time.sleep(1)
        assert group.poll() is None  # mpirun waits for a daemon that cannot answer
        hosts.heal("hostb")
        healed = time.monotonic()
        group.communicate(timeout=LIMIT)
        assert time.monotonic() - healed < 15
    assert group.returncode == 1


@pytest.mark.parametrize(
    "launcher, number, message",
    [
        ("Gloo", 9, "exited without reporting an error"),
        ("MPI", 19, r"made no progress for \d+ s and is stopped"),
    ],
)
def test_a_rank_of_another_host_is_named(hosts, launcher, number, message, settings, tmp_path):
    def send_signal():
        there = next(pid for pid in ranks_with(settings[1]) if hosts.has("hostb", pid))
        os.kill(there, number)

    code, output, *_ = lose(hosts, launcher, send_signal, [*settings, "step_timeout=6"], tmp_path)
    assert code not in (0, 2, 75)
    assert re.search(rf"error: rank 1 \(process \d+ on hostb\) {message}", output), output


def test_an_sshd_that_is_killed_ends_the_job_and_is_named(hosts, settings, tmp_path):
    code, output, seconds, left = lose(hosts, "Gloo", lambda: hosts.kill_sshd("hostb"), settings, tmp_path)
    assert code not in (0, 2)
    assert "Connection to hostb closed by remote host" in output
    assert seconds < 15
    assert not left


def test_a_restart_waits_for_a_host_that_is_away_unless_ctrl_c_ends_it(hosts, settings, tmp_path):
    arguments, waits = endless(settings), "run.sh: waiting for these hosts (HOST_WAIT=300 s)"
    with started(hosts, MPI, arguments, HOSTS="hosta:1,hostb:1", MAX_RESTARTS="2", **PROBES) as group:
        wait_until(lambda: checkpoints_in(tmp_path / "models"), group)
        hosts.kill_sshd("hostb")
        lines = read_until(group, waits)
        last = max(checkpoints_in(tmp_path / "models"))
        hosts.start_sshd("hostb")
        lines += read_until(group, "2 ranks on cpu")
        wait_until(lambda: max(checkpoints_in(tmp_path / "models")) > last + 2, group)
        hosts.kill_sshd("hostb")
        lines += read_until(group, waits)
        os.kill(own_process(settings[1], "run.sh"), 2)
        rest, _ = group.communicate(timeout=30)
    output = "".join(lines)
    assert "Connection to hostb closed by remote host" in output and "port 22: Connection refused" in output
    assert group.returncode == 130, output + rest


def test_a_short_failure_of_a_link_does_not_end_the_job(hosts, settings, tmp_path):
    def fail_for_a_moment():
        hosts.drop("hostb")
        time.sleep(SILENCE / 2)
        last = max(checkpoints_in(tmp_path / "models"))
        hosts.heal("hostb")
        wait_until(lambda: max(checkpoints_in(tmp_path / "models")) > last + 1)
        os.kill(own_process(settings[1], "run.sh"), 15)

    code, output, *_ = lose(hosts, "MPI", fail_for_a_moment, [*settings, "host_timeout=30"], tmp_path)
    assert code == 75, output


def test_an_unknown_interface_is_refused(hosts, settings):
    code, output = run(hosts, MPI, settings, HOSTS="hosta:2,hostb:2", INTERFACE="eth9")
    assert code == 2
    interfaces = "lo 127.0.0.1, net0 10.77.0.1, docker0 172.17.0.1"
    assert output == f"run.sh: INTERFACE: this host has no interface in the network eth9, but: {interfaces}\n"


def test_hosts_without_the_shared_folder_are_named_before_training(hosts, settings, tmp_path):
    arguments, off = [*settings, "max_update=2"], ["checkpoint_every=0", "checkpoint_options=minutes=0"]
    (tmp_path / "models").mkdir()
    hosts.run("hostb", ["mount", "-t", "tmpfs", "none", tmp_path / "models"])
    code, output = run(hosts, MPI, [*arguments, "checkpoint_every=0", "checkpoint_minutes=30"], HOSTS="hosta:1,hostb:1")
    assert code == 2
    assert "Needs fixing: hostb (outputs)" in output
    code, output = run(hosts, MPI, arguments, HOSTS="hosta:1,hostb:1", CHECK_HOSTS="0", INTERFACE="net0", NP="2")
    assert code == 2
    assert "error: hostb and rank 0's host do not see the same folder" in output and " ".join(off) in output
    code, output = run(hosts, MPI, [*arguments, *off], HOSTS="hosta:1,hostb:1")
    assert code == 0, output
    assert not (tmp_path / "models/small-arcface-demo/1_centers.param").exists()
    assert hosts.run("hostb", ["test", "-s", tmp_path / "models/small-arcface-demo/1_centers.param"]).returncode == 0


def lose(hosts, launcher, fault, settings, tmp_path):
    """Runs a rank on each of two hosts; returns exit code, output, seconds since the fault, and remaining ranks."""
    arguments, over_hosts = endless(settings), ["-H", "hosta:1,hostb:1", "bash", "config.sh"]
    command = {
        "MPI": MPI,
        "horovodrun over MPI": [*ACTIVE, "horovodrun", "--mpi", "-np", "2", *over_hosts],
        "Gloo": [*HOROVOD_GLOO, *over_hosts],
    }[launcher]
    with started(hosts, command, arguments, HOSTS="hosta:1,hostb:1", **PROBES) as group:
        wait_until(lambda: checkpoints_in(tmp_path / "models"), group)
        began = time.time()
        fault()
        output, _ = group.communicate(timeout=LIMIT)
        seconds = time.time() - began
        happens(lambda: not ranks_with(settings[1]), 10)
        return group.returncode, output, seconds, ranks_with(settings[1])


def own_process(folder, name):
    """Returns the id of the training's process with this name; the training writes into this folder."""
    return next(pid for pid in processes_with(folder) if name in os.readlink(f"/proc/{pid}/exe") or _runs(pid, name))


def _runs(pid, name):
    with open(f"/proc/{pid}/cmdline") as file:
        arguments = file.read().split("\0")
    return arguments[0].endswith("bash") and arguments[1] == name
