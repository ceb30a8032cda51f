"""partial-fc index: entries after additions, removals, merges and interruptions."""

import os
import resource
import shutil
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from command_line import interruptible, start
from index_files import COUNT, ORIGIN, SIZE, build, content, drop, embeddings, finds_all, index, search, unit, write
from open_files import few_open_files
from partial_fc_tools.index import folder as folder_module
from partial_fc_tools.index import writer as writer_module
from partial_fc_tools.index.folder import IndexFolder, changing
from partial_fc_tools.index.ivf import Lists
from partial_fc_tools.index.writer import Writer
from partial_fc_tools.inference.index import Index, write_index
from partial_fc_tools.inference.origin import Origin

pytest.importorskip("faiss", reason="pip install faiss-cpu")
pytestmark = pytest.mark.usefixtures("two")
FILES = 7  # of an index


def test_entries_are_added_removed_and_merged(capsys):
    write("c", embeddings(seed=3))
    build()
    build("c", "other")
    assert index("add", "index", "b") == 0
    assert "index: added 300, now 600 embeddings" in capsys.readouterr().out
    removed = {f"a/{row}" for row in range(0, COUNT, 2)}
    Path("names.txt").write_text("\r\n".join(removed))  # without a last line end
    Path("more.txt").write_text("c/0", "utf-16")
    assert index("remove", "index", "names.txt") == index("remove", "other", "more.txt") == 0
    assert "index: removed 150, now 450 embeddings" in capsys.readouterr().out
    before = content("other")
    assert index("merge", "index", "other") == 0
    assert "added 299, now 749 embeddings" in capsys.readouterr().out
    assert content("other") == before
    assert len(os.listdir("index")) == FILES  # files of earlier changes are gone
    assert finds_all("index", embeddings(seed=1), "b")
    names = [name for (name,) in search("index", embeddings())[0]]
    assert names[1::2] == [f"a/{row}" for row in range(1, COUNT, 2)]
    assert not (removed | {"c/0"}) & set(names)


def test_more_indexes_are_merged_than_files_may_be_open():
    rows = embeddings(40, seed=1)
    for number in range(40):
        write("one", rows[number : number + 1], f"b{number}")
        build("one", f"index-{number}")
    with few_open_files(20):
        assert index("merge", *(f"index-{number}" for number in range(40))) == 0
        assert index("add", "index-0", "a") == index("check", "index-0") == 0
        assert search("index-0", rows)[0] == [[f"b{number}/0"] for number in range(40)]


class Changes:
    """Changes an index, and remembers which embeddings it should hold, by name."""

    def __init__(self, dtype):
        self.dtype, self.expected, self.written = dtype, {}, 0

    def write_new(self, count):
        self.written += 1
        rows = embeddings(count, seed=self.written, size=64)
        write("new", rows, str(self.written))
        return {f"{self.written}/{row}": rows[row] for row in range(count)}

    def add(self, count):
        self.expected |= self.write_new(count)
        assert index("add", "index", "new") == 0

    def remove(self, every):
        removed = list(self.expected)[::every]
        drop("index", removed)
        self.expected = {name: row for name, row in self.expected.items() if name not in removed}

    def merge(self, count):
        """Merges two indexes, each without a third of its entries."""
        for other in ("other", "last"):
            more = self.write_new(count)
            shutil.rmtree(other, ignore_errors=True)
            build("new", other, self.dtype)
            removed = list(more)[1::3]
            drop(other, removed)
            self.expected |= {name: row for name, row in more.items() if name not in removed}
        assert index("merge", "index", "other", "last") == 0

    def add_again(self, every):
        """Removes entries, and adds them with the same names."""
        names = list(self.expected)[1::every]
        drop("index", names)
        write_index("new", Index(np.stack([self.expected[name] for name in names]), names), ORIGIN)
        assert index("add", "index", "new") == 0


@pytest.mark.parametrize("dtype, least", [("int8", 0.9), ("float32", 0.9999)])
@pytest.mark.parametrize("small", [False, True])
def test_after_each_of_several_changes_every_entry_finds_itself(monkeypatch, dtype, least, small):
    """With ``small``, the index is larger than its training sample, a part, and the memory for new entries."""
    for name, size in {"SAMPLE": 70, "ADDED": 30, "PART": 40, "HELD": 2_000}.items() if small else ():
        monkeypatch.setattr(writer_module, name, size)
    changes = Changes(dtype)
    changes.expected = changes.write_new(90)
    build("new", dtype=dtype)
    for change, number in (
        *(("remove", 2), ("merge", 100), ("add", 1), ("remove", 5), ("remove", 3), ("add_again", 4), ("merge", 7)),
        *(("add", 150), ("merge", 60), ("add", 20), ("add_again", 2), ("remove", 1), ("merge", 30), ("add", 5)),
    ):
        getattr(changes, change)(number)
        opened, names = IndexFolder("index"), sorted(changes.expected)
        assert sorted(opened.present()[1]) == names and len(opened.lists) == len(names)
        if names:
            best, cosines = search("index", [changes.expected[name] for name in names])
            assert best == [[name] for name in names] and np.min(cosines) > least


@pytest.mark.parametrize(
    "options, message",
    [
        ({"prefix": "a"}, "{}: a/0 would be in the index twice"),
        ({"rows": embeddings(seed=1, size=8)}, "{} has embeddings of dimension 8, index of dimension 16"),
        ({"origin": Origin("1" * 64, True)}, "made with another model file than {}"),
        ({"origin": Origin(None, False)}, "made with mirror images, {} without"),
    ],
)
def test_embeddings_that_do_not_fit_change_nothing(capsys, options, message):
    build()
    write("b", **{"rows": embeddings(seed=1), **options})
    build("b", "other")
    before = content("index")
    for command, source in (("add", "b"), ("merge", "other")):
        assert index(command, "index", source) == 2
        assert message.format(source) in capsys.readouterr().err and content("index") == before
    write("converted", embeddings(3, seed=1), origin=Origin(None, True))  # its model is unknown
    assert index("add", "index", "converted") == 0


def test_refused_changes(capsys):
    build()
    build("b", "wide", "float32")
    build("b", "other")
    write_index("twice", Index(embeddings(2, seed=1), ["c", "c"]), ORIGIN)
    Path("names.txt").write_text("a/1\nb/1\n")
    Path("none.txt").write_text("")

    def refused(message, words):
        before = content("index")
        assert index(*words.split()) == 2
        assert message in (error := capsys.readouterr().err), error
        assert content("index") == before

    refused("names.txt, line 2: index has no entry b/1 (1 of 2 names", "remove index names.txt")
    refused("none.txt has no names", "remove index none.txt")
    refused("wide holds float32, index int8", "merge index wide")
    refused("index: a/0 would be in the index twice", "merge index index")
    refused("other: b/0 would be in the index twice", "merge index other other")
    refused("twice: c would be in the index twice", "add index twice")
    refused("twice: c would be in the index twice", "build twice --out index --force")
    refused("already exists and is not empty", "build b --out index")
    refused("manifest.json does not exist", "add a.npy b")
    with changing("index"):
        refused("is being changed by another command", "add index b")
        refused("is being changed by another command", "build b --out index --force")
    Path("index/thesis.txt").write_text("mine")
    refused("index holds thesis.txt, ", "build b --out index --force")
    refused("/index holds thesis.txt, ", "build b --out index/../index/. --force")
    os.remove("index/thesis.txt")
    assert index("add", "index", "b") == 0  # --force also replaces the files of later changes
    assert index("build", "b", "--out", "index", "--force") == 0 and finds_all("index", embeddings(seed=1), "b")


CHANGES = """
import sys
from partial_fc_tools.__main__ import main
for _ in range(30):
    assert main(["index", "add", "index", "b"]) == main(["index", "remove", "index", "b.txt"]) == 0
"""


@pytest.mark.slow
def test_an_index_opens_while_it_changes():
    build()
    opened = 0
    with interruptible("-c", CHANGES, stdout=subprocess.DEVNULL) as child:
        while child.poll() is None:
            current = IndexFolder("index")
            ids, _ = current.lists.nearest(embeddings()[opened % COUNT], 1)
            assert current.names[ids[0]] == f"a/{opened % COUNT}"
            opened += 1
        assert child.returncode == 0, child.stderr.read()
    assert opened > 30 and IndexFolder("index").manifest.change == 61


@pytest.mark.parametrize("owner, name", [(folder_module.Writer, "save"), (folder_module, "replace_file")])
def test_an_interrupted_change_loses_nothing(monkeypatch, owner, name):
    def interrupt(*args):
        raise KeyboardInterrupt

    build()
    before = content("index")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupt)
        assert index("add", "index", "b") == 130
    assert content("index") == before
    Path("index/lists-2.faiss").write_bytes(b"of a command that was killed")
    Path("index/names-of-guests.txt").write_text("mine")
    assert index("add", "index", "b") == 0 and len(os.listdir("index")) == FILES + 1
    assert finds_all("index", embeddings(seed=1), "b")


def test_a_full_disk_loses_nothing():
    build()
    build(folder="larger")
    assert index("add", "larger", "b") == 0
    before, size = content("index"), os.path.getsize("larger/lists-2.faiss")
    for limit in (size - 1, size // 2):
        limited = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit))
        done = start("index", "add", "index", "b", preexec_fn=limited)
        assert (done.returncode, content("index")) == (2, before)
        assert "File too large" in done.stderr and done.stderr.count("\n") == 1 and len(done.stderr) < 200, done.stderr


@pytest.mark.parametrize("outside", [1, 10, 900])
def test_int8_stores_every_added_embedding_outside_of_its_ranges(capsys, monkeypatch, outside):
    """Even if a sample of the new ones misses them: clipped to the old ranges, their cosines would be 0.3."""
    near = unit(embeddings(1, seed=5, size=64) + 0.05 * embeddings(1900, seed=6, size=64))
    more = np.concatenate([near[1000:], embeddings(outside, seed=7, size=64)])
    write("more", more)
    write("again", near)
    monkeypatch.setattr("partial_fc_tools.index.writer.SAMPLE", 100)
    build("near", rows=near[:1000])
    assert index("add", "index", "more") == index("add", "index", "again") == 0  # the latter also retrains the lists
    build("both", "other", rows=np.concatenate([near[:1000], more]))
    for folder in ("index", "other"):
        _, cosines = search(folder, more[-outside:])
        assert np.abs(np.concatenate(cosines) - 1).max() < 0.02, folder
        capsys.readouterr()
        assert index("check", folder, "--queries", "1000") == 0
        assert float(capsys.readouterr().out.split("that was added is ")[1].split(" ")[0]) > 0.98


def test_check_finds_entries_unlike_those_that_were_added(capsys, monkeypatch):
    monkeypatch.setattr("partial_fc_tools.index.writer.CUT", 9)
    build(rows=unit(embeddings() + 8 * np.eye(1, SIZE, 5, dtype=np.float32)))
    assert index("check", "index") == 0
    write("b", embeddings(100))  # too few to retrain the lists
    assert index("add", "index", "b") == 0 and index("check", "index") == 1
    assert "differs from the embedding that was added" in capsys.readouterr().out


def test_the_sample_of_added_embeddings_follows_all_changes():
    rows = {"a": embeddings(1500), "b": embeddings(seed=1)}
    build(rows=rows["a"])
    build("b", "other")
    drop("index", [f"a/{row}" for row in range(700)])
    assert index("merge", "index", "other") == 0
    opened = IndexFolder("index")
    names = [opened.names[number].split("/") for number in opened.added["number"]]
    assert len(names) <= 1000 and {prefix for prefix, _ in names} == {"a", "b"}
    assert all(prefix == "b" or int(row) >= 700 for prefix, row in names)
    for (prefix, row), embedding in zip(names, opened.added["embedding"]):
        np.testing.assert_allclose(embedding, rows[prefix][int(row)], atol=0 if prefix == "a" else 0.02)


def test_an_index_is_checked_and_grows_after_its_whole_sample_was_removed(capsys):
    rows = embeddings(1200)
    build(rows=rows)
    kept = IndexFolder("index").added["number"]
    drop("index", [f"a/{number}" for number in kept])
    capsys.readouterr()
    assert index("check", "index", "--queries", 1000) == 0
    printed = capsys.readouterr()
    assert "(200 of 200 entries)" in printed.out and "have all been removed" in printed.err
    assert index("add", "index", "b") == index("check", "index") == 0 and not capsys.readouterr().err
    opened, left = IndexFolder("index"), np.setdiff1d(np.arange(1200), kept)
    assert sorted(opened.added["number"]) == [*left, *range(1200, 1200 + COUNT)]
    np.testing.assert_allclose(opened.added["embedding"][: len(left)], rows[left], atol=0.02)


def test_many_small_additions_keep_the_first_embeddings():
    rows = embeddings(300, size=64)
    writer = Writer(".", 64, "int8")
    for number in range(300):
        writer.add(number, rows[number : number + 1].__getitem__, 1)
    writer.save("lists")
    stored = Lists("lists", 64, "int8").rows(np.arange(300))
    assert np.einsum("ne,ne->n", stored, rows).min() > 0.99
