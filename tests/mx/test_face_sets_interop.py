"""MXNet and the original trainer read what the tools write, and the tools read what they write."""

import os

import numpy as np
import pytest
from mxnet import recordio

from command_line import call
from face_sets import jpeg
from partial_fc.data.face_records import FaceRecords
from partial_fc_tools.sets import merge, pack, sheet, unpack
from partial_fc_tools.sets.check import SetCheck
from partial_fc_tools.sets.info import describe_set

SIZES = (2, 3, 1)


PEOPLE = [[jpeg(10 * person + image) for image in range(size)] for person, size in enumerate(SIZES)]


@pytest.fixture
def packed(tmp_path):
    """A set packed from a tree of 3 people."""
    for person, images in enumerate(PEOPLE):
        (tmp_path / "tree" / f"p{person}").mkdir(parents=True)
        for number, image in enumerate(images):
            (tmp_path / "tree" / f"p{person}" / f"{number}.jpg").write_bytes(image)
    call(pack, tmp_path / "tree", tmp_path / "packed", "--size", 16)
    return str(tmp_path / "packed")


def write_as_insightface(root, people, label_of):
    """Writes a set with MXNet's writer as insightface's tools do: images, identity records, record 0 last.

    `label_of(person)` is the label in an image's header.
    """
    os.makedirs(root)
    writer = recordio.MXIndexedRecordIO(os.path.join(root, "train.idx"), os.path.join(root, "train.rec"), "w")
    key, ranges = 1, []
    for person, images in enumerate(people):
        start = key
        for image in images:
            writer.write_idx(key, recordio.pack(recordio.IRHeader(0, label_of(person), key, 0), image))
            key += 1
        ranges.append((start, key))
    first = key
    for start, end in ranges:
        writer.write_idx(key, recordio.pack(recordio.IRHeader(2, [float(start), float(end)], key, 0), b""))
        key += 1
    writer.write_idx(0, recordio.pack(recordio.IRHeader(2, [float(first), float(key)], 0, 1), b""))
    writer.close()
    with open(os.path.join(root, "property"), "w") as file:
        file.write(f"{len(people)},16,16")
    return str(root)


def read_as_the_original(root):
    """Returns [(label, image)]; record 0 refers to the identity records, which refer to the images."""
    reader = recordio.MXIndexedRecordIO(os.path.join(root, "train.idx"), os.path.join(root, "train.rec"), "r")
    header, _ = recordio.unpack(reader.read_idx(0))
    assert header.flag > 0
    images = []
    for identity in range(int(header.label[0]), int(header.label[1])):
        identity_header, _ = recordio.unpack(reader.read_idx(identity))
        for key in range(int(identity_header.label[0]), int(identity_header.label[1])):
            image_header, image = recordio.unpack(reader.read_idx(key))
            label = image_header.label
            images.append((int(label if np.ndim(label) == 0 else label[0]), image))
    reader.close()
    return images


def expected(*sets):
    """Returns [(label, image)] of sets of people with consecutive labels."""
    everyone = [images for people in sets for images in people]
    return [(label, image) for label, images in enumerate(everyone) for image in images]


def test_the_original_reads_what_pack_and_merge_write(packed, tmp_path):
    assert read_as_the_original(packed) == expected(PEOPLE)
    call(merge, tmp_path / "both", packed, packed)
    assert read_as_the_original(str(tmp_path / "both")) == expected(PEOPLE, PEOPLE)


@pytest.mark.parametrize("label_of", [float, lambda person: [float(person), 0.25, 7.0]], ids=["float", "vector"])
def test_all_tools_read_what_insightface_writes(label_of, packed, tmp_path, capsys):
    theirs = write_as_insightface(str(tmp_path / "theirs"), PEOPLE, label_of)
    check = SetCheck(os.path.join(theirs, "train.rec"))
    assert [problem.text for problem in check.problems()] == []
    assert (check.face_records.num_images, check.face_records.num_identities) == (6, 3)
    facts = describe_set(theirs)
    assert (facts["images"], facts["identities"], facts["ranges"]) == (6, 3, "float32")
    call(unpack, theirs, tmp_path / "tree2")
    files = {path.relative_to(tmp_path / "tree2"): path.read_bytes() for path in (tmp_path / "tree2").rglob("*.jpg")}
    assert [files[path] for path in sorted(files)] == [image for images in PEOPLE for image in images]
    call(sheet, theirs, tmp_path / "sheet.png")
    assert capsys.readouterr().out.endswith("sheet.png: 3 identities: 0, 1, 2\n")
    call(merge, tmp_path / "both", packed, theirs)
    assert read_as_the_original(str(tmp_path / "both")) == expected(PEOPLE, PEOPLE)
    records = FaceRecords(str(tmp_path / "both" / "train.rec"))
    assert [records.read_image(place) for place in range(12)] == [(i, n) for n, i in expected(PEOPLE, PEOPLE)]
    records.close()


def test_a_set_of_mxnets_im2rec(tmp_path):
    """Without identity records, and with the images in any order."""
    os.makedirs(tmp_path / "plain")
    paths = str(tmp_path / "plain" / "train.idx"), str(tmp_path / "plain" / "train.rec")
    writer = recordio.MXIndexedRecordIO(*paths, "w")
    for key, (person, image) in enumerate([(2, 0), (0, 1), (1, 0), (1, 2), (0, 0), (1, 1)]):
        writer.write_idx(key, recordio.pack(recordio.IRHeader(0, float(person), key, 0), PEOPLE[person][image]))
    writer.close()
    assert [problem.text for problem in SetCheck(paths[1]).problems()] == []
    assert describe_set(paths[1])["ranges"] == "none"
    call(merge, tmp_path / "both", paths[1], paths[1])
    order = [[PEOPLE[0][1], PEOPLE[0][0]], [PEOPLE[1][place] for place in (0, 2, 1)], PEOPLE[2]]
    assert read_as_the_original(str(tmp_path / "both")) == expected(order, order)
