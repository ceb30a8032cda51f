"""partial-fc index: recall, limits and memory of indexes that search opens."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from command_line import exit_code, interruptible
from index_files import build, drop, embeddings, finds_all, index, search, write
from partial_fc.data.synthetic.draw import draw_face
from partial_fc_tools.index.folder import IndexFolder
from tiny_onnx import TinyModel
from waiting import happens

pytest.importorskip("faiss", reason="pip install faiss-cpu")
pytestmark = pytest.mark.usefixtures("two")


@pytest.mark.parametrize("dtype, tolerance", [("int8", 0.03), ("float32", 1e-5)])
def test_results_are_those_of_exact_search(capsys, dtype, tolerance):
    build(dtype=dtype)
    assert f"index: 300 embeddings of dimension 16 in {dtype}" in capsys.readouterr().out
    queries = embeddings(100, seed=2)
    exact = queries @ embeddings().T
    names, cosines = search("index", queries, 3)
    best = [f"a/{row}" for row in exact.argmax(axis=1)]
    assert np.mean([name == three[0] for name, three in zip(best, names)]) > 0.95  # int8 may swap near-equal results
    np.testing.assert_allclose(np.stack(cosines), -np.sort(-exact, axis=1)[:, :3], atol=tolerance)
    assert 0.99 < np.max(search("index", embeddings())[1]) <= 1


def test_recall_is_the_fraction_of_entries_whose_nearest_other_entry_is_found(capsys, monkeypatch):
    monkeypatch.setattr("partial_fc_tools.index.ivf.EFFORT", 1)
    build(rows=(rows := embeddings(900)), dtype="float32")
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -1)
    lists = IndexFolder("index").lists
    others = [[other for other in lists.nearest(row, 2)[0] if other != number] for number, row in enumerate(rows)]
    hits = sum(other[:1] == [best] for other, best in zip(others, cosines.argmax(axis=1)))
    assert 100 < hits < 800
    assert index("check", "index", "--queries", 10_000) == 0
    assert f"recall of rank 1 is {hits / 900:.4f} ({hits} of 900 entries)" in capsys.readouterr().out
    assert index("check", "index", "--queries", 7) == 0
    assert " of 7 entries)" in capsys.readouterr().out


def test_recall_counts_any_of_several_equal_entries(capsys):
    build(rows=np.repeat(embeddings(60), 5, axis=0))
    assert index("check", "index") == 0
    assert "recall of rank 1 is 1.0000 (200 of 200" in capsys.readouterr().out


@pytest.mark.parametrize(
    "limit, count, added, before, after",
    [(3, 40, 300, 1, 3), (3, 160, 300, 3, 3), (4096, 80, 79, 2, 2), (4096, 80, 80, 2, 4)],
)
def test_the_number_of_lists_is_limited_and_grows_when_it_doubles(monkeypatch, limit, count, added, before, after):
    monkeypatch.setattr("partial_fc_tools.index.ivf.LISTS", limit)
    build(rows=embeddings(count), dtype="float32")
    assert IndexFolder("index").lists.index.nlist == before
    write("b", embeddings(added, seed=1))
    assert index("add", "index", "b") == index("check", "index") == 0
    assert IndexFolder("index").lists.index.nlist == after
    assert finds_all("index", embeddings(count), "a") and finds_all("index", embeddings(added, seed=1), "b")


def test_ctrl_c_during_a_build_leaves_nothing():
    write("many", embeddings(200_000, size=64))
    before = sorted(os.listdir())
    with interruptible("-m", "partial_fc_tools", "index", "build", "many", "--out", "index") as child:
        assert happens(lambda: sorted(os.listdir()) != before)
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors, sorted(os.listdir())) == (130, "interrupted\n", before)


def test_search_opens_both_kinds(tmp_path, capsys):
    os.mkdir("faces")
    for person in range(6):
        cv2.imwrite(f"faces/{person}.png", draw_face(4, person, 0)[:, :, ::-1])
    TinyModel().write(tmp_path / "backbone.onnx")
    assert exit_code("embed", "faces", "--model", "backbone.onnx", "--out", "known") == 0
    build("known", dtype="float32")
    capsys.readouterr()
    words = ["search", "faces/2.png", "--top", "9", "--model", "backbone.onnx", "--index"]
    assert exit_code(*words, "known") == 0
    exact = capsys.readouterr()
    assert exact.err == "exact search in 6 embeddings\n"
    assert exit_code(*words, "index") == 0
    assert capsys.readouterr() == (exact.out, "approximate search in 6 embeddings\n")
    for kind in ("known", "index"):
        assert exit_code(*words, kind, "--no-flip") == 2
        assert f"{kind} was made with mirror images, backbone.onnx without" in capsys.readouterr().err
    Path("known.json").write_text("{}")
    assert exit_code(*words, "known") == 2 and "known.json cannot be used" in capsys.readouterr().err
    os.remove("known.json")  # earlier versions wrote none
    assert exit_code(*words, "known") == 0


SEARCH = """
import faiss
import numpy as np
from partial_fc_tools.index import ivf
from partial_fc_tools.index.folder import IndexFolder

def megabytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4 / 1024

ivf.EFFORT = 8
before = megabytes()
index = IndexFolder("index")
ids, _ = index.lists.nearest(np.load("a.npy", mmap_mode="r")[3000], 1)
assert index.names[ids[0]] == "a/3000"
print(megabytes() - before)
"""
BUILD = """
import faiss
import numpy as np
from partial_fc_tools.index import writer

def megabytes():
    return int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0]) / 1024

def read(part):
    grown.append(megabytes() - before)
    return rows[part]

writer.HELD, writer.SAMPLE, writer.PART = 1 << 20, 400, 400
rows, before, grown = np.load("a.npy", mmap_mode="r"), megabytes(), []
lists = writer.Writer(".", 2048, "float32")
lists.add(0, read, len(rows))
lists.save("lists")
print(max(*grown, megabytes() - before))
"""


@pytest.mark.parametrize("program", [SEARCH, BUILD], ids=["search", "build"])
def test_neither_search_nor_build_holds_the_index_in_memory(program):
    """A search reads 8 of its 250 lists."""
    rows = embeddings(10_000, size=2048)
    write("a", rows)
    if program == SEARCH:
        build(dtype="float32")
    with interruptible("-c", program, stdout=subprocess.PIPE) as child:
        grown = float(child.communicate(timeout=60)[0])
    assert grown < rows.nbytes / 2**20 / 2, grown


def test_without_faiss(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match="pip install faiss-cpu"):
        index("build", "a", "--out", "index")
    assert not os.path.exists("index")


def test_a_search_finds_as_many_as_it_is_asked_for():
    build("many", dtype="float32", rows=embeddings(24_000))
    assert len(search("index", embeddings(1), 30_000)[0][0]) == 24_000
    drop("index", [f"many/{row}" for row in range(5, 24_000)])  # which leaves nearly all lists empty
    assert {len(names) for names in search("index", embeddings(100, seed=9), 5)[0]} == {5}


def test_empty_indexes_and_few_entries(capfd):
    build(rows=embeddings(2))
    assert capfd.readouterr().err == ""  # no warning of faiss
    drop("index", ["a/0", "a/1"])
    assert search("index", embeddings(1))[0] == [[]]
    assert index("check", "index") == 2
    shutil.copytree("index", "other")
    assert index("merge", "index", "other") == 0
    assert index("add", "index", "a") == 0 and finds_all("index", embeddings(2), "a")
    write("none", embeddings(0))
    assert index("build", "none", "--out", "new") == 2
    assert "none has no embeddings" in capfd.readouterr().err


def test_a_path_may_contain_any_bytes():
    build(folder=os.fsdecode(b"caf\xe9"))
    assert index("check", os.fsdecode(b"caf\xe9")) == 0


@pytest.mark.slow
@pytest.mark.thorough
def test_the_benchmark_compares_with_exact_search():
    program = [sys.executable, Path(__file__).parents[3] / "benchmarks/index.py", "--quick", "--candidates"]
    done = subprocess.run([*program, "IVF int8"], capture_output=True, text=True, timeout=800, check=True)
    rate, *recall = done.stdout.splitlines()[-1].split(": ")[1].split(", ")
    assert int(rate.replace(",", "")) > 0 and min(map(float, recall)) > 0.8 and max(map(float, recall)) <= 1
