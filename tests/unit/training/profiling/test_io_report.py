"""Report of an I/O profile: table, RAM disk, chart, JSON."""

import json
import os
import subprocess
from functools import partial

import pytest
from io_figures import SET, tally

from own_items import OnDisk, open_items
from partial_fc.data.training_data import DataLoader
from partial_fc.data.worker_batches import WorkerBatches
from partial_fc.training.profiling.facts import Phase, Profile, RankHost
from partial_fc.training.profiling.io_profile import _take_tally
from partial_fc.training.profiling.ram_disk import GIB, find_set_files, ram_disk_copy
from partial_fc.training.profiling.report import format_profile, write_report
from partial_fc.training.profiling.verdict import judge
from partial_fc.utils.system_counters import disk_bytes, idle_seconds

# Ranks 0 and 1 are on another host than rank 2, whose threads are the busiest.
UNEQUAL = Profile(
    Phase(
        "reader alone", 50, (tally(400, busy=1, reading=0.5, disk=10**7), tally(300, disk=None), tally(200, busy=0.8))
    ),
    Phase("training, dummy images", 50, (tally(1000, cores=0.5),) * 3),
    Phase(
        "training, the set",
        50,
        tuple(
            tally(100, waits, 1, busy, 0.2, disk, idle)
            for waits, busy, disk, idle in [(0, 0.4, 10**7, 20), (0.2, 0.4, 10**7, 20), (0.7, 1.6, 3 * 10**7, 5)]
        ),
    ),
    (RankHost("a", 4, 2, 31 * GIB), RankHost("a", 4, 2, 31 * GIB), RankHost("b", 2, 2, 64 * GIB)),
    True,
)


def test_unequal_ranks_and_hosts():
    table = [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in format_profile(UNEQUAL).split("\n")
    ]
    assert table[1] == ["reader alone", "900.0", "166.7", "-", "2", "-", "0 %", "1.0 of 2"]
    assert table[2] == ["training, dummy images", "3000.0", "50.0", "0.0 (0 %)", "-", "-", "-", "0.5 of 2"]
    assert table[3] == ["training, the set", "300.0", "500.0", "150.0 (30 %)", "2", "5.0", "12 %", "1.5 of 2"]
    text = judge(UNEQUAL, SET).text  # 25 % of host b, nothing of a
    assert text.startswith("Other programs used up to 25 % of the cores") and "rank 2 on b" in text
    assert "Other programs" not in judge(UNEQUAL._replace(training=UNEQUAL.dummies), SET).text


def test_a_profile_is_written_whole(tmp_path, capsys):
    settings = {"network": "r50", "dataset": "mine", "batch_size": 50, "image_size": 112}
    write_report(str(tmp_path), {**settings, "task_options": "jpeg_compression=30"}, SET, UNEQUAL, {"numpy": "2"})
    printed, verdict = capsys.readouterr().out, judge(UNEQUAL, SET, ("jpeg_compression",))
    assert "r50 on mine, batch_size 50, 3 ranks" in printed and format_profile(UNEQUAL) in printed
    assert verdict.text in printed and all(line in printed for line in verdict.lines)
    phases = {
        phase.name: {
            **{name: getattr(phase, name) for name in ("samples_per_second", "step_seconds", "wait_share")},
            "ranks": [tally._asdict() for tally in phase.tallies],
        }
        for phase in UNEQUAL.phases
    }
    assert json.loads((tmp_path / "io_profile.json").read_text()) == {
        **settings,
        **{"color_jittering": 0, "jpeg_compression": 30, "verdict": verdict._asdict(), "ranks": 3, "phases": phases},
        **{"rank_hosts": [host._asdict() for host in UNEQUAL.rank_hosts], "versions": {"numpy": "2"}},
    }


def test_all_files_of_a_data_set_are_copied(tmp_path):
    source, target = tmp_path / "my faces", tmp_path / "memory"
    source.mkdir()
    sizes = {"train.rec": 1000, "train.idx": 100, "property": 10, "lfw.bin": 5, "notes.txt": 7}
    for name, size in {**sizes, "identities.txt": 3, "demo.json": 2}.items():
        (source / name).write_bytes(bytes(size))
    (source / "folder.bin").mkdir()
    (source / "nowhere.bin").symlink_to("none")
    files = find_set_files(str(source / "train.rec"))
    assert files.bytes == 1120
    setting, (mount, copy) = ram_disk_copy(files, str(target))
    assert mount == f"sudo mkdir -p {target} && sudo mount -t tmpfs -o size=1G tmpfs {target}"
    subprocess.run(["bash", "-c", copy], check=True)
    copied = sorted(path.name for path in (target / "my faces").iterdir())
    assert copied == ["demo.json", "identities.txt", "lfw.bin", "property", "train.idx", "train.rec"]
    assert setting == f"rec='{target}/my faces/train.rec'"


def test_a_data_set_under_data_root_is_copied_under_a_data_root():
    setting, (_, copy) = ram_disk_copy(SET, "/ram")
    assert setting == "data_root=/ram" and copy.startswith("mkdir -p /ram/emore && cp /sets/emore/{property,train.idx,")


def test_what_worker_processes_read_from_the_disk_is_measured(tmp_path):
    path, size = tmp_path / "file", 1 << 16
    with open(path, "wb") as file:
        file.write(os.urandom(size))
        os.fsync(file.fileno())
    open_batches = partial(open_items, OnDisk, path=path)
    open_batches()  # now the file is no longer in memory
    before_own = disk_bytes()
    batches = WorkerBatches(open_batches(), open_batches, 1)
    if disk_bytes() == before_own:
        pytest.skip("this file system's reads are not counted")  # as of one in memory
    data = DataLoader(batches, 1, lambda position: batches.batch(*position))
    before = _take_tally(data, 0, 0.0)
    for _ in range(4):
        data.next()
    assert _take_tally(data, 16, 0.0).since(before).disk_bytes >= 16 * size
    data.close()


def test_counters_of_the_host(tmp_path):
    assert disk_bytes() >= 0
    io = tmp_path / "io"
    io.write_text("rchar: 5\nread_bytes: 4096\ncancelled_write_bytes: 0\n")
    assert disk_bytes(str(io)) == 4096
    assert disk_bytes(str(tmp_path / "none")) is None
    stat = tmp_path / "stat"
    stat.write_text("cpu  10 20 30 400 50 6 7\ncpu0 1 1 1 1 1\n")
    assert idle_seconds(str(stat)) == 450 / os.sysconf("SC_CLK_TCK")
    stat.write_text("cpu  0 0 0 0 0 0 0\n")
    assert idle_seconds(str(stat)) is None
