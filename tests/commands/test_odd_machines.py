"""Training on machines with missing, small or unusual parts.

test_faults.py, test_preemption.py and test_restarts.py have killed and stopped processes and full disks.
"""

import json
import os
import random
import re
import shutil
import subprocess
import textwrap

import pytest
from conftest import IN_TURN, LIMIT, TORCH, VERIFIED, needs_torch
from groups import ENDLESS, checkpoint_contents, checkpoints_in, read_until, started

from paths import ROOT
from small_disk import small_disk

PYTHON = TORCH / "python"
MOMENTS = 20
# A machine with a /dev/shm of 64 KiB and 64 open files per process.
SMALL = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && ulimit -n 64 && exec bash "$@"'
SMALL_MACHINE = ["unshare", "-m", "--propagation", "private", "bash", "-c", SMALL, "bash"]
BARE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "OMP_NUM_THREADS": "1", "NP": "2"}


@pytest.mark.slow
@pytest.mark.parametrize("script", ["run.sh", pytest.param("pytorch/run.sh", marks=needs_torch)])
def test_a_small_machine_without_locale_home_and_temporary_folder(script, settings, faces, tmp_path):
    """The paths have spaces and non-ASCII letters."""
    if subprocess.run([*SMALL_MACHINE, "-c", "true"], capture_output=True).returncode:
        pytest.skip("needs root to mount a small /dev/shm")
    data, models = tmp_path / "fa ces é 数", tmp_path / "mo dels ü"
    shutil.copytree(faces.parent, data)
    arguments = [*(word for word in settings if not word.startswith("models_root=")), *VERIFIED]
    arguments += [f"rec={data}/train.rec", f"models_root={models}", "checkpoint_every=4"]
    command = [*SMALL_MACHINE, script, *arguments]
    with started(command, BARE) as group:
        output, _ = group.communicate(timeout=LIMIT)
    assert group.returncode == 0, output
    folder = models / "small-arcface-demo"
    assert json.loads((folder / "summary.json").read_text())["verification"].keys() == {"demo_val"}
    assert checkpoints_in(models) == [4, 7]
    assert f"all written to {folder}\n" in output
    assert f"partial-fc verify '{folder}' '{data}/demo_val.bin'\n" in output


@needs_torch
def test_a_read_only_output_disk(run, settings, tmp_path):
    with small_disk(tmp_path / "disk", "1m") as disk:
        (disk / "out").mkdir()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        result = run(*IN_TURN, "1", "train", *settings, f"output={disk}/out")
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith(f"error: cannot write to the output folder {disk}/out (Read-only file system): set")
    assert result.stderr.count("\n") == 1


@needs_torch
def test_a_data_file_that_shrinks_during_training(settings, faces, tmp_path):
    shutil.copytree(faces.parent, tmp_path / "faces")
    rec = tmp_path / "faces" / "train.rec"
    with started([PYTHON, "train.py", *settings, *ENDLESS, f"rec={rec}"]) as group:
        read_until(group, "Global Step: 2 ")
        os.truncate(rec, rec.stat().st_size // 2)
        output, _ = group.communicate(timeout=LIMIT)
    assert group.returncode == 1, output
    (line,) = re.findall("^error.*", output, re.MULTILINE)
    assert f"{rec}: key " in line and "truncated by the end of the file" in line, line


# Trains repeatedly, in forks of a process that has imported the libraries, because the imports take longest. Each child
# but the last gets SIGTERM after one of the given CPU times, which do not depend on the machine's load. Prints each
# child's exit code and two CPU times: when it wrote the settings, just before its first update, and at its end.
STOPPED_OFTEN = textwrap.dedent("""
    import os, signal, sys, time
    import matplotlib.figure, onnx, onnxruntime, torch._dynamo, torch.onnx, train
    from partial_fc.training import trainer
    from partial_fc_torch import build
    moments, settings, *arguments = sys.argv[1:]
    tick = os.sysconf("SC_CLK_TCK")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    for moment in [*map(float, moments.split()), 1e9]:
        child = os.fork()
        if not child:
            train.main(arguments)
            os._exit(0)
        state, begun = "", 0.0
        while state != "Z":  # a process that has ended
            state, *fields = open(f"/proc/{child}/stat").read().rpartition(")")[2].split()
            used = (int(fields[10]) + int(fields[11])) / tick
            if not begun and os.path.exists(settings):
                begun = used
            if used >= moment:
                os.kill(child, signal.SIGTERM)
                break
            time.sleep(0.005)
        print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), begun, used, flush=True)
""")


@pytest.mark.slow
@needs_torch
def test_a_training_stopped_at_twenty_moments_ends_with_the_bytes_of_an_undisturbed_one(run, settings, tmp_path):
    """The moments include the start, steps, verifications and saves."""
    often = ["max_update=100", "verify_every=20", "save_every=30", "checkpoint_every=5", "sample_ratio=0.5"]
    arguments = [*settings, *often, "dropout=0.3", "embedding_size=32", "frequent=20", "val_targets=['demo_val']"]

    def train(name, moments):
        """Returns the CPU times before the first update and in all, the last checkpoint's manifest, and the output."""
        folder = tmp_path / name / "small-arcface-demo"
        command = [PYTHON, "-c", STOPPED_OFTEN, " ".join(map(str, moments)), folder / "settings.json", *arguments]
        paths = f"{ROOT}:{ROOT / 'pytorch'}"
        result = run(*command, "--resume", "auto", f"models_root={tmp_path / name}", PYTHONPATH=paths)
        codes, starts, ends = zip(*re.findall(r"^ended (\S+) (\S+) (\S+)$", result.stdout, re.MULTILINE))
        assert result.returncode == 0 and codes == ("75",) * len(moments) + ("0",), result.stdout + result.stderr
        _, manifest = checkpoint_contents(folder / "checkpoints" / "step-0000000100")
        return float(starts[0]), float(ends[-1]), manifest, result.stdout

    start, end, whole, _ = train("whole", [])
    draw = random.Random(7)
    # Three quarters of the children stop after their first update, in all before the training ends; the others before.
    after = [start + draw.uniform(0, 1.3 * (end - start) / MOMENTS) for _ in range(MOMENTS * 3 // 4)]
    _, _, parts, output = train("parts", [*after, *(draw.uniform(0, start) for _ in range(MOMENTS // 4))])
    assert parts.files == whole.files and parts.rank_states == whole.rank_states
    assert parts.state["data"] == whole.state["data"]
    assert output.count("resumes from update") > MOMENTS // 2, output
