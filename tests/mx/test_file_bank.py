import os
import subprocess
import sys
import threading

import mxnet as mx
import numpy as np
import pytest

from partial_fc.layer import bank_files
from partial_fc.utils.mmap_rows import RowFile
from partial_fc_mxnet import MemoryBank
from partial_fc_mxnet.layer import center_storage

E = 512  # two rows a page


def bank(prefix, folder=None, num_local=3000, num_sample=100, **more):
    return MemoryBank(num_sample, num_local, 0, 0, E, str(prefix), folder=folder, class_start=0, **more)


@pytest.fixture(params=["one piece", "three pieces"])
def pair(request, tmp_path, monkeypatch):
    """A bank in memory and one in files with the same parameters."""
    if request.param == "three pieces":
        monkeypatch.setattr(center_storage, "MAX_ELEMENTS", 1200 * E)
    return bank(tmp_path / "memory"), bank(tmp_path / "file", str(tmp_path / "bank"))


def assert_same(pair):
    for in_ram, in_file in zip(*(b.get(np.arange(b.num_local)) for b in pair)):
        np.testing.assert_array_equal(in_ram.asnumpy(), in_file.asnumpy())


def test_rows_and_saved_files_equal_those_of_memory(pair, tmp_path):
    for b in pair:
        index, _ = b.sample(np.array([3, 1199, 1200, 2999]))
        weight, mom = b.get(index)
        b.set(index, weight + 1, mom + 2)
        b.save()
    assert_same(pair)
    assert pair[1].get(index)[1].asnumpy().min() == 2
    for name in ("0_centers.param", "0_centers_mom.param"):
        first, second = (tmp_path / where / name for where in ("memory", "file"))
        assert first.read_bytes() == second.read_bytes()
    other = bank(tmp_path / "memory", str(tmp_path / "bank"), seed=5)
    other.load()
    assert_same((pair[0], other))


def anonymous_memory():
    """Returns the bytes of anonymous memory of this process."""
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))


def test_save_and_load_need_little_memory(tmp_path):
    b = bank(tmp_path, str(tmp_path / "bank"), num_local=16384)  # 32 MiB each
    samples, end = [anonymous_memory()], threading.Event()

    def sample():
        while not end.wait(1e-3):
            samples.append(anonymous_memory())

    thread = threading.Thread(target=sample)
    thread.start()
    b.save()
    b.load()
    end.set()
    thread.join()
    assert len(samples) > 10
    assert max(samples) - samples[0] < 12 << 20


def test_bank_without_classes_creates_no_file(tmp_path):
    b = bank(tmp_path, str(tmp_path / "bank"), num_local=0)
    b.save()
    b.load()
    with mx.util.np_shape(True):
        assert b.get(np.arange(0))[0].shape == (0, E)


def test_fill_flushes_and_logs_progress(tmp_path, monkeypatch, caplog):
    flushed = []
    flush = RowFile.flush
    monkeypatch.setattr(RowFile, "flush", lambda file: flushed.append(file.rows.any(axis=1).sum()) or flush(file))
    monkeypatch.setattr(bank_files, "LOG_SECONDS", 0.0)
    monkeypatch.setattr(bank_files, "FLUSH_BYTES", 4 << 20)
    caplog.set_level("INFO")
    bank(tmp_path, str(tmp_path / "bank"), num_local=5000)
    assert flushed == [2048, 4096]
    assert caplog.messages == [f"wrote weight of {n} of this rank's 5000 centers" for n in flushed]


def test_process_exits_cleanly_while_its_arrays_are_in_use(tmp_path):
    program = """
import sys
import mxnet as mx, numpy as np
from partial_fc_mxnet import MemoryBank
bank = MemoryBank(10, 3000, 0, 0, 512, "", folder=sys.argv[1], class_start=0)
index, _ = bank.sample(np.arange(20))
kept = bank.weight[5:9] + mx.nd.dot(bank.weight, bank.weight, transpose_b=True)[:4, :512]
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)), capture_output=True)
    assert (done.returncode, done.stderr, os.listdir(tmp_path)) == (0, b"", [])
