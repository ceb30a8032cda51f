"""partial-fc index: recall, changes, damage and memory of indexes that search opens."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import zlib
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest

from command_line import exit_code, interruptible, start
from damage import check_damaged
from open_files import few_open_files
from partial_fc.data.synthetic.draw import draw_face
from partial_fc_tools.index import folder as folder_module
from partial_fc_tools.index import writer as writer_module
from partial_fc_tools.index.folder import IndexFolder, changing
from partial_fc_tools.index.ivf import Lists
from partial_fc_tools.index.writer import Writer
from partial_fc_tools.inference.index import Index, write_index
from partial_fc_tools.inference.origin import Origin
from tiny_onnx import TinyModel
from waiting import happens

faiss = pytest.importorskip("faiss", reason="pip install faiss-cpu")
ORIGIN = Origin("0" * 64, True)
COUNT, SIZE, FILES = 300, 16, 7


def embeddings(count=COUNT, seed=0, size=SIZE):
    rows = np.random.default_rng(seed).standard_normal((count, size), np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def write(stem, rows, prefix, origin=ORIGIN):
    write_index(stem, Index(rows, [f"{prefix}/{row}" for row in range(len(rows))]), origin)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("a", embeddings(), "a")
    write("b", embeddings(seed=1), "b")
    return tmp_path


def index(*words):
    return exit_code("index", *words)


def found(folder, rows, top=1):
    """The names and similarities that an index finds for some embeddings."""
    opened = IndexFolder(folder)
    results = [opened.lists.nearest(row, top) for row in rows]
    return [[opened.names[number] for number in numbers] for numbers, _ in results], [cosines for _, cosines in results]


def share_found(folder, rows, prefix):
    return np.mean([name == f"{prefix}/{row}" for row, (name,) in enumerate(found(folder, rows)[0])])


@pytest.mark.parametrize("dtype, tolerance", [("int8", 0.01), ("float32", 1e-5)])
def test_results_are_those_of_exact_search(place, capsys, dtype, tolerance):
    assert index("build", "a", "--out", "index", "--dtype", dtype) == 0
    assert f"index: 300 embeddings of dimension 16 in {dtype}" in capsys.readouterr().out
    queries = embeddings(100, seed=2)
    exact = queries @ embeddings().T
    names, cosines = found("index", queries, 3)
    best = [f"a/{row}" for row in exact.argmax(axis=1)]
    assert np.mean([name == three[0] for name, three in zip(best, names)]) > 0.95  # int8 exchanges near equals
    np.testing.assert_allclose(np.stack(cosines), -np.sort(-exact, axis=1)[:, :3], atol=3 * tolerance)
    assert index("check", "index", "--queries", "100") == 0
    assert float(capsys.readouterr().out.split(" is ")[1].split(" ")[0]) > 0.95


def test_the_recall_is_the_share_of_entries_whose_nearest_other_one_is_found(place, capsys, monkeypatch):
    monkeypatch.setattr("partial_fc_tools.index.ivf.EFFORT", 1)
    write("a", rows := embeddings(900), "a")
    assert index("build", "a", "--out", "index", "--dtype", "float32") == 0
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -1)
    lists = IndexFolder("index").lists
    others = [[number for number in lists.nearest(row, 2)[0] if number != own] for own, row in enumerate(rows)]
    found = sum(own[:1] == [best] for own, best in zip(others, cosines.argmax(axis=1)))
    assert 100 < found < 800
    capsys.readouterr()
    assert index("check", "index", "--queries", 10_000) == 0
    assert f"recall of rank 1 is {found / 900:.4f} ({found} of 900 entries)" in capsys.readouterr().out
    assert index("check", "index", "--queries", 7) == 0
    assert " of 7 entries)" in capsys.readouterr().out


def test_any_of_several_equal_entries_is_the_nearest_one(place, capsys):
    write("a", np.repeat(embeddings(60), 5, axis=0), "a")
    assert index("build", "a", "--out", "index") == index("check", "index") == 0
    assert "recall of rank 1 is 1.0000 (200 of 200" in capsys.readouterr().out


def test_entries_are_added_removed_and_merged(place, capsys):
    rows = {"a": embeddings(), "b": embeddings(seed=1), "c": embeddings(seed=3)}
    write("c", rows["c"], "c")
    assert index("build", "a", "--out", "index") == index("build", "c", "--out", "other") == 0
    assert index("add", "index", "b") == 0
    assert "index: added 300, now 600 embeddings" in capsys.readouterr().out
    (place / "names.txt").write_text("\r\n".join(f"a/{row}" for row in range(0, COUNT, 2)))  # the last without an end
    (place / "more.txt").write_text("c/0", "utf-16")
    assert index("remove", "index", "names.txt") == index("remove", "other", "more.txt") == 0
    assert "index: removed 150, now 450 embeddings" in capsys.readouterr().out
    before = sorted(os.listdir("other"))
    assert index("merge", "index", "other") == 0
    assert "added 299, now 749 embeddings" in capsys.readouterr().out
    assert sorted(os.listdir("other")) == before
    assert len(os.listdir("index")) == FILES  # nothing of earlier changes
    assert share_found("index", rows["b"], "b") == 1
    names = [name for (name,) in found("index", rows["a"])[0]]
    kept = [f"a/{row}" for row in range(1, COUNT, 2)]
    assert np.mean([name == own for name, own in zip(names[1::2], kept)]) == 1
    assert not {f"a/{row}" for row in range(0, COUNT, 2)} & set(names) and "c/0" not in names
    write("again", rows["a"][:1], "a")  # a removed name may come back
    assert index("add", "index", "again") == 0
    assert found("index", rows["a"][:1])[0] == [["a/0"]]


def test_more_indexes_are_merged_than_files_may_be_open(place):
    rows = embeddings(40, seed=1)
    write("b", rows[:1], "b0")
    assert index("build", "b", "--out", "index") == 0
    others = [f"other-{number}" for number in range(1, 40)]
    for number, other in enumerate(others, 1):
        write("b", rows[number : number + 1], f"b{number}")
        assert index("build", "b", "--out", other) == 0
    with few_open_files(20):
        assert index("merge", "index", *others) == 0
        assert index("add", "index", "a") == index("check", "index") == 0
        assert found("index", rows)[0] == [[f"b{number}/0"] for number in range(40)]


class Changes:
    """Changes of an index, and what it should hold: the embeddings by their names."""

    def __init__(self, dtype):
        self.dtype, self.held, self.made = dtype, {}, 0

    def new(self, count):
        """Writes embeddings that no index holds yet; returns them by name."""
        self.made += 1
        rows = embeddings(count, seed=self.made, size=64)
        write("new", rows, str(self.made))
        return {f"{self.made}/{row}": rows[row] for row in range(count)}

    def add(self, count):
        self.held |= self.new(count)
        assert index("add", "index", "new") == 0

    def remove(self, every):
        gone = list(self.held)[::every]
        self.drop("index", gone)
        self.held = {name: row for name, row in self.held.items() if name not in gone}

    def merge(self, count):
        """With two, from which entries were removed before."""
        for other in ("other", "last"):
            more = self.new(count)
            assert index("build", "new", "--out", other, "--dtype", self.dtype, "--force") == 0
            gone = list(more)[1::3]
            self.drop(other, gone)
            self.held |= {name: row for name, row in more.items() if name not in gone}
        assert index("merge", "index", "other", "last") == 0

    def add_again(self, every):
        """The names and embeddings that were removed."""
        names = list(self.held)[1::every]
        rows = np.stack([self.held[name] for name in names])
        self.drop("index", names)
        write_index("new", Index(rows, names), ORIGIN)
        assert index("add", "index", "new") == 0

    def drop(self, folder, names):
        Path("gone.txt").write_text("".join(f"{name}\n" for name in names))
        assert index("remove", folder, "gone.txt") == 0


@pytest.mark.parametrize("dtype, least", [("int8", 0.9), ("float32", 0.9999)])
@pytest.mark.parametrize("small", [False, True])
def test_after_each_of_several_changes_every_entry_finds_itself(place, monkeypatch, dtype, least, small):
    """Also in indexes larger than a sample for their lists, a part, and the memory for new entries."""
    for name, size in {"SAMPLE": 70, "ADDED": 30, "PART": 40, "HELD": 2_000}.items() if small else ():
        monkeypatch.setattr(writer_module, name, size)
    changes = Changes(dtype)
    changes.held |= changes.new(90)
    assert index("build", "new", "--out", "index", "--dtype", dtype) == 0
    for change, number in (
        *(("remove", 2), ("merge", 100), ("add", 1), ("remove", 5), ("remove", 3), ("add_again", 4), ("merge", 7)),
        *(("add", 150), ("merge", 60), ("add", 20), ("add_again", 2), ("remove", 1), ("merge", 30), ("add", 5)),
    ):
        getattr(changes, change)(number)
        opened, names = IndexFolder("index"), sorted(changes.held)
        assert sorted(opened.present()[1]) == names and len(opened.lists) == len(names)
        if names:
            best, cosines = found("index", [changes.held[name] for name in names])
            assert best == [[name] for name in names] and np.min(cosines) > least


def test_all_entries_can_be_removed(place):
    assert index("build", "a", "--out", "index") == 0
    assert index("remove", "index", "a.txt") == 0
    assert found("index", embeddings(1))[0] == [[]]
    assert index("check", "index") == 2
    assert index("add", "index", "a") == 0 and share_found("index", embeddings(), "a") == 1


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda: write("b", embeddings(seed=1), "a"), "{}: a/0 would be in the index twice"),
        (lambda: write("b", embeddings(seed=1, size=8), "b"), "{} has embeddings of dimension 8, index those of"),
        (lambda: write("b", embeddings(seed=1), "b", Origin("1" * 64, True)), "made with another model file than {}"),
        (lambda: write("b", embeddings(seed=1), "b", Origin(None, False)), "made with mirror images, {} without"),
    ],
)
def test_embeddings_that_do_not_fit_change_nothing(place, capsys, change, message):
    assert index("build", "a", "--out", "index") == 0
    change()
    assert index("build", "b", "--out", "other") == 0
    before = content("index")
    for command, given in (("add", "b"), ("merge", "other")):
        assert index(command, "index", given) == 2
        assert message.format(given) in capsys.readouterr().err and content("index") == before
    write("only", embeddings(3, seed=1), "b", Origin(None, True))  # nothing is known of its model
    assert index("add", "index", "only") == 0


def content(folder):
    return {name: open(os.path.join(folder, name), "rb").read() for name in os.listdir(folder)}


def test_refused_changes(place, capsys):
    def refused(message, *words):
        before = content("index")
        assert index(*words) == 2
        error = capsys.readouterr().err
        assert message in error, error
        assert content("index") == before

    assert index("build", "a", "--out", "index") == index("build", "b", "--out", "wide", "--dtype", "float32") == 0
    (place / "names.txt").write_text("a/1\nb/1\n")
    refused("names.txt, line 2: index holds no b/1 (1 of 2 names are missing)", "remove", "index", "names.txt")
    (place / "none.txt").write_text("")
    refused("none.txt holds no names", "remove", "index", "none.txt")
    refused("wide holds float32, index int8", "merge", "index", "wide")
    refused("would be in the index twice", "merge", "index", "index")
    assert index("build", "b", "--out", "other") == 0
    refused("other: b/0 would be in the index twice", "merge", "index", "other", "other")
    write_index("twice", Index(embeddings(2, seed=1), ["c", "c"]), ORIGIN)
    for words in (["add", "index", "twice"], ["build", "twice", "--out", "index", "--force"]):
        refused("twice: c would be in the index twice", *words)
    refused("already exists and is not empty", "build", "b", "--out", "index")
    refused("manifest.json does not exist", "add", "a.npy", "b")
    with changing("index"):
        for words in (["add", "index", "b"], ["build", "b", "--out", "index", "--force"]):
            refused("is being changed by another command", *words)
    (place / "index" / "thesis.txt").write_text("mine")
    refused("index holds thesis.txt, ", "build", "b", "--out", "index", "--force")
    refused("/index holds thesis.txt, ", "build", "b", "--out", "index/../index/.", "--force")
    os.remove("index/thesis.txt")
    assert index("add", "index", "b") == 0  # in files that build has not written
    assert index("build", "b", "--out", "index", "--force") == 0 and share_found("index", embeddings(seed=1), "b") == 1


def flipped(whole, at, bits=0x55):
    changed = bytearray(whole)
    changed[at] ^= bits
    return bytes(changed)


def test_damage_is_refused(place, capsys):
    assert index("build", "a", "--out", "whole") == 0
    about = json.loads((place / "whole" / "manifest.json").read_text())

    def refused(message, name, change):
        shutil.rmtree("index", ignore_errors=True)
        shutil.copytree("whole", "index")
        path = place / "index" / name
        path.write_bytes(change(path.read_bytes()))
        assert index("check", "index") == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error

    for name in about["files"]:
        refused(f"{name} is damaged: it has", name, lambda whole: whole[: len(whole) // 2])
    refused("lists-1.faiss is damaged", "lists-1.faiss", lambda whole: bytes(len(whole)))
    # The kind of index, the number of the last entry, a size of a list, a center.
    for place_of_byte in (0, -1, -COUNT * (SIZE + 8) - 3, 100):
        refused("lists-1.faiss is damaged", "lists-1.faiss", lambda whole: flipped(whole, place_of_byte))  # noqa: B023
    refused("lists-1.faiss is damaged", "lists-1.faiss", lambda whole: flipped(whole, -COUNT * 8))  # an embedding
    refused("checksums-1.npy is damaged", "checksums-1.npy", lambda whole: flipped(whole, -1))
    refused("added-1.npy is damaged", "added-1.npy", lambda whole: flipped(whole, -1))
    refused("names-1 is damaged", "names-1.txt", lambda whole: flipped(whole, 2))
    refused("names-1 is damaged", "names-1.npy", lambda whole: flipped(whole, -24))
    refused("does not belong to", "names-1.npy", lambda whole: whole[:-8] + whole[-16:-8])
    refused("cannot be used", "manifest.json", lambda whole: whole[:-2])
    for key, value in (
        *(("version", 3), ("version", 1), ("checksums", {}), ("checksums", [1, 2]), ("dtype", "int4")),
        *(("dimension", "16"), ("files", {"../a.npy": 1}), ("files", []), ("entries", -1)),
        *(("change", 2), ("origin", {"model": "x", "mirrored": True}), ("origin", 5)),
    ):
        refused("cannot be used", "manifest.json", lambda _: json.dumps({**about, key: value}).encode())  # noqa: B023
    for key, value in (("dimension", 32), ("dtype", "float32"), ("entries", 3)):
        refused("", "manifest.json", lambda _: json.dumps({**about, key: value}).encode())  # noqa: B023


LISTS, ENTRY = COUNT // 40, SIZE + 8  # lists; bytes of an entry in int8


def seal(content):
    """Makes an index of ``content`` of its file of lists, with all sizes and checksums, as a stranger would."""
    about = json.loads(Path("index/manifest.json").read_text())
    start = max(0, len(content) - COUNT * ENTRY)
    stops = np.cumsum(np.frombuffer(content[:start].rjust(8 * LISTS)[-8 * LISTS :], np.int64)) * ENTRY + start
    lists = [zlib.crc32(content[first:stop]) for first, stop in zip([start, *stops], stops)]
    np.save("index/checksums-1.npy", np.array(lists, np.uint32))
    about["files"]["lists-1.faiss"] = len(content)
    about["checksums"]["header"] = zlib.crc32(content[:start])
    about["checksums"]["lists"] = zlib.crc32(np.array(lists, np.uint32))
    Path("index/manifest.json").write_text(json.dumps(about))
    Path("index/lists-1.faiss").write_bytes(content)


def put(at, value):
    """Returns a change of content, at a byte from the end or, if it is positive, from the start."""
    value = value.to_bytes(8, "little") if isinstance(value, int) else value
    return lambda whole: whole[: at % len(whole)] + value + whole[at % len(whole) + len(value) :]


def elsewhere(whole):
    """Returns an index whose lists are in a file that it names."""
    index = faiss.read_index("index/lists-1.faiss")
    lists = faiss.OnDiskInvertedLists(index.nlist, index.code_size, "elsewhere")
    lists.merge_from_1(index.invlists)
    index.replace_invlists(lists)
    return faiss.serialize_index(index).tobytes()


def refused_by_all(name, capsys):
    for command in (["check", "index"], ["remove", "index", "a.txt"], ["merge", "b", "index"], ["add", "index", "b"]):
        assert index(*command) == 2
        assert f"index/{name}" in (error := capsys.readouterr().err) and error.count("\n") == 1, error


@pytest.mark.parametrize(
    "change",
    [
        *(put(-8, COUNT + 5), put(-8, 1 << 63), lambda whole: put(-8, whole[-16:-8])(whole)),  # numbers of entries
        *(put(-COUNT * ENTRY - 8, 1 << 61), put(-COUNT * ENTRY - 8, (1 << 64) - 1)),  # size of a list
        *(put(37, 1 << 40), put(37, 0), put(98, b"\0\0\xc0\x7f"), put(-COUNT * ENTRY - 8 * LISTS - 40, b"\1" * 8)),
        *(elsewhere, lambda whole: whole[:5], lambda whole: b""),
    ],
)
def test_the_lists_of_a_stranger_are_refused_in_one_line(place, capsys, change):
    """Whatever checksums say: faiss would follow sizes and paths in its files."""
    assert index("build", "a", "--out", "index") == index("build", "b", "--out", "b") == 0
    seal(Path("index/lists-1.faiss").read_bytes())
    assert index("check", "index") == 0
    seal(change(Path("index/lists-1.faiss").read_bytes()))
    capsys.readouterr()
    refused_by_all("lists-1.faiss", capsys)


@pytest.mark.parametrize("name", ["lists-1.faiss", "names-1.txt", "names-1.npy", "added-1.npy", "checksums-1.npy"])
@pytest.mark.parametrize("size", [0, None])
def test_files_of_an_index_are_regular_and_in_its_folder(place, capsys, name, size):
    assert index("build", "a", "--out", "index") == index("build", "b", "--out", "b") == 0
    about = json.loads(Path("index/manifest.json").read_text())
    if size is None:
        os.rename(f"index/{name}", "outside")
        os.symlink("../outside", f"index/{name}")
    else:
        os.remove(f"index/{name}")
        os.mkfifo(f"index/{name}")
        about["files"][name] = size
        Path("index/manifest.json").write_text(json.dumps(about))
    capsys.readouterr()
    refused_by_all(name, capsys)


@pytest.mark.parametrize("name", ["lists-1.faiss", "manifest.json", "names-1.npy", "names-1.txt", "added-1.npy"])
def test_an_index_with_any_damage_is_read_or_refused(place, name):
    assert index("build", "a", "--out", "index") == 0
    manifest = Path("index/manifest.json").read_bytes()

    def write(content):
        if name.endswith(".faiss"):
            Path("index/manifest.json").write_bytes(manifest)
            seal(content)
        else:
            Path("index", name).write_bytes(content)

    def read(folder):
        opened = IndexFolder(folder)
        numbers, _ = opened.lists.nearest(embeddings(1)[0], 5)
        [opened.names[number] for number in numbers]
        opened.verify()
        opened.lists.rows(opened.added["number"])

    content = Path("index", name).read_bytes()
    if name.endswith(".faiss"):  # what faiss would follow is before the entries
        start, entries = content[: -COUNT * ENTRY], content[-COUNT * ENTRY :]
        check_damaged(Path("index"), start, read, lambda damaged: write(damaged + entries))
    check_damaged(Path("index"), content, read, write)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_no_search_shows_what_was_not_stored(place, dtype):
    """After any flipped bit of the embeddings and numbers, a result has its own cosine, or the search is refused."""
    rows = embeddings(4000)
    write("a", rows, "a")
    assert index("build", "a", "--out", "index", "--dtype", dtype) == 0
    assert index("build", "b", "--out", "b", "--dtype", dtype) == 0
    path, refused = place / "index" / "lists-1.faiss", 0
    whole = path.read_bytes()
    entries = len(rows) * (8 + SIZE * (4 if dtype == "float32" else 1))
    for place_of_byte in np.random.default_rng(0).integers(-entries, 0, 20):
        for bit in (6, 7):  # of a byte: the last ones of the exponent and of the number make the largest cosines
            path.write_bytes(flipped(whole, place_of_byte, 1 << bit))
            opened = IndexFolder("index")
            for query in rows[:20]:
                try:
                    numbers, cosines = opened.lists.nearest(query, 3)
                except ValueError as error:
                    assert "lists-1.faiss is damaged" in str(error)
                    refused += 1
                else:
                    np.testing.assert_allclose(cosines, rows[numbers] @ query, atol=0.03)
            assert index("check", "index") == index("remove", "index", "a.txt") == index("merge", "b", "index") == 2
    assert refused


@pytest.mark.parametrize("lists, last", [(256, 255), (257, 256)])
def test_damage_of_the_last_list_is_seen_by_the_search_that_reads_it(place, monkeypatch, lists, last):
    """faiss writes the number of a list in one byte up to 256 lists, in two above."""
    monkeypatch.setattr("partial_fc_tools.index.ivf.OF_A_LIST", 2)
    rows = embeddings(2 * lists)
    write("a", rows, "a")
    assert index("build", "a", "--out", "index", "--dtype", "float32") == 0
    opened = IndexFolder("index")
    *_, numbers = opened.lists.numbers()
    assert opened.lists.index.nlist == last + 1 and len(numbers)
    path = place / "index" / "lists-1.faiss"
    path.write_bytes(flipped(path.read_bytes(), -8 * len(numbers) - 4, 1))  # of the last embedding in the last list
    with pytest.raises(ValueError, match="lists-1.faiss is damaged"):
        IndexFolder("index").lists.nearest(rows[numbers[-1]], 1)
    others = np.setdiff1d(np.arange(len(rows)), numbers)
    assert [opened.lists.nearest(rows[row], 1)[0].tolist() for row in others] == [[row] for row in others]


@pytest.mark.parametrize("count, lists", [(119, 2), (120, 3), (159, 3), (160, 3), (COUNT, 3)])
def test_an_index_has_no_more_lists_than_the_limit(place, monkeypatch, count, lists):
    """As in an index of more than 4096 * 40 embeddings, which also grows."""
    monkeypatch.setattr("partial_fc_tools.index.ivf.LISTS", 3)
    write("a", embeddings(count), "a")
    assert index("build", "a", "--out", "index") == 0
    assert IndexFolder("index").lists.index.nlist == lists
    assert index("add", "index", "b") == index("check", "index") == 0
    assert IndexFolder("index").lists.index.nlist == 3
    assert share_found("index", embeddings(count), "a") == share_found("index", embeddings(seed=1), "b") == 1


@pytest.mark.parametrize("added, lists", [(79, 2), (80, 4)])
def test_lists_are_made_anew_from_twice_as_many_entries_on(place, added, lists):
    write("a", embeddings(80), "a")
    write("b", embeddings(added, seed=1), "b")
    assert index("build", "a", "--out", "index", "--dtype", "float32") == index("add", "index", "b") == 0
    assert IndexFolder("index").lists.index.nlist == lists
    assert share_found("index", embeddings(80), "a") == share_found("index", embeddings(added, seed=1), "b") == 1


def test_names_that_are_cut_elsewhere_are_not_shown(place):
    assert index("build", "a", "--out", "index") == 0
    starts = np.load("index/names-1.npy")
    for change in (-1, 1, -5):
        np.save("index/names-1.npy", starts + change * (np.arange(len(starts)) == 7))
        names = IndexFolder("index").names
        assert names[5] == "a/5" and names[8] == "a/8"
        for number in (6, 7):
            with pytest.raises(ValueError, match="names-1.* is damaged"):
                names[number]


def test_an_index_of_an_earlier_version_opens_and_becomes_one_of_this(place, capsys):
    shutil.copytree(Path(__file__).parents[2] / "assets" / "index_version_1", "index")
    rows = embeddings(90, size=8)
    write("b", embeddings(10, seed=1, size=8), "b")
    assert share_found("index", rows, "a") == 1
    assert index("check", "index") == 0 and "earlier version" in capsys.readouterr().err
    assert index("add", "index", "b") == index("check", "index") == 0 and capsys.readouterr().err == ""
    assert share_found("index", rows, "a") == share_found("index", embeddings(10, seed=1, size=8), "b") == 1
    shutil.copytree(Path(__file__).parents[2] / "assets" / "index_version_1", "damaged")
    path = place / "damaged" / "lists-1.faiss"
    path.write_bytes(flipped(path.read_bytes(), -1))
    assert index("add", "damaged", "b") == 2 and "lists-1.faiss is damaged" in capsys.readouterr().err


CHANGES = """
import sys
from partial_fc_tools.__main__ import main
for _ in range(30):
    assert main(["index", "add", "index", "b"]) == main(["index", "remove", "index", "b.txt"]) == 0
"""


def test_an_index_opens_while_it_changes(place):
    assert index("build", "a", "--out", "index") == 0
    opened = 0
    with interruptible("-c", CHANGES, stdout=subprocess.DEVNULL) as child:
        while child.poll() is None:
            current = IndexFolder("index")
            numbers, _ = current.lists.nearest(embeddings()[opened % COUNT], 1)
            assert current.names[numbers[0]] == f"a/{opened % COUNT}"
            opened += 1
        assert child.returncode == 0, child.stderr.read()
    assert opened > 30 and IndexFolder("index").manifest.change == 61


@pytest.mark.parametrize("owner, name", [(folder_module.Writer, "save"), (folder_module, "replace_file")])
def test_a_change_that_is_interrupted_loses_nothing(place, monkeypatch, owner, name):
    def interrupt(*args):
        raise KeyboardInterrupt

    assert index("build", "a", "--out", "index") == 0
    before = content("index")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupt)
        assert index("add", "index", "b") == 130
    assert content("index") == before
    (place / "index" / "lists-2.faiss").write_bytes(b"of a command that was killed")
    (place / "index" / "names-of-guests.txt").write_text("mine")
    assert index("add", "index", "b") == 0 and len(os.listdir("index")) == FILES + 1
    assert share_found("index", embeddings(seed=1), "b") == 1


def test_ctrl_c_during_a_build_leaves_nothing(place):
    write("many", embeddings(200_000, size=64), "many")
    there = sorted(os.listdir(place))
    with interruptible("-m", "partial_fc_tools", "index", "build", "many", "--out", "index") as child:
        assert happens(lambda: sorted(os.listdir(place)) != there)
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors, sorted(os.listdir(place))) == (130, "interrupted\n", there)


def test_search_opens_both_kinds(place, capsys):
    for person in range(6):
        os.makedirs(f"faces/{person}")
        cv2.imwrite(f"faces/{person}/0.png", draw_face(4, person, 0)[:, :, ::-1])
    cv2.imwrite("query.png", draw_face(4, 2, 1)[:, :, ::-1])
    TinyModel().write(place / "backbone.onnx")
    assert exit_code("embed", "faces", "--model", "backbone.onnx", "--out", "known") == 0
    assert index("build", "known", "--out", "index", "--dtype", "float32") == 0
    capsys.readouterr()
    search = ["search", "query.png", "--top", "9", "--model", "backbone.onnx", "--index"]
    assert exit_code(*search, "known") == 0
    exact = capsys.readouterr()
    assert exact.err == "exact search in 6 embeddings\n"
    assert exit_code(*search, "index") == 0
    assert capsys.readouterr() == (exact.out, "approximate search in 6 embeddings\n")
    for kind in ("known", "index"):
        assert exit_code(*search, kind, "--no-flip") == 2
        assert f"{kind} was made with mirror images, backbone.onnx without" in capsys.readouterr().err
    TinyModel(seed=4).write(place / "backbone.onnx")
    for kind in ("known", "index"):
        assert exit_code(*search, kind) == 2
        assert f"{kind} was made with another model file than backbone.onnx" in capsys.readouterr().err
    (place / "known.json").write_text("{}")
    assert exit_code(*search, "known") == 2 and "known.json cannot be used" in capsys.readouterr().err
    os.remove("known.json")  # embeddings of an earlier version
    assert exit_code(*search, "known") == 0


MEMORY = """
import faiss
import numpy as np
from partial_fc_tools.index import ivf
from partial_fc_tools.index.folder import IndexFolder

def megabytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4 / 1024

ivf.EFFORT = 8
before = megabytes()
index = IndexFolder("index")
numbers, _ = index.lists.nearest(np.load("a.npy", mmap_mode="r")[3000], 1)
print(index.names[numbers[0]].removeprefix("a/"), megabytes() - before)
"""


def test_an_index_is_opened_without_reading_it(place):
    """Of 150 lists a search reads those of its effort."""
    write("a", embeddings(6000, size=2048), "a")
    assert index("build", "a", "--out", "index", "--dtype", "float32") == 0
    with interruptible("-c", MEMORY, stdout=subprocess.PIPE) as child:
        number, grown = map(float, child.communicate(timeout=60)[0].split())
    assert number == 3000
    size = os.path.getsize("index/lists-1.faiss") / 2**20
    assert grown < size / 2, (grown, size)


HELD = """
import faiss
import numpy as np
from partial_fc_tools.index import writer

def megabytes():
    return int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0]) / 1024

def advance(count):
    grown.append(megabytes() - before)

writer.HELD, writer.SAMPLE, writer.PART = 1 << 20, 400, 400
rows, before, grown = np.load("a.npy", mmap_mode="r"), megabytes(), []
lists = writer.Writer(".", 2048, "float32")
lists.add(0, rows.__getitem__, len(rows), advance)
lists.save("lists")
advance(0)
print(max(grown))
"""


def test_an_index_is_built_without_holding_it(place):
    write("a", embeddings(10_000, size=2048), "a")
    with interruptible("-c", HELD, stdout=subprocess.PIPE) as child:
        grown = float(child.communicate(timeout=60)[0])
    size = os.path.getsize("lists") / 2**20
    assert grown < size / 2, (grown, size)


def test_lists_are_made_anew_for_many_more_entries(place):
    """Those of one embedding know neither where others lie nor how large their numbers are."""
    write("first", embeddings(1, seed=2), "first")
    assert index("build", "first", "--out", "index") == 0 and share_found("index", embeddings(1, seed=2), "first") == 1
    write("many", embeddings(4000, seed=3), "many")
    assert index("add", "index", "a") == index("add", "index", "many") == 0
    for prefix, rows in (("first", embeddings(1, seed=2)), ("a", embeddings()), ("many", embeddings(4000, seed=3))):
        names, cosines = found("index", rows[:50])
        assert np.mean([name == f"{prefix}/{row}" for row, (name,) in enumerate(names)]) == 1
        assert min(np.concatenate(cosines)) > 0.99


def test_without_faiss(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match="pip install faiss-cpu"):
        index("build", "a", "--out", "index")
    assert not os.path.exists("index")


def test_a_full_disk_loses_nothing(place):
    """faiss writes the last bytes when it closes the file, where it reports no error."""
    assert index("build", "a", "--out", "index") == index("build", "a", "--out", "larger") == 0
    assert index("add", "larger", "b") == 0
    before, size = content("index"), os.path.getsize("larger/lists-2.faiss")
    for limit in (size - 1, size // 2):
        limited = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit))
        done = start("index", "add", "index", "b", preexec_fn=limited)
        assert (done.returncode, content("index")) == (2, before) and done.stderr.count("\n") == 1, done.stderr
        assert "File too large" in done.stderr and len(done.stderr) < 200, done.stderr


def test_int8_holds_embeddings_unlike_those_of_the_build(place):
    near = embeddings(1, seed=5, size=64) + 0.05 * embeddings(1000, seed=6, size=64)
    write("near", near / np.linalg.norm(near, axis=1, keepdims=True), "near")
    others = embeddings(900, seed=7, size=64)
    write("others", others, "others")
    assert index("build", "near", "--out", "index") == index("add", "index", "others") == 0
    assert share_found("index", others, "others") == 1
    assert np.abs(np.concatenate(found("index", others)[1]) - 1).max() < 0.02


@pytest.mark.parametrize("outside", [1, 10, 900])
def test_int8_holds_every_single_embedding_that_is_added(place, capsys, monkeypatch, outside):
    """Also those that no sample of the new ones would show: without a look at all, their cosines would be 0.3."""
    near = embeddings(1, seed=5, size=64) + 0.05 * embeddings(1900, seed=6, size=64)
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    more = np.concatenate([near[1000:], embeddings(outside, seed=7, size=64)])
    write("near", near[:1000], "near")
    write("more", more, "more")
    write("both", np.concatenate([near[:1000], more]), "both")
    monkeypatch.setattr("partial_fc_tools.index.writer.SAMPLE", 100)
    assert index("build", "near", "--out", "index") == index("add", "index", "more") == 0
    assert index("build", "both", "--out", "other") == 0
    for folder in ("index", "other"):
        names, cosines = found(folder, more[-outside:])
        assert np.abs(np.concatenate(cosines) - 1).max() < 0.02, folder
        capsys.readouterr()
        assert index("check", folder, "--queries", "1000") == 0
        assert float(capsys.readouterr().out.split("what was added is ")[1].split(" ")[0]) > 0.98


def test_check_finds_entries_unlike_those_that_were_added(place, capsys, monkeypatch):
    near = embeddings() + 8 * np.eye(1, SIZE, 5, dtype=np.float32)
    write("a", near / np.linalg.norm(near, axis=1, keepdims=True), "a")
    write("b", embeddings(100), "b")  # so few that no lists are made anew
    monkeypatch.setattr("partial_fc_tools.index.writer.CUT", 9)
    assert index("build", "a", "--out", "index") == index("check", "index") == 0
    assert index("add", "index", "b") == 0 and index("check", "index") == 1
    assert "is another embedding than was added" in capsys.readouterr().out


def test_what_was_added_follows_all_changes(place):
    """At most as many as are kept, drawn from all entries, and none that was removed."""
    rows = {"a": embeddings(1500), "b": embeddings(seed=1)}
    write("a", rows["a"], "a")
    assert index("build", "a", "--out", "index") == index("build", "b", "--out", "other") == 0
    (place / "names.txt").write_text("".join(f"a/{row}\n" for row in range(700)))
    assert index("remove", "index", "names.txt") == index("merge", "index", "other") == 0
    opened = IndexFolder("index")
    names = [opened.names[number].split("/") for number in opened.added["number"]]
    assert len(names) <= 1000 and {prefix for prefix, _ in names} == {"a", "b"}
    assert all(prefix == "b" or int(row) >= 700 for prefix, row in names)
    for (prefix, row), embedding in zip(names, opened.added["embedding"]):
        np.testing.assert_allclose(embedding, rows[prefix][int(row)], atol=0 if prefix == "a" else 0.02)


def test_an_index_is_checked_and_grows_after_all_that_it_kept_was_removed(place, capsys):
    rows = embeddings(1200)
    write("a", rows, "a")
    assert index("build", "a", "--out", "index") == 0
    kept = IndexFolder("index").added["number"]
    (place / "names.txt").write_text("".join(f"a/{number}\n" for number in kept))
    assert index("remove", "index", "names.txt") == 0
    capsys.readouterr()
    assert index("check", "index", "--queries", 1000) == 0
    printed = capsys.readouterr()
    assert "(200 of 200 entries)" in printed.out and "have been removed: its entries" in printed.err
    assert index("add", "index", "b") == index("check", "index") == 0 and not capsys.readouterr().err
    opened, left = IndexFolder("index"), np.setdiff1d(np.arange(1200), kept)
    assert sorted(opened.added["number"]) == [*left, *range(1200, 1200 + COUNT)]
    np.testing.assert_allclose(opened.added["embedding"][: len(left)], rows[left], atol=0.02)


def test_int8_holds_all_embeddings_of_a_small_build(place):
    rows = embeddings(319, size=64)  # seven lists of 40, and 39 more
    write("rows", rows, "rows")
    assert index("build", "rows", "--out", "index") == 0
    assert np.abs(np.concatenate(found("index", rows)[1]) - 1).max() < 0.005


def test_many_small_additions_keep_the_first_embeddings(place):
    rows = embeddings(300, size=64)
    writer = Writer(place, 64, "int8")
    for number in range(300):
        writer.add(number, rows[number : number + 1].__getitem__, 1, lambda count: None)
    writer.save("lists")
    held = Lists.open("lists", 64, "int8").rows(np.arange(300))
    assert np.einsum("ne,ne->n", held, rows).min() > 0.99


def test_a_search_finds_as_many_as_are_asked_for(place):
    """Also in lists from which many were removed."""
    write("many", embeddings(24_000), "many")
    assert index("build", "many", "--out", "index", "--dtype", "float32") == 0
    assert len(found("index", embeddings(1), 30_000)[0][0]) == 24_000
    (place / "names.txt").write_text("".join(f"many/{row}\n" for row in range(5, 24_000)))
    assert index("remove", "index", "names.txt") == 0
    assert {len(names) for names in found("index", embeddings(100, seed=9), 5)[0]} == {5}


def test_empty_indexes_and_few_entries(place, capfd):
    write("a", embeddings(2), "a")
    write("none", embeddings(0), "none")
    assert index("build", "a", "--out", "index") == 0
    assert capfd.readouterr().err == ""  # no warning of faiss
    assert index("remove", "index", "a.txt") == 0
    shutil.copytree("index", "other")
    assert index("merge", "index", "other") == 0
    capfd.readouterr()
    assert index("build", "none", "--out", "new") == 2
    assert capfd.readouterr().err == "error: none holds no embeddings\n"


def test_a_path_may_hold_any_bytes(place):
    assert index("build", "a", "--out", os.fsdecode(b"caf\xe9")) == 0
    assert index("check", os.fsdecode(b"caf\xe9")) == 0


@pytest.mark.slow
def test_the_benchmark_compares_with_exact_search():
    program = [sys.executable, Path(__file__).parents[3] / "benchmarks/index.py", "--quick", "--candidates"]
    done = subprocess.run([*program, "IVF int8"], capture_output=True, text=True, timeout=800, check=True)
    rate, *recall = done.stdout.splitlines()[-1].split(": ")[1].split(", ")
    assert int(rate.replace(",", "")) > 0 and min(map(float, recall)) > 0.8 and max(map(float, recall)) <= 1
