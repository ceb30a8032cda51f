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
LISTS, ENTRY = COUNT // 40, SIZE + 8  # number of lists; bytes of an entry in int8


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def embeddings(count=COUNT, seed=0, size=SIZE):
    return unit(np.random.default_rng(seed).standard_normal((count, size), np.float32))


def write(stem, rows, prefix=None, origin=ORIGIN):
    """Writes embeddings with the names ``prefix/0``, ``prefix/1``, ... (default prefix: the stem)."""
    write_index(stem, Index(rows, [f"{prefix or stem}/{row}" for row in range(len(rows))]), origin)


def index(*words):
    return exit_code("index", *words)


def build(stem="a", folder="index", dtype="int8", rows=None):
    if rows is not None:
        write(stem, rows)
    assert index("build", stem, "--out", folder, "--dtype", dtype) == 0


def drop(folder, names):
    Path("names.txt").write_text("".join(f"{name}\n" for name in names))
    assert index("remove", folder, "names.txt") == 0


def search(folder, rows, top=1):
    """Returns the names and the cosines that an index finds for each embedding."""
    opened = IndexFolder(folder)
    results = [opened.lists.nearest(row, top) for row in rows]
    return [[opened.names[number] for number in ids] for ids, _ in results], [cosines for _, cosines in results]


def finds_all(folder, rows, prefix):
    return search(folder, rows)[0] == [[f"{prefix}/{row}"] for row in range(len(rows))]


def content(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("a", embeddings())
    write("b", embeddings(seed=1))


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


def flipped(whole, at, bits=0x55):
    changed = bytearray(whole)
    changed[at] ^= bits
    return bytes(changed)


def test_damage_is_refused(capsys):
    build(folder="whole")
    manifest = json.loads(Path("whole/manifest.json").read_text())

    def refused(message, name, change):
        shutil.rmtree("index", ignore_errors=True)
        shutil.copytree("whole", "index")
        path = Path("index", name)
        path.write_bytes(change(path.read_bytes()))
        assert index("check", "index") == 2
        assert message in (error := capsys.readouterr().err) and error.count("\n") == 1, error

    for name in manifest["files"]:
        refused(f"{name} is damaged: it has", name, lambda whole: whole[: len(whole) // 2])
    refused("lists-1.faiss is damaged", "lists-1.faiss", lambda whole: bytes(len(whole)))
    for name, message, byte in (
        ("lists-1.faiss", "lists-1.faiss", 0),  # the kind of index
        ("lists-1.faiss", "lists-1.faiss", 100),  # a centroid
        ("lists-1.faiss", "lists-1.faiss", -COUNT * ENTRY - 3),  # the size of a list
        ("lists-1.faiss", "lists-1.faiss", -COUNT * 8),  # an embedding
        ("lists-1.faiss", "lists-1.faiss", -1),  # the last ID
        ("checksums-1.npy", "checksums-1.npy", -1),
        ("added-1.npy", "added-1.npy", -1),
        ("names-1.txt", "names-1", 2),
        ("names-1.npy", "names-1", -24),
    ):
        refused(f"{message} is damaged", name, partial(flipped, at=byte))
    refused("does not belong to", "names-1.npy", lambda whole: whole[:-8] + whole[-16:-8])
    refused("cannot be used", "manifest.json", lambda whole: whole[:-2])
    for key, value, message in (
        *(("version", 3, "version 3"), ("version", 1, "cannot"), ("checksums", {}, "cannot"), ("files", [], "cannot")),
        *(("checksums", [1, 2], "cannot"), ("dtype", "int4", "cannot"), ("dimension", "16", "cannot")),
        *(("files", {"../a.npy": 1}, "cannot"), ("entries", -1, "cannot"), ("change", 2, "cannot")),
        *(("origin", {"model": "x", "mirrored": True}, "cannot"), ("origin", 5, "cannot")),
        *(("dimension", 32, "damaged"), ("dtype", "float32", "damaged"), ("entries", 3, "damaged")),
    ):
        refused(message, "manifest.json", lambda _: json.dumps({**manifest, key: value}).encode())  # noqa: B023


def seal(lists):
    """Writes the file of lists with matching sizes and checksums in all other files, as an attacker would."""
    manifest = json.loads(Path("index/manifest.json").read_text())
    start = max(0, len(lists) - COUNT * ENTRY)
    stops = np.cumsum(np.frombuffer(lists[:start].rjust(8 * LISTS)[-8 * LISTS :], np.int64)) * ENTRY + start
    checksums = np.array([zlib.crc32(lists[first:stop]) for first, stop in zip([start, *stops], stops)], np.uint32)
    np.save("index/checksums-1.npy", checksums)
    manifest["files"]["lists-1.faiss"] = len(lists)
    manifest["checksums"] |= {"header": zlib.crc32(lists[:start]), "lists": zlib.crc32(checksums)}
    Path("index/manifest.json").write_text(json.dumps(manifest))
    Path("index/lists-1.faiss").write_bytes(lists)


def put(at, value):
    """Returns a change of content: ``value`` at a byte from the start, or from the end if ``at`` is negative."""
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
    for words in ("check index", "remove index a.txt", "merge b-index index", "add index b"):
        assert index(*words.split()) == 2
        assert f"index/{name}" in (error := capsys.readouterr().err) and error.count("\n") == 1, error


@pytest.mark.parametrize(
    "change",
    [
        *(put(-8, COUNT + 5), put(-8, 1 << 63), lambda whole: put(-8, whole[-16:-8])(whole)),  # IDs
        *(put(-COUNT * ENTRY - 8, 1 << 61), put(-COUNT * ENTRY - 8, (1 << 64) - 1)),  # size of a list
        *(put(37, 1 << 40), put(37, 0), put(98, b"\0\0\xc0\x7f"), put(-COUNT * ENTRY - 8 * LISTS - 40, b"\1" * 8)),
        *(elsewhere, lambda whole: whole[:5], lambda whole: b""),
    ],
)
def test_malicious_lists_are_refused_in_one_line(capsys, change):
    """Even with valid checksums: faiss would trust the sizes and paths in its files."""
    build()
    build("b", "b-index")
    seal(Path("index/lists-1.faiss").read_bytes())
    assert index("check", "index") == 0
    seal(change(Path("index/lists-1.faiss").read_bytes()))
    capsys.readouterr()
    refused_by_all("lists-1.faiss", capsys)


@pytest.mark.parametrize("name", ["lists-1.faiss", "names-1.txt", "names-1.npy", "added-1.npy", "checksums-1.npy"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_files_of_an_index_are_regular_and_in_its_folder(capsys, name, kind):
    build()
    build("b", "b-index")
    if kind == "link":
        os.rename(f"index/{name}", "outside")
        os.symlink("../outside", f"index/{name}")
    else:
        os.remove(f"index/{name}")
        os.mkfifo(f"index/{name}")
        manifest = json.loads(Path("index/manifest.json").read_text())
        manifest["files"][name] = 0
        Path("index/manifest.json").write_text(json.dumps(manifest))
    capsys.readouterr()
    refused_by_all(name, capsys)


@pytest.mark.parametrize("name", ["lists-1.faiss", "manifest.json", "names-1.npy", "names-1.txt", "added-1.npy"])
def test_an_index_with_any_damage_is_read_or_refused(name):
    build()
    manifest, whole = Path("index/manifest.json").read_bytes(), Path("index", name).read_bytes()

    def write(damaged):
        if name.endswith(".faiss"):
            Path("index/manifest.json").write_bytes(manifest)
            seal(damaged)
        else:
            Path("index", name).write_bytes(damaged)

    def read(folder):
        opened = IndexFolder(folder)
        ids, _ = opened.lists.nearest(embeddings(1)[0], 5)
        [opened.names[number] for number in ids]
        opened.verify()
        opened.lists.rows(opened.added["number"])

    if name.endswith(".faiss"):  # more often in the header, which faiss would trust
        header, entries = whole[: -COUNT * ENTRY], whole[-COUNT * ENTRY :]
        check_damaged(Path("index"), header, read, lambda damaged: write(damaged + entries))
    check_damaged(Path("index"), whole, read, write)


@pytest.mark.slow
@pytest.mark.parametrize("dtype, size", [("int8", 1), ("float32", 4)])
def test_no_search_shows_what_was_not_stored(dtype, size):
    """With any flipped bit in embeddings or IDs, results are correct or the search is refused."""
    rows = embeddings(4000)
    build(rows=rows, dtype=dtype)
    build("b", "b-index", dtype)
    path, refused = Path("index/lists-1.faiss"), 0
    whole = path.read_bytes()
    for byte in np.random.default_rng(0).integers(-len(rows) * (8 + SIZE * size), 0, 20):
        for bit in (6, 7):  # high bits, also of a float's exponent, change cosines most
            path.write_bytes(flipped(whole, byte, 1 << bit))
            opened = IndexFolder("index")
            for query in rows[:20]:
                try:
                    ids, cosines = opened.lists.nearest(query, 3)
                except ValueError as error:
                    assert "lists-1.faiss is damaged" in str(error)
                    refused += 1
                else:
                    np.testing.assert_allclose(cosines, rows[ids] @ query, atol=0.03)
            for words in ("check index", "remove index a.txt", "merge b-index index"):
                assert index(*words.split()) == 2
    assert refused


@pytest.mark.parametrize("lists", [256, 257])
def test_a_search_that_reads_the_last_list_sees_its_damage(monkeypatch, lists):
    """faiss encodes the number of a list in one byte for up to 256 lists, otherwise in two."""
    monkeypatch.setattr("partial_fc_tools.index.ivf.ENTRIES_PER_LIST", 2)
    rows = embeddings(2 * lists)
    build(rows=rows, dtype="float32")
    opened = IndexFolder("index")
    *_, last = opened.lists.ids()
    assert opened.lists.index.nlist == lists and len(last)
    path = Path("index/lists-1.faiss")
    path.write_bytes(flipped(path.read_bytes(), -8 * len(last) - 4, 1))  # the last embedding in the last list
    with pytest.raises(ValueError, match="lists-1.faiss is damaged"):
        IndexFolder("index").lists.nearest(rows[last[-1]], 1)
    others = np.setdiff1d(np.arange(len(rows)), last)
    assert [opened.lists.nearest(rows[row], 1)[0].tolist() for row in others] == [[row] for row in others]


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


def test_names_with_wrong_boundaries_are_not_shown():
    build()
    starts = np.load("index/names-1.npy")
    for change in (-1, 1, -5):
        np.save("index/names-1.npy", starts + change * (np.arange(len(starts)) == 7))
        names = IndexFolder("index").names
        assert names[5] == "a/5" and names[8] == "a/8"
        for number in (6, 7):
            with pytest.raises(ValueError, match="names-1.* is damaged"):
                names[number]


def test_an_index_of_version_1_opens_and_a_change_converts_it(capsys):
    version_1 = Path(__file__).parents[2] / "assets" / "index_version_1"
    shutil.copytree(version_1, "index")
    shutil.copytree(version_1, "damaged")
    write("b", embeddings(10, seed=1, size=8))
    assert finds_all("index", embeddings(90, size=8), "a")
    assert index("check", "index") == 0 and "earlier version" in capsys.readouterr().err
    assert index("add", "index", "b") == index("check", "index") == 0 and capsys.readouterr().err == ""
    assert finds_all("index", embeddings(90, size=8), "a") and finds_all("index", embeddings(10, seed=1, size=8), "b")
    path = Path("damaged/lists-1.faiss")
    path.write_bytes(flipped(path.read_bytes(), -1))
    assert index("add", "damaged", "b") == 2 and "lists-1.faiss is damaged" in capsys.readouterr().err


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
