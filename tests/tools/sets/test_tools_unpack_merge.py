"""unpack and merge, and packing what was unpacked."""

import os
import shutil
import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from command_line import call
from face_sets import images_of, overwrite, write_records
from partial_fc.data.face_records import FaceRecords, write_face_set
from partial_fc.data.label_runs import KeptImages
from partial_fc.data.names import folder_names, read_names, write_names
from partial_fc.data.synthetic.draw import encode_face
from partial_fc_tools.sets import merge, pack, unpack
from partial_fc_tools.sets.check import SetCheck
from partial_fc_tools.sets.info import describe_set

PEOPLE = [[encode_face(1, person, image) for image in range(2 + person)] for person in range(3)]
JP2 = b"\0\0\0\x0cjP  \r\n\x87\n"
FILES = ("train.rec", "train.idx", "property", "identities.txt")


@pytest.fixture
def small(tmp_path):
    """3 identities with 2, 3 and 4 synthetic faces."""
    root = tmp_path / "small"
    write_face_set(root, PEOPLE)
    return str(root)


def tree_of(folder):
    """{folder: [bytes of its files in sorted order]}"""
    people = sorted(Path(folder).iterdir())
    return {person.name: [file.read_bytes() for file in sorted(person.iterdir())] for person in people}


def test_unpack_keeps_every_byte_and_packs_again_to_the_same_set(small, tmp_path):
    tree, again = str(tmp_path / "tree"), str(tmp_path / "again")
    call(unpack, small, tree)
    assert tree_of(tree) == {"0": PEOPLE[0], "1": PEOPLE[1], "2": PEOPLE[2]}
    assert sorted(os.listdir(os.path.join(tree, "1"))) == ["3.jpg", "4.jpg", "5.jpg"]
    call(pack, tree, again)
    for name in FILES[:3]:
        assert open(os.path.join(again, name), "rb").read() == open(os.path.join(small, name), "rb").read()


def test_unpack_uses_names_and_extensions_of_formats(tmp_path):
    images = [b"\xff\xd8jpeg", b"\x89PNG\r\n\x1a\n", b"RIFF....WEBPVP8 ", b"BM", b"II*\0", b"MM\0*", JP2]
    write_face_set(tmp_path / "set", [images, [b"\xff\xd8"]])
    write_names(tmp_path / "set", ["zoë", "with space"])
    call(unpack, tmp_path / "set", tmp_path / "tree")
    assert sorted(os.listdir(tmp_path / "tree")) == ["with space", "zoë"]
    files = ["1.jpg", "2.png", "3.webp", "4.bmp", "5.tif", "6.tif", "7.jp2"]
    assert sorted(os.listdir(tmp_path / "tree" / "zoë")) == files


@pytest.mark.parametrize("people", [10, 11])
def test_unpacked_folders_and_files_sort_as_their_labels_and_keys(people, tmp_path):
    write_face_set(tmp_path / "set", [[encode_face(1, person, 0)] for person in range(people)])
    call(unpack, tmp_path / "set", tmp_path / "tree")
    first, *_, last = sorted(os.listdir(tmp_path / "tree"))
    assert (last, os.listdir(tmp_path / "tree" / first)) == (str(people - 1), ["01.jpg"])
    call(pack, tmp_path / "tree", tmp_path / "again", "--workers", 1)
    assert images_of(tmp_path / "again") == images_of(tmp_path / "set")


def test_names_that_cannot_be_folders_are_replaced():
    names = ["a/b", "a_b", "..", "", "../../etc", "x" * 300, "fine"]
    assert folder_names(names, "0123456") == ["a_b", "a_b_1", "2", "3", "4", "5", "fine"]
    assert folder_names(["x", "x_2", "x", "é" * 101], "0123") == ["x", "x_2", "x_2_2", "3"]


def test_memory_does_not_follow_from_a_large_label(tmp_path):
    """The file has two images, one with the largest label that a header can hold."""
    largest = (1 << 24) - 1
    faces = {key: (label, key, 0, encode_face(1, 0, key)) for key, label in enumerate((3, largest))}
    path = os.path.dirname(write_records(str(tmp_path / "large"), faces))
    tracemalloc.start()
    call(merge, tmp_path / "out", path, path)
    call(unpack, path, tmp_path / "tree")
    facts = describe_set(path)
    with closing(FaceRecords(os.path.join(path, "train.rec"))) as records:
        assert KeptImages(records.runs, 1).at(np.arange(2))[0].tolist() == [0, 1]
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()
    assert read_names(tmp_path / "out" / "train.rec", 4)[:2] == ["large/00000003", f"large/{largest}"]
    assert sorted(os.listdir(tmp_path / "tree")) == ["00000003", f"{largest}"]
    each, (empty, one) = facts["images_per_identity"], facts["histogram"]
    assert (each["min"], each["median"], each["max"], each["mean"]) == (0, 0, 1, 2**-23)
    assert (empty["identities"], one["identities"], facts["identities"]) == (largest - 1, 2, largest + 1)


def test_unpack_refuses_a_folder_with_files_and_a_damaged_set(small, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(FileExistsError, match="full already exists"):
        call(unpack, small, tmp_path / "full")
    rec = os.path.join(small, "train.rec")
    overwrite(rec, os.path.getsize(rec) // 2, b"\0" * 8000)  # more than one record
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="train.rec: key"):
        call(unpack, small, tmp_path / "empty")
    assert sorted(os.listdir(tmp_path)) == ["empty", "full", "small"] and os.listdir(tmp_path / "empty") == []


def test_unpack_leaves_out_bad_records(tmp_path, capsys):
    """Broken records, unknown formats, and all images of an identity; the rest can be packed again."""
    people = [PEOPLE[0], [b"PK\3\4zip", *PEOPLE[1]], [b"no image"]]
    write_face_set(tmp_path / "set", people)
    rec, tree = str(tmp_path / "set" / "train.rec"), str(tmp_path / "tree")
    offset = dict(map(int, line.split("\t")) for line in (tmp_path / "set" / "train.idx").read_text().splitlines())
    with pytest.raises(ValueError, match=f"key 3 at offset {offset[3]} .*--skip-bad"):
        call(unpack, rec, tree)
    overwrite(rec, offset[5] + 8, b"\xff\xff\xff\0")  # more labels than the record holds
    call(unpack, rec, tree, "--skip-bad")
    printed = capsys.readouterr()
    assert printed.out == f"{tree}: 4 images in 2 folders; 3 left out as bad\n"
    left_out = printed.err.splitlines()
    named = zip(left_out, (3, 5, 7))
    assert len(left_out) == 3 and all(f"key {key} at offset {offset[key]} " in line for line, key in named)
    assert tree_of(tree) == {"0": PEOPLE[0], "1": [PEOPLE[1][0], PEOPLE[1][2]]}
    call(pack, tree, tmp_path / "again")
    assert "4 images of 2 identities" in capsys.readouterr().out


def test_an_identities_txt_that_does_not_match_is_refused(small):
    for text, message in (
        ("0\ta\n1\tb\n", " has 2 lines"),
        ("0\ta\n2\tb\n1\tc\n", ", line 2"),
        ("0\n1\n2\n", ", line 1"),
    ):
        with open(os.path.join(small, "identities.txt"), "w") as file:
            file.write(text)
        with pytest.raises(ValueError, match=f"identities.txt{message}"):
            read_names(os.path.join(small, "train.rec"), 3)


def test_merge_gives_consecutive_labels(small, tmp_path, capsys):
    face = {key: encode_face(2, label, key) for key, label in enumerate([1, 0, 1, 4])}
    vectors = {key: (np.array([label, 0.5, 0.5]), key, 0, face[key]) for key, label in enumerate([1, 0, 1, 4])}
    other = os.path.dirname(write_records(str(tmp_path / "other"), vectors))  # as im2rec, without identity records
    write_names(small, ["ann", "bob", "cid"])
    out = str(tmp_path / "both")
    call(merge, out, small, other, small, small)  # labels 2 and 3 of the second set have no images
    printed = f"{out}: 31 images of 12 identities; 2 identities without images left out\n"
    assert capsys.readouterr().out == printed
    expected = [(image, label) for label, person in enumerate(PEOPLE) for image in person]
    middle = [(face[1], 3), (face[0], 4), (face[2], 4), (face[3], 5)]
    last = [(image, label + more) for more in (6, 9) for image, label in expected]
    assert images_of(out) == expected + middle + last
    first, *last = ([f"{name}/{own}" for own in ("ann", "bob", "cid")] for name in ("small", "small-2", "small-3"))
    assert read_names(os.path.join(out, "train.rec"), 12) == sum(last, first + ["other/0", "other/1", "other/4"])
    assert open(os.path.join(out, "property")).read() == "12,112,112\n"


def test_merged_twice_unpacked_and_packed_again(small, tmp_path):
    write_names(small, ["ann", "bob", "cid"])
    call(merge, tmp_path / "both", small, small)
    call(merge, tmp_path / "all", tmp_path / "both", small)
    call(unpack, tmp_path / "all", tmp_path / "tree")
    call(pack, tmp_path / "tree", tmp_path / "again")
    people = ("ann", "bob", "cid")
    names = [f"both/small{more}/{name}" for more in ("", "-2") for name in people] + [
        f"small/{name}" for name in people
    ]
    assert images_of(tmp_path / "all") == [(image, label) for label, own in enumerate(PEOPLE * 3) for image in own]
    assert read_names(str(tmp_path / "all" / "train.rec"), 9) == names
    by_name = sorted(zip([name.replace("/", "_") for name in names], PEOPLE * 3))
    assert tree_of(tmp_path / "tree") == dict(by_name)
    assert images_of(tmp_path / "again") == [(image, label) for label, (_, own) in enumerate(by_name) for image in own]
    assert not list(SetCheck(str(tmp_path / "again" / "train.rec")).problems())


def test_merge_refuses_other_sizes_and_to_overwrite_its_inputs(small, tmp_path):
    write_face_set(tmp_path / "tiny", [[b"\xff\xd8"]], (96, 112))
    with pytest.raises(ValueError, match="tiny/train.rec .*96x112.*small/train.rec .*112x112"):
        call(merge, tmp_path / "out", small, tmp_path / "tiny")
    assert not os.path.exists(tmp_path / "out")
    before = images_of(small)
    os.symlink(small, tmp_path / "link")
    (tmp_path / "other").mkdir()
    os.link(os.path.join(small, "train.rec"), tmp_path / "other" / "train.rec")
    inputs = {small: small, str(tmp_path / "link"): os.path.join(small, "train.rec"), str(tmp_path / "other"): small}
    for out, first in inputs.items():
        with pytest.raises(ValueError, match="one of the sets to merge"):
            call(merge, out, first, small, "--force")
    assert images_of(small) == before


def test_names_are_checked_before_anything_is_written(small, tmp_path):
    shutil.copytree(small, tmp_path / "line\nend")
    os.makedirs(tmp_path / "tree" / "a\tb")
    write_names(small, ["ann", "bob", "cid"])
    out = tmp_path / "out"
    out.touch()  # creating this folder would raise another error
    with pytest.raises(ValueError, match="tabs or line ends"):
        call(merge, out, small, tmp_path / "line\nend")
    with pytest.raises(ValueError, match="tabs or line ends"):
        call(pack, tmp_path / "tree", out)
