"""Damage to a checkpoint's files is reported with the file name before the file is used."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from checkpoint_files import E, write_checkpoint
from partial_fc.checkpoint import array_chunks, read_manifest, verify_share, write_file, write_manifest
from partial_fc.checkpoint.verify import verify_file
from partial_fc_tools.checkpoints.check import check

KINDS = ["backbone.npz", "rank-00001.npz", "centers-00000.npy", "momentum-00001.npy"]


@pytest.fixture
def step(tmp_path):
    return write_checkpoint(tmp_path, 500)


def verify(path):
    """As a training does that resumes from it."""
    verify_share(path, 0, 1, report_progress=lambda: None)


def refused(step, file, message, capsys):
    with pytest.raises((OSError, ValueError), match=f"{step}/{file}.*{message}"):
        verify(step)
    assert check(step) == 1
    assert f"{step}/{file}" in capsys.readouterr().out


def test_an_undamaged_checkpoint_passes(step, capsys):
    with open(f"{step}/notes.txt", "w") as file:
        file.write("another file in the folder")
    verify(step)
    assert check(step) == 0
    assert capsys.readouterr().out == f"{step}: undamaged, all files verified\n"


@pytest.mark.parametrize("place", [0, 0.6, 1])
@pytest.mark.parametrize("name", KINDS)
def test_a_flipped_bit(name, place, step, capsys):
    path = Path(step, name)
    data = bytearray(path.read_bytes())
    data[int(place * (len(data) - 1))] ^= 1 << 5
    path.write_bytes(data)
    refused(step, name, "damaged", capsys)


@pytest.mark.parametrize("plant", [lambda path: os.symlink("/dev/zero", path), os.mkfifo])
def test_a_file_without_end(plant, step, capsys):
    """Its size is 0, as the manifest says."""
    manifest = read_manifest(step)
    files = {**manifest.files, KINDS[0]: manifest.files[KINDS[0]]._replace(bytes=0)}
    write_manifest(step, replace(manifest, files=files))
    os.remove(f"{step}/{KINDS[0]}")
    plant(f"{step}/{KINDS[0]}")
    with pytest.raises(OSError, match=f"not a regular file: .*{KINDS[0]}"):
        verify(step)
    assert check(step) == 1 and KINDS[0] in capsys.readouterr().out


@pytest.mark.parametrize("size", [0, 60, 10_000])
@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_another_size(name, size, step, capsys):
    os.truncate(f"{step}/{name}", size)
    refused(step, name, f"{size} bytes, expected ", capsys)


@pytest.mark.parametrize("name", KINDS + ["manifest.json"])
def test_a_missing_file(name, step, capsys):
    os.remove(f"{step}/{name}")
    with pytest.raises(OSError, match=f"{step}/{name} (is missing|does not exist)"):
        verify(step)


@pytest.mark.parametrize("name", ["centers-00002.npy", "momentum-00002.npy", "rank-00007.npz"])
def test_a_surplus_shard(name, step, capsys):
    shutil.copy(f"{step}/{name[:-9]}00001{name[-4:]}", f"{step}/{name}")
    refused(step, name, "is not in the manifest", capsys)


@pytest.mark.parametrize("shape", [(4, E + 1), (3, E), (4 * E,)])
def test_a_shard_of_another_shape_with_the_right_hash(shape, step, capsys):
    """Only a program with a defect would write it."""
    manifest = read_manifest(step)
    entry = write_file(f"{step}/centers-00000.npy", array_chunks([np.ones(shape, np.float32)]))
    write_manifest(step, replace(manifest, files={**manifest.files, "centers-00000.npy": entry}))
    assert check(step) == 1
    assert f"{step}/centers-00000.npy holds float32 of shape" in capsys.readouterr().out


@pytest.mark.parametrize("size, parts", [(8 << 20, 2), ((8 << 20) + 1, 3)])
def test_large_files_are_read_to_the_last_byte_and_progress_is_reported(size, parts, step):
    signs, path = [], Path(step, "large")
    entry = write_file(str(path), [bytes(size)])
    verify_file(step, "large", entry, report_progress=lambda: signs.append(1))
    assert len(signs) == parts
    path.write_bytes(bytes(size - 1) + b"1")
    with pytest.raises(ValueError, match="large is damaged"):
        verify_file(step, "large", entry, report_progress=lambda: None)


@pytest.mark.parametrize("ranks", [2, 3, 20])
def test_each_file_is_read_by_one_of_the_ranks_that_share_a_checkpoint(ranks, step):
    names = sorted(read_manifest(step).files)
    for number, name in enumerate(names):
        whole = Path(step, name).read_bytes()
        Path(step, name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        refusing = []
        for rank in range(ranks):
            try:
                verify_share(step, rank, ranks, report_progress=lambda: None)
            except ValueError as error:
                assert f"{step}/{name} is damaged" in str(error)
                refusing.append(rank)
        assert refusing == [number % ranks]
        Path(step, name).write_bytes(whole)
