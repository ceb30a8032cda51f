"""One rank fails: all processes are gone within ten seconds, and the rank is named once, with what it was at."""

import subprocess
import sys

import pytest
from groups import checkpoints_in, run_with_fault

from paths import ROOT

FAST = 10  # seconds
HANG = 3  # seconds without a step that are given to a rank that hangs


@pytest.fixture
def words(settings):
    """Words for the command line; checkpoints after updates 4 and 8, verification after 6."""
    small = ["embedding_size=32", "max_update=12", "baselines=False"]
    return [*settings, *small, "checkpoint_every=4", "verify_every=6", "checkpoints_kept=1"]


def check(outcome, message, code=1, allowed=FAST):
    """The group has ended fast, with nothing left of it, and has said once why.

    mpirun gives the code of the rank that was killed, or of one that ended itself for that.
    """
    lines = [line for line in outcome.output.splitlines() if "error" in line and "[[" not in line]
    told = [line for line in lines if "error: " in line or "error on rank" in line]
    assert len(told) == 1 and message in told[0], outcome.output
    assert outcome.code in (code, 1) if code > 128 else outcome.code == code, outcome.output
    assert outcome.seconds < allowed and not outcome.left, (outcome, outcome.left)


def check_checkpoints(models):
    """What is complete is whole."""
    (folder,) = models.glob("*/checkpoints")
    command = [sys.executable, "-m", "partial_fc.checkpoint", "check", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


CASES = [
    # launcher, rank, place, what is told, checkpoints that are complete; before 4 there is none
    ("mpi", 0, "3", "it stood at update 3", []),
    ("gloo", 1, "3", "it stood at update 3", []),
    ("mpi", 1, "evaluation", "it stood at update 6, in embed.demo_val", None),  # 4 may be in the making
    ("gloo", 0, "evaluation", "it stood at update 6, in embed.demo_val", None),
    ("mpi", 1, "save.copy", "it stood at update 8, in checkpoint.copy", [4]),
    ("gloo", 0, "save.write", "it stood at update", [4]),
    ("mpi", 0, "save.commit", "it stood at update", [4]),
    ("horovodrun over MPI", 0, "save.manifest", "it stood at update", [4]),
    ("gloo", 0, "save.prune", "it stood at update", [4]),
    ("mpi", 0, "results", "it stood at update 12", [12]),
]


@pytest.mark.parametrize("launcher, rank, place, message, complete", CASES)
def test_a_rank_is_killed(launcher, rank, place, message, complete, words, tmp_path):
    outcome = run_with_fault(launcher, "kill", rank, place, words, tmp_path / "mark")
    check(outcome, message, 1 if launcher == "gloo" else 137)
    assert f"error: rank {rank} (process " in outcome.output
    if complete is not None:
        assert checkpoints_in(tmp_path / "models") == complete
    if complete:
        check_checkpoints(tmp_path / "models")


@pytest.mark.parametrize("launcher, rank", [("mpi", 1), ("gloo", 0)])
def test_a_defect_is_told_with_its_traceback(launcher, rank, words, tmp_path):
    outcome = run_with_fault(launcher, "fail", rank, "3", words, tmp_path / "mark")
    check(outcome, f"error on rank {rank} at update 3, a defect of the program or of its stack:")
    assert outcome.output.count("RuntimeError: a defect that was built in") == 1
    assert "in fail" in outcome.output


@pytest.mark.parametrize(
    "launcher, place, message, complete",
    [
        ("gloo", "reading", "error on rank 1: [Errno 28] cannot use a file of this test", []),
        ("mpi", "save.write", "cannot use a file of this test: No space left on device (rank 1 of 2)", [4]),
    ],
)
def test_a_file_that_cannot_be_read_or_written(launcher, place, message, complete, words, tmp_path):
    outcome = run_with_fault(launcher, "no_room", 1, place, words, tmp_path / "mark")
    check(outcome, message)
    assert "in no_room" not in outcome.output
    assert checkpoints_in(tmp_path / "models") == complete


def test_images_that_are_not_numbers(words, tmp_path):
    outcome = run_with_fault("mpi", "nan", 1, "features", words, tmp_path / "mark")
    check(outcome, "non-finite features on rank 1")


@pytest.mark.parametrize("launcher, rank", [("mpi", 0), ("gloo", 1)])
def test_a_rank_that_hangs_shows_where(launcher, rank, words, tmp_path):
    outcome = run_with_fault(launcher, "hang", rank, "3", [*words, f"step_timeout={HANG}"], tmp_path / "mark")
    check(outcome, f"error: rank {rank} (process ", allowed=HANG + FAST)
    waits = f"it stands at update 3, in what follows it; rank {1 - rank} waits in all-gather features for it"
    assert waits in outcome.output and "in hang" in outcome.output


@pytest.mark.parametrize("launcher, rank", [("mpi", 1), ("gloo", 0)])
def test_a_rank_that_is_stopped(launcher, rank, words, tmp_path):
    outcome = run_with_fault(launcher, "stop", rank, "3", [*words, f"step_timeout={HANG}"], tmp_path / "mark")
    check(outcome, "and is stopped (SIGSTOP or a debugger): it stands at update 3", allowed=HANG + FAST)
    assert f"error: rank {rank} (process " in outcome.output


def test_a_rank_that_never_starts(words, tmp_path):
    outcome = run_with_fault("gloo", "hang", 1, "start", words, tmp_path / "mark", PARTIAL_FC_START_SECONDS="6")
    check(outcome, "rank 1 of 2 did not come within 6 s of the start", allowed=6 + FAST)


def test_a_rank_that_ends_before_it_has_started(words, tmp_path):
    outcome = run_with_fault("mpi", "leave", 1, "start", words, tmp_path / "mark")
    check(outcome, "the launcher ended the job before rank 1 of 2 came", code=3)


@pytest.mark.parametrize(
    "launcher, fault, code, message",
    [
        ("mpi", "other_seed", 2, "rank 1 has another setting seed than rank 0: 7, not 0"),
        ("mpi", "broken_settings", 2, "error on rank 1: seed is 'many', but must be of type int"),
        ("gloo", "other_code", 1, 'rank 1 has another code than rank 0: "another", not '),
        ("gloo", "other_data", 1, 'rank 1 has another data set than rank 0: "another", not '),
    ],
)
def test_a_rank_with_settings_code_or_data_of_its_own(launcher, fault, code, message, words, tmp_path):
    outcome = run_with_fault(launcher, fault, 1, "start", words, tmp_path / "mark")
    check(outcome, message, code, allowed=30)  # the ranks compare what they are when they have met


@pytest.fixture
def small_disk(tmp_path):
    """A folder with 12 MB, which hold two checkpoints."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", folder], capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"no small disk can be made here: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)  # a process that has just ended may still be let go of


@pytest.mark.parametrize("free", [500_000, 2_900_000], ids=["half a file fits", "all but the tail of a file fits"])
def test_a_full_disk(free, small_disk, words, tmp_path):
    words = [word for word in words if not word.startswith("models_root")]
    words += [f"models_root={small_disk}", "checkpoints_kept=2", "save_every=1000"]
    outcome = run_with_fault("mpi", "fill", 0, "save.copy", words, tmp_path / "mark", FREE_BYTES=str(free))
    check(outcome, "No space left on device")
    assert f"{small_disk}/small-arcface-demo/checkpoints/step-0000000008.writing/" in outcome.output
    assert checkpoints_in(small_disk) == [4]
    check_checkpoints(small_disk)
