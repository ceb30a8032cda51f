"""Report of an I/O profile: table, RAM disk, chart, JSON."""

import os
import re
import subprocess

import pytest
from io_figures import SET, profile, tally

from partial_fc.training.profiling.facts import RankHost, disk_bytes, idle_seconds
from partial_fc.training.profiling.ram_disk import GIB, find_set_files, ram_disk_copy
from partial_fc.training.profiling.report import format_profile
from partial_fc.training.profiling.verdict import judge


def test_idle_cores_are_those_of_the_host_of_a_rank():
    measured = profile(tally(100), tally(100), [tally(100, cores=1.5)] * 3)
    rank_hosts = (RankHost("a", 4, 1, 5 * GIB), RankHost("a", 4, 2, 5 * GIB), RankHost("b", 2, 3, 9 * GIB))
    measured = measured._replace(rank_hosts=rank_hosts)
    assert [measured.idle_cores(measured.training, rank) for rank in range(3)] == [1, 1, 0.5]
    assert [len(measured.on_host_of(measured.training, rank)) for rank in range(3)] == [2, 2, 1]


def test_cores_used_by_other_programs_are_not_idle():
    measured = profile(tally(100), tally(100), [tally(100, cores=2, idle=15)], cores=4)  # 10 s: 1.5 of 4 are idle
    assert measured.idle_cores(measured.training, 0) == 1.5
    assert measured.idle_cores(measured.dummies, 0) == 3
    assert measured.taken_by_others(measured.training) == pytest.approx(0.125)
    assert measured.taken_by_others(measured.dummies) == 0
    text = judge(measured, SET).text
    assert text.startswith("Other programs used up to 12 % of the cores: measure again without them.")
    assert "Other programs" not in judge(measured._replace(training=measured.dummies), SET).text


def test_table():
    training = [tally(500, waits=0.1, busy=0.6, reading=0.06, disk=2 * 10**7), tally(500, waits=0.5, busy=0.6)]
    lines = format_profile(profile(tally(2000, busy=1), tally(1000), training, threads=3)).split("\n")
    columns = [line.split("  ") for line in lines[:4]]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in columns]
    assert cells[0][:3] == ["samples/s", "ms/step", "waits for data"]
    assert cells[1] == ["reader alone", "4000.0", "25.0", "-", "3", "0.0", "0 %", "2.0 of 8"]
    assert cells[2] == ["training, dummy images", "2000.0", "50.0", "0.0 (0 %)", "-", "-", "-", "2.0 of 8"]
    assert cells[3] == ["training, the set", "1000.0", "100.0", "30.0 (30 %)", "3", "2.0", "10 %", "2.0 of 8"]
    assert len({re.match(r".*? (samples/s|\d+\.\d)(?= )", line).end() for line in lines[:4]}) == 1
    unknown = [tally(500, waits=0.3)._replace(disk_bytes=None), tally(500, waits=0.35)]
    table = format_profile(profile(tally(2000), tally(1000), unknown))
    assert table.split("\n")[3].split()[-6:] == ["-", "0", "%", "2.0", "of", "8"]


@pytest.mark.parametrize("size, gib", [(1, 1), (20 * GIB // 21, 1), (GIB, 2), (20 * GIB, 21), (20 * GIB + 1, 22)])
def test_size_of_a_ram_disk(size, gib):
    assert SET._replace(bytes=size).ram_disk_gib == gib


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


def test_a_data_set_under_data_root_is_copied_under_a_data_root(tmp_path):
    (tmp_path / "emore").mkdir()
    (tmp_path / "emore" / "train.rec").write_bytes(b"1")
    files = find_set_files(str(tmp_path / "emore" / "train.rec"), "emore")
    setting, (_, copy) = ram_disk_copy(files, "/ram")
    assert setting == "data_root=/ram" and copy == f"mkdir -p /ram/emore && cp {tmp_path}/emore/train.rec /ram/emore/"


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
