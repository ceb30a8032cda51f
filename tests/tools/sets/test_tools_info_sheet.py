"""info and sheet."""

import json
import os

import cv2
import numpy as np
import pytest

from command_line import call, exit_code, start
from face_sets import overwrite, picture, write_records
from partial_fc.data.face_records import write_face_set
from partial_fc.data.names import write_names
from partial_fc.data.synthetic.draw import encode_face
from partial_fc_tools.sets import sheet as sheets
from partial_fc_tools.sets.info import as_text, bars, describe_set, histogram
from partial_fc_tools.sets.sheet import GAP, MARGIN

SIZES = [1, 2, 4, 9]


@pytest.fixture
def small(tmp_path):
    """4 identities of 1, 2, 4 and 9 faces."""
    root = str(tmp_path / "set")
    write_face_set(root, [[encode_face(5, person, image) for image in range(n)] for person, n in enumerate(SIZES)])
    return root


def test_info(small, monkeypatch):
    facts = describe_set(small)
    assert (facts["images"], facts["identities"], facts["num_classes"]) == (16, 4, 4)
    assert facts["image_size"] == (112, 112) and facts["bytes"] == os.path.getsize(os.path.join(small, "train.rec"))
    assert facts["images_per_identity"] == {"min": 1, "median": 3.0, "mean": 4.0, "max": 9}
    assert [tuple(row.values()) for row in facts["histogram"]] == [(1, 1, 1), (2, 4, 2), (5, 9, 1)]
    assert facts["ranges"] == "integers"
    sample = facts["sample"]
    assert (sample["images"], sample["formats"], sample["sizes"]) == (16, {"jpg": 16}, {"112x112": 16})
    text = as_text(facts)
    assert "num_classes=4" in text and "exact integers" in text and "min 1, median 3, mean 4.0, max 9" in text
    monkeypatch.setattr("partial_fc_tools.sets.info.SAMPLE", 3)
    lengths = [len(encode_face(5, *image)) for image in ((0, 0), (3, 0), (3, 8))]  # of 16 images 0, 7 and 15
    sample = describe_set(small)["sample"]
    assert (sample["images"], sample["mean_bytes"], sample["max_bytes"]) == (3, np.mean(lengths), max(lengths))


def test_a_folder_of_images_must_be_packed(tmp_path, capsys):
    (tmp_path / "photos" / "person").mkdir(parents=True)
    for command in ("info", "check"):
        assert exit_code("sets", command, tmp_path / "photos") == 2
        assert f"pack it first: partial-fc sets pack {tmp_path}/photos OUT" in capsys.readouterr().err
    assert exit_code("sets", "info", tmp_path / "photos" / "person") == 2
    assert "expected the folder of a face set, or its train.rec" in capsys.readouterr().err


def test_every_bar_begins_at_its_bound_and_is_seen():
    counts = np.array([edge + more for edge in (2, 5, 10, 20, 50, 100, 200, 500, 1000) for more in (-1, 0)])
    rows = [tuple(row.values()) for row in histogram(counts, empty=0)]
    firsts = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
    lasts = [*(first - 1 for first in firsts[1:]), None]
    assert rows == list(zip(firsts, lasts, [1, *[2] * 8, 1]))
    ends = [tuple(row.values()) for row in histogram(np.array([1001]), empty=2)][:: len(firsts)]
    assert ends == [(0, 0, 2), (1000, None, 1)]
    rows = [{"first": 1, "last": 1, "identities": 1}, {"first": 1000, "last": None, "identities": 1000}]
    assert [line.split() for line in bars(rows)] == [["1", "images", "#", "1"], ["1000+", "images", "#" * 40, "1,000"]]


def test_the_info_command(small):
    overwrite(os.path.join(small, "train.rec"), 32 + 700, bytes(range(256)) * 4)  # libjpeg prints a line
    done = start("sets", "info", small, "--json")
    assert (done.returncode, done.stderr) == (0, "") and json.loads(done.stdout)["num_classes"] == 4
    assert exit_code("sets", "info", small) == 0 and exit_code("sets", "info", small + "x") == 2


def test_a_sheet_shows_the_identities(small, tmp_path, capsys):
    out = str(tmp_path / "sheet.png")
    write_names(small, ["ann", "bob", "çid", "d" * 40])
    call(sheets, small, out, "--images", 3, "--labels", "3,0")
    assert capsys.readouterr() == (f"{out}: 2 identities: 3, 0\n", "")
    sheet = cv2.imread(out)
    assert sheet.shape == (2 * (112 + GAP), MARGIN + 3 * (112 + GAP), 3)
    only = cv2.imdecode(np.frombuffer(encode_face(5, 0, 0), np.uint8), cv2.IMREAD_COLOR)
    assert (sheet[114:226, MARGIN : MARGIN + 112] == only).all()  # the one image of identity 0
    assert (sheet[114:, MARGIN + 114 :] == 255).all()  # and nothing beside it
    captions = [sheet[top : top + 112, :MARGIN] for top in (0, 114)]
    assert all((caption < 128).any() for caption in captions) and not np.array_equal(*captions)
    names = ["a" * 18, "b" * 19]
    assert [sheets.caption(label, names) for label in (0, 1)] == [["0", "a" * 18], ["1", "b" * 16 + ".."]]


def test_every_option_changes_the_sheet(small, tmp_path):
    def sheet(*options):
        call(sheets, small, tmp_path / "sheet.png", "--force", *options)
        return cv2.imread(str(tmp_path / "sheet.png"))

    def shape(rows, columns):
        return rows * (112 + GAP), MARGIN + columns * (112 + GAP), 3

    assert sheet().shape == shape(4, 9)
    for option, value, rows, columns in (("--identities", 3, 3, 9), ("--images", 3, 4, 3), ("--seed", 2, 3, 2)):
        few = ("--identities", 3, "--images", 2) if option == "--seed" else ()
        changed = sheet(*few, option, value)
        assert changed.shape == shape(rows, columns) and not np.array_equal(changed, sheet(*few))


def test_a_sheet_of_shuffled_images_that_are_wider_than_high(tmp_path):
    """The first image is damaged, so the size comes from the next ones, as there is no property file."""
    faces = {key: picture(key, (40, 60)) for key in range(4)}
    encoded = {key: cv2.imencode(".png", face)[1].tobytes() for key, face in faces.items()}
    labels = [1.0, 0.0, 1.0, 1.0]
    records = {key: (labels[key], key, 0, encoded[key] if key else b"no image") for key in faces}
    call(sheets, write_records(str(tmp_path), records), tmp_path / "sheet.png", "--labels", "0,1")
    sheet = cv2.imread(str(tmp_path / "sheet.png"))
    for row, column, key in ((0, 0, 1), (1, 1, 2), (1, 2, 3)):
        top, left = row * (40 + GAP), MARGIN + column * (60 + GAP)
        assert (sheet[top : top + 40, left : left + 60] == faces[key]).all()


def test_damaged_images_are_crossed_out(small, tmp_path, capsys):
    overwrite(os.path.join(small, "train.rec"), 32, b"\0" * 50)  # key 1 is at offset 0
    call(sheets, small, tmp_path / "sheet.png", "--labels", 0, "--images", 1)
    (unreadable,) = capsys.readouterr().err.splitlines()
    assert "image with key 1 at offset 0 cannot be decoded" in unreadable
    cross = cv2.imread(str(tmp_path / "sheet.png"))[:112, MARGIN : MARGIN + 112].astype(int)
    assert (cross[56, 56] == (0, 0, 200)).all() and (cross[10, 50] == 200).all()


def test_a_sheet_that_cannot_be_drawn_is_refused(small, tmp_path):
    out = tmp_path / "sheet.png"
    for wrong in ([out, "--labels", "4"], [f"{out}.jpg"], [out, "--labels", "x"]):
        assert exit_code("sets", "sheet", small, *wrong) == 2
    for rows, columns in ((1, 10_000), (10_000, 1), (1000, 1000)):
        with pytest.raises(ValueError, match="too large"):
            sheets.empty_sheet(rows, columns, (112, 112))
