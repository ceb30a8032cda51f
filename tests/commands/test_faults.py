"""One rank fails: all processes end within ten seconds, and one error names the rank and its last activity."""

import pytest
from groups import checkpoints_in, run_with_fault

from command_line import start
from small_disk import small_disk

pytestmark = pytest.mark.timed

FAST = 10  # seconds
HANG = 3  # seconds, step_timeout for a rank that hangs


@pytest.fixture
def arguments(settings):
    """Command-line arguments; checkpoints after updates 4 and 8, verification after 6."""
    small = ["embedding_size=32", "max_update=12", "val_targets=['demo_val']"]
    return [*settings, *small, "checkpoint_every=4", "verify_every=6", "checkpoints_kept=1"]


def check(outcome, message, code=1, allowed=FAST):
    """Checks that the group ended fast, without remaining processes, and reported the error once.

    mpirun exits with the code of the killed rank, or with the code of a rank that ended because of it.
    """
    lines = [line for line in outcome.output.splitlines() if "error" in line and "[[" not in line]
    reports = [line for line in lines if "error: " in line or "error on rank" in line]
    assert len(reports) == 1 and message in reports[0], outcome.output
    assert outcome.code in (code, 1) if code > 128 else outcome.code == code, outcome.output
    assert outcome.seconds < allowed and not outcome.left, (outcome, outcome.left)


def check_checkpoints(models):
    """Checks that complete checkpoints are undamaged."""
    (folder,) = models.glob("*/checkpoints")
    result = start("checkpoints", "check", folder)
    assert result.returncode == 0, result.stdout + result.stderr


CASES = [
    # launcher, rank, place, message, complete checkpoints, the first one at update 4
    ("mpi", 0, "3", "last seen at update 3", []),
    ("torchrun", 0, "3", "last seen at update 3", []),
    ("gloo", 0, "evaluation", "last seen at update 6, in embed.demo_val", None),  # 4 may be incomplete
    # tests/unit/checkpoint/test_checkpoint_manager.py has the other moments of a save.
    ("torchrun", 1, "save.copy", "last seen at update 8, in checkpoint.copy", [4]),
    ("horovodrun over MPI", 0, "save.write", "last seen at update", [4]),
    ("mpi", 0, "results", "last seen at update 12", [12]),
]


@pytest.mark.parametrize("launcher, rank, place, message, complete", CASES)
def test_a_rank_is_killed(launcher, rank, place, message, complete, arguments, tmp_path):
    outcome = run_with_fault(launcher, "kill", rank, place, arguments, tmp_path / "mark")
    check(outcome, message, 1 if launcher in ("gloo", "torchrun") else 137)
    assert f"error: rank {rank} (process " in outcome.output
    if complete is not None:
        assert checkpoints_in(tmp_path / "models") == complete
    if complete:
        check_checkpoints(tmp_path / "models")


@pytest.mark.parametrize("launcher, rank", [("mpi", 1), ("torchrun", 1)])
def test_a_bug_is_reported_with_its_traceback(launcher, rank, arguments, tmp_path):
    outcome = run_with_fault(launcher, "fail", rank, "3", arguments, tmp_path / "mark")
    check(outcome, f"error on rank {rank} at update 3: unexpected error, a bug in this program or in a library:")
    assert outcome.output.count("RuntimeError: a bug for this test") == 1
    assert "in fail" in outcome.output


def test_a_file_that_cannot_be_read(arguments, tmp_path):
    outcome = run_with_fault("gloo", "no_room", 1, "reading", arguments, tmp_path / "mark")
    check(outcome, "error on rank 1: [Errno 28] cannot use a file of this test")
    assert "in no_room" not in outcome.output
    assert checkpoints_in(tmp_path / "models") == []


@pytest.mark.parametrize("launcher, rank", [("mpi", 0), ("torchrun", 0)])
def test_a_rank_that_hangs_shows_where(launcher, rank, arguments, tmp_path):
    outcome = run_with_fault(launcher, "hang", rank, "3", [*arguments, f"step_timeout={HANG}"], tmp_path / "mark")
    check(outcome, f"error: rank {rank} (process ", allowed=HANG + FAST)
    waits = f"it is at update 3, in the following step; waiting for it: rank {1 - rank} in all-gather features"
    assert waits in outcome.output and "in hang" in outcome.output


def test_a_rank_that_is_stopped(arguments, tmp_path):
    outcome = run_with_fault("gloo", "stop", 0, "3", [*arguments, f"step_timeout={HANG}"], tmp_path / "mark")
    check(outcome, "and is stopped (SIGSTOP or a debugger): it is at update 3", allowed=HANG + FAST)
    assert "error: rank 0 (process " in outcome.output


@pytest.mark.parametrize(
    "launcher, fault, code, allowed, message",
    [
        ("gloo", "hang", 1, 6 + FAST, "rank 1 of 2 did not start within 6 s"),
        ("torchrun", "hang", 1, 6 + FAST, "rank 1 of 2 did not start within 6 s"),
        ("mpi", "leave", 3, FAST, "the launcher ended the job before rank 1 of 2 started"),
        ("torchrun", "leave", 1, FAST, "the launcher ended the job before rank 1 of 2 started"),
        # The ranks compare their settings once all have connected.
        ("mpi", "other_seed", 2, 30, "setting seed differs between ranks: 7 on rank 1, but 0 on rank 0"),
        ("mpi", "broken_settings", 2, 30, "error on rank 1: seed is 'many'"),
        ("gloo", "other_code", 1, 30, 'code differs between ranks: "another" on rank 1'),
        ("torchrun", "other_data", 1, 30, 'data set differs between ranks: "another" on rank 1'),
    ],
)
def test_a_rank_that_does_not_start_like_the_others(launcher, fault, code, allowed, message, arguments, tmp_path):
    environment = {"PARTIAL_FC_START_SECONDS": "6"} if fault == "hang" else {}
    outcome = run_with_fault(launcher, fault, 1, "start", arguments, tmp_path / "mark", **environment)
    check(outcome, message, code, allowed)


@pytest.mark.parametrize(
    "launcher, free", [("mpi", 500_000), ("torchrun", 2_900_000)], ids=["half a file fits", "all but its tail fits"]
)
def test_a_full_disk(launcher, free, arguments, tmp_path):
    with small_disk(tmp_path / "disk", "12m") as disk:  # has space for two checkpoints
        arguments = [argument for argument in arguments if not argument.startswith("models_root")]
        arguments += [f"models_root={disk}", "checkpoints_kept=2", "save_every=1000"]
        outcome = run_with_fault(launcher, "fill", 0, "save.copy", arguments, tmp_path / "mark", FREE_BYTES=str(free))
        check(outcome, "No space left on device")
        assert f"{disk}/small-arcface-demo/checkpoints/step-0000000008.writing/" in outcome.output
        assert checkpoints_in(disk) == [4]
        check_checkpoints(disk)
