"""check: images and identity records held against each other."""

import os

import numpy as np
import pytest
from damaged_set import offsets_of, problems, rewrite, write_sound_set

from partial_fc.data.recordio.format import RecordHeader, RecordWriter, pack
from partial_fc.data.synthetic.draw import encode_face

BIG = 1 << 24  # float32 has no 16,777,217


@pytest.fixture
def rec(tmp_path):
    """A set to damage."""
    return write_sound_set(str(tmp_path / "set"))


def test_inconsistent_identity_records(rec):
    def change(key, header, image):
        ranges = {15: (1, 5), 17: (8, 90)}  # instead of [1, 4) and [8, 10)
        if key in ranges:
            header = RecordHeader(2, np.array(ranges[key], np.float32), *ranges[key])
        return (key, header, image) if key != 18 else None

    rewrite(rec, change)
    at = offsets_of(rec)
    texts, parts = problems(rec)
    assert texts == [
        "key 18: the record of identity 3 is not in the index",
        f"key 17 at offset {at[17]}: identity 2 has the range [8, 90), outside the images' keys [1, 15)",
        "keys 10 to 14: 5 images belong to identities whose records are missing",
        f"key 4 at offset {at[4]}: belongs to 2 identities",
        f"key 8 at offset {at[8]}: belongs to no identity",
        f"key 9 at offset {at[9]}: belongs to no identity",
    ]
    assert parts == {"identity": 5, "index": 1}


def test_an_image_among_the_identity_records_and_a_wrong_record_0(rec):
    rewrite(rec, lambda key, header, image: (key, header._replace(label=1.0) if key == 16 else header, image))
    texts, _ = problems(rec)
    assert texts[0].startswith(f"key 16 at offset {offsets_of(rec)[16]}: contains no image")
    assert texts[1].startswith(f"key 16 at offset {offsets_of(rec)[16]}: should be the record of identity 1, but")
    zero = RecordHeader(2, np.array([115, 119], np.float32), 115, 119)
    rewrite(rec, lambda key, header, image: (key, header if key else zero, image))
    texts, _ = problems(rec)
    assert any("has the keys 115 to 119 of the identity records, which do not exist" in text for text in texts)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -3.0, 2.0**40])
@pytest.mark.parametrize("key", [0, 16])
def test_ranges_that_are_not_numbers(rec, key, value):
    broken = RecordHeader(2, np.array([value, value], np.float32), 0, 0)
    rewrite(rec, lambda own, header, image: (own, broken if own == key else header, image))
    texts, parts = problems(rec)
    assert any(text.startswith(f"key {key} at offset {offsets_of(rec)[key]}: ") for text in texts)
    assert parts["identity"] == len(texts)


def test_an_identity_record_with_a_far_key(rec):
    rewrite(rec, lambda key, header, image: (key if key != 18 else 10**15, header, image) if key else None)
    texts, _ = problems(rec)
    assert texts[0] == "key 0: record 0 is not in the index"
    assert any(text.startswith(f"key {10**15} at offset ") for text in texts) and len(texts) < 60


@pytest.mark.parametrize(
    "text, what",
    [
        ("5,112,112", "has 5 identities, the records have 4"),
        ("4,96,112", "has 96x112 pixels"),
        ("4 classes", "expected 'classes,height,width'"),
    ],
)
def test_a_property_that_does_not_match(rec, text, what):
    with open(os.path.join(os.path.dirname(rec), "property"), "w") as file:
        file.write(text)
    texts, parts = problems(rec)
    assert len(texts) == 1 and what in texts[0] and parts == {"identity": 1}


def test_a_set_of_im2rec(tmp_path):
    rec = str(tmp_path / "train.rec")
    with RecordWriter(rec, rec[:-3] + "idx") as writer:
        for key, label in enumerate([2.0, np.array([0.0, 7.0, 7.0]), 0.5, 1.0]):
            writer.write(key, pack(RecordHeader(0, label, key, 0), encode_face(4, key, 0)))
    texts, _ = problems(rec)
    assert len(texts) == 1 and texts[0].endswith("has label 0.5, expected an integer below 2^24")


@pytest.mark.parametrize("shift", [BIG - 8, BIG + 1, 2 * BIG - 5])
def test_labels_determine_ranges_beyond_float32(rec, shift):
    """A set of the original beyond 2^24 images, without integers: images' keys moved up by `shift`."""

    def change(key, header, image):
        if header.flag == 2:
            return (
                key + shift if key else 0,
                RecordHeader(2, np.array([header.id + shift, header.id2 + shift], np.float32), key, 0),
                b"",
            )
        return key + shift, header._replace(id=key + shift), image

    rewrite(rec, change)
    assert problems(rec, fast=True)[0] == []
    swap = {5 + shift: 2.0}
    rewrite(rec, lambda key, header, image: (key, header._replace(label=swap.get(key, header.label)), image))
    texts, _ = problems(rec, fast=True)
    assert texts and all(f"key {5 + shift} " in text or "identity" in text for text in texts)
