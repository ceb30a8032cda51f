"""A training that is asked to stop saves, ends with exit code 75, and resumes; a paused training continues."""

import json
import os
import signal
import subprocess
import time

import pytest
from conftest import LAUNCHERS, TORCH, needs_torch
from groups import (
    ENDLESS,
    checkpoints_in,
    launched,
    launcher_of,
    processes_with,
    ranks_with,
    read_until,
    run_with_fault,
    started,
)

from partial_fc.distributed.errors import NOTHING_SAVED
from small_disk import fill, small_disk
from waiting import happens

pytestmark = pytest.mark.timed  # horovodrun kills its ranks 5 s after it has asked them to stop

PREEMPTED = 75
GLOO = "horovodrun over Gloo"
STOPPED = "stopped after update {}, checkpoint saved: continue with --resume auto"
# A machine on which /bin/sh is bash, as on Red Hat, Rocky and Fedora.
BASH_AS_SH = 'mount --bind "$(command -v bash)" "$(realpath /bin/sh)" && exec "$@"'
SOON = 30  # seconds for ranks to end after a request to stop, or after the end of their launcher


@pytest.fixture
def arguments(settings):
    """Arguments of a training that would take hours."""
    return [*settings, *ENDLESS, "checkpoint_every=0", "embedding_size=32"]


def stop(group, *signals):
    """Sends signals to the group after some updates; returns its output and exit code."""
    lines = read_until(group, "Global Step: 4 ")
    for number in signals:
        group.send_signal(number)
        time.sleep(0.05)
    rest, _ = group.communicate(timeout=SOON)
    return "".join(lines) + rest, group.returncode


def recorded(launcher, arguments, codes):
    """Starts a group by an entry of LAUNCHERS; under Gloo, config.sh adds its exit codes to the file ``codes``."""
    _, command, environment = LAUNCHERS[launcher]
    if launcher == GLOO:
        at_start = codes.with_suffix(".sh")  # bash reads it before a script
        at_start.write_text(f"trap 'echo $? >>\"{codes}\"' EXIT\n")
        environment = {**environment, "BASH_ENV": str(at_start)}
    return started([*command, *arguments], **environment)


def check_codes(launcher, returned, code, codes, output):
    """Checks the launcher's exit code and, under Gloo, the ranks' own.

    Two threads of horovodrun wait for the shell of a rank that it stops. If psutil's is the first, subprocess finds no
    code and takes it for 0, so horovodrun may lose the code of one rank, or of all.
    """
    if launcher == GLOO:
        assert codes.read_text().split() == 2 * [str(PREEMPTED)], output
        code = code if "exit with status code" in output else 0
    assert returned == code, output


def wait_for_end(models):
    """Waits until every process of the training has ended; ranks may outlive their launcher."""
    assert happens(lambda: not processes_with(models), SOON), processes_with(models)


@needs_torch
def test_a_stop_while_the_demo_is_drawn_leaves_nothing(tmp_path):
    words = ["--nproc", "1", f"data_root={tmp_path}", f"models_root={tmp_path}/models"]
    with started([TORCH / "python", "train.py", *words]) as group:
        assert happens(lambda: os.listdir(tmp_path), SOON)
        group.send_signal(signal.SIGTERM)
        output, _ = group.communicate(timeout=SOON)
    assert group.returncode == PREEMPTED and not os.listdir(tmp_path), output


@pytest.mark.parametrize(
    "launcher, signals, code",
    [
        ("run.sh", [signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM], PREEMPTED),
        # The exit codes of horovodrun itself.
        (GLOO, [signal.SIGTERM], 1),
        ("horovodrun over MPI", [signal.SIGTERM], -signal.SIGTERM),
        pytest.param("torchrun", [signal.SIGTERM], 1, marks=needs_torch),
    ],
)
def test_a_training_that_is_asked_to_stop_is_saved(launcher, signals, code, arguments, tmp_path):
    models = tmp_path / "models"
    with recorded(launcher, arguments, tmp_path / "codes") as group:
        output, returned = stop(group, *signals)
        wait_for_end(models)
    check_codes(launcher, returned, code, tmp_path / "codes", output)
    (update,) = checkpoints_in(models)
    assert update >= 4 and output.count(STOPPED.format(update)) == 1, output
    assert "error: " not in output and not list(models.glob(".job*"))


def test_a_training_under_gloo_is_saved_where_sh_is_bash(arguments, tmp_path):
    machine = ["unshare", "-m", "bash", "-c", BASH_AS_SH, "bash"]
    if subprocess.run([*machine, "true"], capture_output=True).returncode:
        pytest.skip("needs root to replace /bin/sh")
    models = tmp_path / "models"
    _, command, environment = LAUNCHERS[GLOO]
    with started([*machine, *command, *arguments], **environment) as group:
        output, returned = stop(group, signal.SIGTERM)
        wait_for_end(models)
    (update,) = checkpoints_in(models)
    assert output.count(STOPPED.format(update)) == 1, output
    assert returned == int("exit with status code" in output), output  # see check_codes


def test_a_stopped_training_resumes(arguments, succeed, tmp_path):
    _, command, environment = LAUNCHERS["python"]
    models = tmp_path / "models"
    with launched("python", arguments) as group:
        output, returned = stop(group, signal.SIGTERM, signal.SIGTERM)
    (update,) = checkpoints_in(models)
    assert returned == PREEMPTED and output.count(STOPPED.format(update)) == 1, output
    result = succeed(*command, *arguments, f"max_update={update + 3}", "--resume", "auto", **environment)
    assert f"resumes from update {update}" in result.stdout
    assert json.loads((models / "small-arcface-demo" / "summary.json").read_text())["updates"] == update + 3


@needs_torch
def test_a_stop_during_a_verification_is_answered_and_the_verification_done_later(settings, succeed, tmp_path):
    """With one trainer; the tests of verification_cases.py run with both."""
    arguments = [*settings, "val_targets=['demo_val']", "verify_every=2", "max_update=2"]
    outcome = run_with_fault("torchrun", "ask_to_stop", 1, "evaluation", arguments, tmp_path / "mark")
    assert outcome.output.count(STOPPED.format(2)) == 1 and "[demo_val][2]" not in outcome.output, outcome.output
    result = succeed(TORCH / "python", "train.py", *arguments, "--resume", "auto")
    assert result.stdout.count("[demo_val][2]Accuracy-Flip") == 1


def test_a_stop_during_an_export_ends_at_its_update(settings, tmp_path):
    arguments = [*settings, "save_every=2"]
    outcome = run_with_fault("mpi", "ask_to_stop", 1, "export", arguments, tmp_path / "mark")
    assert outcome.code == PREEMPTED and outcome.output.count(STOPPED.format(2)) == 1, outcome.output
    assert checkpoints_in(tmp_path / "models") == [2]


def test_a_full_disk_ends_a_training_only_when_a_checkpoint_cannot_be_written(arguments, tmp_path):
    with small_disk(tmp_path / "disk", "12m") as disk:
        arguments = [*(word for word in arguments if "models_root=" not in word), f"models_root={disk}"]
        with started(["bash", "run.sh", *arguments], NP="2") as group:
            read_until(group, "Global Step: 4 ")
            fill(disk)
            read_until(group, "training.log (No space left on device): the training goes on without it")
            read_until(group, "Global Step: ")
            group.send_signal(signal.SIGTERM)
            output, _ = group.communicate(timeout=SOON)
            wait_for_end(disk)
        assert group.returncode == 1 and "No space left on device" in output and not checkpoints_in(disk), output


@pytest.mark.parametrize(
    "launcher, killed, code",
    [
        ("run.sh", "bash", -signal.SIGKILL),
        ("run.sh", "mpirun", 128 + signal.SIGKILL),
        pytest.param("pytorch/run.sh", "python", -signal.SIGKILL, marks=needs_torch),
        pytest.param("torchrun", "python", -signal.SIGKILL, marks=needs_torch),
        (GLOO, "python", -signal.SIGKILL),
    ],
)
def test_when_a_launcher_is_killed_its_ranks_save_and_end(launcher, killed, code, arguments, tmp_path):
    """Their output then has no reader, and Open MPI would abort them at once."""
    models = tmp_path / "models"
    with launched(launcher, arguments) as group:
        read_until(group, "Global Step: 4 ")
        launcher_of(group, killed).kill()
        wait_for_end(models)
        output, _ = group.communicate(timeout=SOON)
    assert group.returncode == code and len(checkpoints_in(models)) == 1, output


@pytest.mark.parametrize(
    "launcher, code",
    [
        ("run.sh", 130),
        ("python", 130),
        pytest.param("pytorch/run.sh", 130, marks=needs_torch),
        pytest.param("torchrun", 1, marks=needs_torch),
        (GLOO, 1),
    ],
)
def test_an_interrupt_saves_and_ends_all(launcher, code, arguments, tmp_path):
    models = tmp_path / "models"
    with recorded(launcher, arguments, tmp_path / "codes") as group:
        output, returned = stop(group, signal.SIGINT)
        wait_for_end(models)
    check_codes(launcher, returned, code, tmp_path / "codes", output)
    (update,) = checkpoints_in(models)
    assert output.count(STOPPED.format(update)) == 1, output
    assert launcher in ("torchrun", GLOO) or output.endswith(STOPPED.format(update) + "\n"), output


@pytest.mark.parametrize("launcher", ["python", "run.sh", pytest.param("pytorch/run.sh", marks=needs_torch)])
def test_a_second_interrupt_ends_all_at_once(launcher, arguments, tmp_path):
    """The first one is not answered, because a rank is stopped."""
    models = tmp_path / "models"
    with launched(launcher, [*arguments, "checkpoint_every=2"]) as group:
        read_until(group, "Global Step: 4 ")
        ranks = ranks_with(models)
        if len(ranks) > 1:
            os.kill(ranks[1], signal.SIGSTOP)
        group.send_signal(signal.SIGINT)
        time.sleep(1 if len(ranks) > 1 else 0)
        group.send_signal(signal.SIGINT)
        output, _ = group.communicate(timeout=SOON)
        wait_for_end(models)
    assert group.returncode == 130 and "Traceback" not in output, output
    last = output.splitlines()[-1]
    assert "checkpoint" in last or last == NOTHING_SAVED, output


def pause(pids):
    for number, seconds in ((signal.SIGSTOP, 1.0), (signal.SIGCONT, 0.3)):
        for pid in pids:
            os.kill(pid, number)
        time.sleep(seconds)


@pytest.mark.parametrize("script", ["run.sh", pytest.param("pytorch/run.sh", marks=needs_torch)])
def test_a_paused_training_goes_on(script, arguments, tmp_path):
    """As docker pause, a debugger or a frozen virtual machine does."""
    models, logged = tmp_path / "models", "Global Step: "
    with started(["bash", script, *arguments], NP="2") as group:
        lines = read_until(group, logged, 2)
        ranks = ranks_with(models)
        for pids in (ranks[:1], ranks, processes_with(models)):  # one rank, all, and their launcher too
            pause(pids)
            lines += read_until(group, logged, 2)
        lines += read_until(group, logged, 5)
        group.send_signal(signal.SIGTERM)
        rest, _ = group.communicate(timeout=SOON)
    output = "".join(lines) + rest
    assert len(ranks) == 2 and group.returncode == PREEMPTED and "error: " not in output, output


def test_a_stop_before_training_saves_nothing(arguments, tmp_path):
    with launched("python", arguments) as group:
        while not list((tmp_path / "models").glob(".job*")):
            assert group.poll() is None
            time.sleep(0.02)
        group.send_signal(signal.SIGTERM)
        output, _ = group.communicate(timeout=SOON)
    assert group.returncode == PREEMPTED, output
    assert output.strip() == "error: stop requested before training began: there is nothing to save"
