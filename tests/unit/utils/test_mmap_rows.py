import contextlib
import os
from types import SimpleNamespace

import numpy as np
import pytest

from page_cache import PAGE, in_memory, require_disk, require_in_memory
from partial_fc.utils import mmap_rows
from partial_fc.utils.mmap_rows import RowFile, bank_files, page_runs

WIDTH = 512  # two rows a page
WIDTHS = {"weight": WIDTH, "weight_mom": WIDTH}


@pytest.mark.parametrize("row_bytes", [4, 400, 2048, 4096, 5000, 12288])
@pytest.mark.parametrize("count", [0, 1, 2, 40, 100])
def test_page_runs_are_the_pages_of_the_rows(row_bytes, count):
    index = np.sort(np.random.default_rng(count).choice(100, count, replace=False))
    starts, stops = page_runs(index, row_bytes)
    pages = {byte // PAGE for row in index.tolist() for byte in range(row * row_bytes, (row + 1) * row_bytes)}
    named = [page for start, stop in zip(starts, stops) for page in range(start // PAGE, stop // PAGE)]
    assert named == sorted(pages)
    assert (starts[1:] > stops[:-1]).all()
    repeated = page_runs(np.repeat(index, 3), row_bytes)
    np.testing.assert_array_equal(repeated, (starts, stops))


def test_rows_are_a_view_of_an_anonymous_file(tmp_path):
    file = RowFile(str(tmp_path), 8, WIDTH, reserve=True)
    assert not file.rows.any() and file.rows.shape == (8, WIDTH) and file.rows.dtype == np.float32
    file.rows[5] = 3
    file.flush()
    assert not os.listdir(tmp_path)
    read = np.fromfile(f"/proc/self/fd/{file._file.fileno()}", "<f4").reshape(8, WIDTH)
    np.testing.assert_array_equal(read, file.rows)


def test_only_written_pages_take_space(tmp_path):
    sparse, reserved = (RowFile(str(tmp_path), 4096, WIDTH, reserve) for reserve in (False, True))
    assert sparse.disk_bytes == 0 and reserved.disk_bytes >= 4096 * 2048
    assert not sparse.rows[::7].any()  # nor does reading
    sparse.rows[[0, 1, 100, 4000]] = 1
    sparse.flush()
    assert sparse.disk_bytes == 3 * PAGE


def written(file):
    """The bytes that the kernel has written for this process, including all changes of the file."""
    file.flush()
    with open("/proc/self/io") as counters:
        return next(int(line.split()[1]) for line in counters if line.startswith("write_bytes"))


@pytest.mark.parametrize("read_in_order", [False, True])
def test_a_changed_row_has_one_page_written(read_in_order, tmp_path):
    # If the page cache holds large units, the kernel writes whole units. Reading 32 MiB in order is enough for that.
    file = RowFile(str(tmp_path), 16384, WIDTH, reserve=True)
    file.rows[:] = 1
    if read_in_order:
        file.drop_pages()  # as the kernel does with a file larger than memory
        with file.sequential_access():
            assert file.rows.sum() == 16384 * WIDTH
    before = written(file)
    file.rows[::1024] += 1
    assert written(file) - before <= 16 * PAGE
    assert file.rows[::1024].sum() == 2 * 16 * WIDTH


def test_prefetch_reads_only_the_given_rows(tmp_path):
    require_disk(tmp_path)
    file = RowFile(str(tmp_path), 400, WIDTH, reserve=True)
    file.rows[:] = 1
    file.drop_pages()
    assert not in_memory(file)
    # The last 66 pages exceed a single request if the kernel's read-ahead is 128 KiB.
    index = np.concatenate([[2, 5, 7, 90], np.arange(268, 400)])
    file.prefetch(index)
    pages = set((index // 2).tolist())
    require_in_memory([file], [pages])


@pytest.mark.parametrize("read_in_order", [False, True])
def test_a_fault_reads_one_page(read_in_order, tmp_path):
    require_disk(tmp_path)
    file = RowFile(str(tmp_path), 400, WIDTH, reserve=True)
    file.rows[:] = 1
    with file.sequential_access() if read_in_order else contextlib.nullcontext():
        assert file.rows.all()
    file.drop_pages()
    assert file.rows[200, 7] == 1
    assert in_memory(file) == {100}


def test_the_files_of_a_bank(tmp_path):
    folder = tmp_path / "made" / "here"
    files = bank_files(str(folder), [6, 2], WIDTHS, sharing=2)
    shapes = [{field: file.rows.shape for field, file in piece.items()} for piece in files]
    assert shapes == [{field: (rows, width) for field, width in WIDTHS.items()} for rows in (6, 2)]
    weight, mom = zip(*(piece.values() for piece in files))
    assert sum(file.disk_bytes for file in weight) == 8 * 2048 and not any(file.disk_bytes for file in mom)


def test_narrow_fields_have_half_the_bytes(tmp_path, monkeypatch):
    widths = {**WIDTHS, "weight_updates": 1}
    free_bytes(monkeypatch, 2 * 16384 + 2 * 32, 16384 + 2 * 32)
    (files,) = bank_files(str(tmp_path), [16], widths, sharing=1, narrow=("weight", "weight_mom"))
    assert [file.rows.dtype for file in files.values()] == [np.uint16, np.uint16, np.float32]
    assert files["weight"].disk_bytes == 16384 and not files["weight"].rows.any()
    free_bytes(monkeypatch, 2 * 16384 + 2 * 32 - 1)
    with pytest.raises(OSError, match="need 32,832 more bytes"):
        bank_files(str(tmp_path), [16], widths, sharing=1, narrow=("weight", "weight_mom"))


def free_bytes(monkeypatch, *answers):
    """Makes shutil.disk_usage return these numbers of free bytes, one after the other."""
    usages = iter([SimpleNamespace(free=free) for free in answers])
    monkeypatch.setattr(mmap_rows.shutil, "disk_usage", lambda folder: next(usages))


def test_a_disk_without_space_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    # 8 rows of 2,048 bytes: the weights of this rank and the momentum of all three ranks.
    free_bytes(monkeypatch, 4 * 16384 - 1)
    with pytest.raises(OSError, match=f"need 65,536 more bytes in {tmp_path}, which has 65,535 bytes free: free space"):
        bank_files(str(tmp_path), [8], WIDTHS, sharing=3)
    free_bytes(monkeypatch, 4 * 16384, 3 * 16384)
    bank_files(str(tmp_path), [8], WIDTHS, sharing=3)

    # If ranks check at the same time, the last one sees all allocations.
    free_bytes(monkeypatch, 4 * 16384, 3 * 16384 - 1)
    with pytest.raises(OSError, match="need 49,152 more bytes in .* which has 49,151 bytes free"):
        bank_files(str(tmp_path), [8], WIDTHS, sharing=3)


def test_an_unusable_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="cannot create the folder .*file/inside: Not a directory"):
        bank_files(str(tmp_path / "file" / "inside"), [8], WIDTHS, sharing=1)
    with pytest.raises(OSError, match="cannot create a file of 16384 bytes in /proc: "):
        RowFile("/proc", 8, WIDTH, reserve=True)
