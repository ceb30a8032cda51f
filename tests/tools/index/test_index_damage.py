"""partial-fc index: damaged and malicious files are refused, and no search shows what was not stored."""

import json
import os
import shutil
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from damage import check_damaged
from index_files import COUNT, SIZE, build, embeddings, finds_all, index, write
from partial_fc_tools.index.folder import IndexFolder

faiss = pytest.importorskip("faiss", reason="pip install faiss-cpu")
pytestmark = pytest.mark.usefixtures("two")
LISTS, ENTRY = COUNT // 40, SIZE + 8  # number of lists; bytes of an entry in int8


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
