"""Trains undisturbed once, then repeatedly while killing random ranks at random moments, and compares every byte.

python benchmarks/soak.py                                      # 30 minutes of the demo, 2 ranks
python benchmarks/soak.py --trainer torch                      # with PyTorch
python benchmarks/soak.py --minutes 1 max_update=60 dataset=demo rec=...       # arguments of run.sh come last

run.sh or pytorch/run.sh restarts the training from its newest checkpoint after each kill. The last checkpoints are
compared by the SHA-256 in their manifests, of the backbone, the running statistics, all centers and their momentum.
"""

import argparse
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from partial_fc.checkpoint import CheckpointFolder, read_manifest  # noqa: E402

SCRIPTS = {"mxnet": "run.sh", "torch": "pytorch/run.sh"}
PROGRAMS = {b"train_memory.py", b"train.py"}
# Verification and intermediate models would take time, and the last checkpoint shows more.
SETTINGS = ["checkpoint_every=50", "baselines=False", "verify_every=100000", "save_every=100000"]


def ranks_of(models: Path) -> list[int]:
    """Returns the process ids of the ranks that train into this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended
                continue
            # The launchers also have the program among their arguments: train.py with --nproc, the others later.
            names = {os.path.basename(argument) for argument in arguments[:3]}
            if f"models_root={models}".encode() in arguments and PROGRAMS & names and b"--nproc" not in arguments:
                found.append(int(entry.name))
    return found


def start(models: Path, script: str, arguments: list[str], log) -> subprocess.Popen:
    """Starts a training that restarts by itself."""
    command = ["bash", str(ROOT / script), *SETTINGS, *arguments, f"models_root={models}"]
    return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "MAX_RESTARTS": "100000"})


def pauses(longest: float, kills: int | None) -> Iterator[float]:
    """Yields random seconds to wait before each kill, then infinity."""
    for _ in itertools.count() if kills is None else range(kills):
        yield random.uniform(0, longest)
    yield from itertools.repeat(3600.0)


def kill_a_rank(models: Path, job: subprocess.Popen) -> int:
    """Kills a random rank as soon as there is one; returns 1, or 0 if the training has ended before."""
    while job.poll() is None:
        if ranks := ranks_of(models):
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(random.choice(ranks), signal.SIGKILL)
                return 1
        time.sleep(0.05)
    return 0


def train(models: Path, script: str, arguments: list[str], waits: Iterator[float]) -> int:
    """Trains to the end and kills a rank after each of the waits in seconds; returns the number of kills."""
    kills = 0
    with open(f"{models}.log", "wb") as log, start(models, script, arguments, log) as job:
        for wait in waits:
            try:
                job.wait(wait)
                break
            except subprocess.TimeoutExpired:
                kills += kill_a_rank(models, job)
    if job.returncode:
        sys.exit(f"error: {script} ended with {job.returncode}, see {models}.log")
    return kills


def outcome(models: Path) -> dict:
    """Returns the entries of the newest checkpoint's manifest, and its update."""
    (folder,) = models.glob("*/checkpoints")
    num_update, path = CheckpointFolder(str(folder), kept=1).complete()[0]
    return {"num_update": num_update, "files": read_manifest(path).files}


def main() -> None:
    """Prints a line for each training and a summary; exits with 1 if a byte differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", choices=SCRIPTS, default="mxnet")
    parser.add_argument("--minutes", type=float, default=30, help="time after which no training is started")
    parser.add_argument("--longest", type=float, default=60, help="maximum seconds between two kills")
    parser.add_argument("--kills", type=int, help="maximum kills per training (default: no limit)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the ranks and moments")
    options, arguments = parser.parse_known_args()
    random.seed(options.seed)
    script = SCRIPTS[options.trainer]
    work = Path(tempfile.mkdtemp(prefix="soak"))
    train(work / "undisturbed", script, arguments, pauses(0, kills=0))
    expected = outcome(work / "undisturbed")
    print(f"undisturbed: {expected['num_update']} updates", flush=True)
    begun, trainings, kills = time.monotonic(), 0, 0
    while trainings == 0 or time.monotonic() - begun < 60 * options.minutes:
        models = work / f"disturbed-{trainings}"
        now = train(models, script, arguments, pauses(options.longest, options.kills))
        trainings, kills = trainings + 1, kills + now
        same = outcome(models) == expected
        print(f"training {trainings}: {now} kills, {'every byte the same' if same else 'DIFFERENT'}", flush=True)
        if not same:
            sys.exit(f"error: see {models} and {work / 'undisturbed'}")
        shutil.rmtree(models)
    minutes = (time.monotonic() - begun) / 60
    print(f"{trainings} trainings with {kills} kills in {minutes:.1f} minutes, every byte that of the undisturbed one")
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
