"""Reading the text files of a protocol; errors name the line."""

import numpy as np
import pytest

from damage import check_damaged
from ijb_files import edit, write, write_protocol
from partial_fc_tools.ijb.lists import read_pairs, read_subjects
from partial_fc_tools.ijb.protocol import read_protocol

LANDMARKS, MEDIA, PAIRS = "ijbc_name_5pts_score.txt", "ijbc_face_tid_mid.txt", "ijbc_template_pair_label.txt"
GALLERY, PROBES = "ijbc_1N_gallery_G1.csv", "ijbc_1N_probe_mixed.csv"


@pytest.fixture
def root(tmp_path):
    return write_protocol(tmp_path / "IJBC", pictures=False)


def test_a_protocol_is_read_as_written(root):
    ijb = read_protocol(root)
    lines = [line.split() for line in (root / "meta" / LANDMARKS).open()]
    media = [line.split() for line in (root / "meta" / MEDIA).open()]
    assert (ijb.target, ijb.absent) == ("IJBC", [])
    assert ijb.images.names == [values[0] for values in lines]
    for row, values in enumerate(lines):
        assert ijb.images.landmarks[row].ravel().tolist() == list(map(float, values[1:11]))
        assert ijb.images.detector_scores[row] == np.float32(values[11])
        assert ijb.images.template_ids[ijb.images.templates[row]] == int(media[row][1])
        assert ijb.images.media[row] == int(media[row][2])
    known = ijb.images.template_ids.tolist()
    assert known == sorted({int(values[1]) for values in media})
    rows = np.stack([ijb.pairs.left, ijb.pairs.right, ijb.pairs.issame], axis=1)
    pairs = [list(map(int, line.split())) for line in (root / "meta" / PAIRS).open()]
    assert rows.tolist() == [[known.index(a), known.index(b), c] for a, b, c in pairs]
    assert ijb.pairs.left.dtype == ijb.pairs.right.dtype == np.int32 and ijb.pairs.issame.dtype == bool
    assert [len(gallery.subjects) for gallery in ijb.search.galleries.values()] == [3, 3]
    assert len(ijb.search.probes.subjects) == 6  # each is listed twice
    lines = [line.split(",") for line in (root / "meta" / PROBES).open()][1::2]
    assert ijb.search.probes.subjects.tolist() == [int(values[1]) for values in lines]
    assert [known[row] for row in ijb.search.probes.templates] == [int(values[0]) for values in lines]


@pytest.mark.parametrize(
    "name, line, text, message",
    [
        (LANDMARKS, 3, "", "line 3: image '3.png', but .*_face_tid_mid.txt has '2.png'"),
        (LANDMARKS, 2, "1.png 4 4 4 4 4 4 4 4 4 4 0.5", "line 2: the five landmarks coincide"),
        (MEDIA, 4, "3.png 100", "line 4: 2 columns instead of 3"),
        (MEDIA, 4, "3.png 1234567890 5", "line 4: '1234567890' must be a whole number of at most 9 digits"),
        (MEDIA, 36, None, r"score.txt, line 36: image '35.png', but .*_face_tid_mid.txt has None"),
        (PAIRS, 5, "100 107 1 1", "line 5: 4 columns instead of 3"),
        (PAIRS, 5, "100 107 2", "line 5: the label must be 1 for the same person or 0"),
        (PAIRS, 36, "100 101 0", "line 36: unknown template 101"),
        (GALLERY, 2, "100", "line 2: 1 columns instead of 2"),
        (GALLERY, 3, "101,3,x.png", "line 3: unknown template 101"),
    ],
)
def test_an_invalid_line_is_reported(root, name, line, text, message):
    path = root / "meta" / name
    edit(path, line, text)
    with pytest.raises(ValueError, match=message) as error:
        read_protocol(root)
    assert str(root) in str(error.value)


def test_a_subject_has_one_template_in_a_gallery_and_any_number_of_probes(tmp_path):
    path = tmp_path / "list.csv"
    path.write_bytes(b"T,S\r\n5,1,a\r\n5,1,b\r\n 9 , 1 ,c\r\n\r\n")
    known = np.array([2, 5, 9], np.int32)
    subjects = read_subjects(path, known, gallery=False)
    assert (subjects.templates.tolist(), subjects.subjects.tolist()) == ([1, 2], [1, 1])
    with pytest.raises(ValueError, match="list.csv, line 4: subject 1 .* second template, the first is 5"):
        read_subjects(path, known, gallery=True)
    path.write_text("T,S\n5,1\n9,2\n5,2\n")
    with pytest.raises(ValueError, match="list.csv, line 4: template 5 has subject 1 in an earlier line"):
        read_subjects(path, known, gallery=False)
    path.write_text("T,S\n")
    with pytest.raises(ValueError, match="list.csv lists no templates"):
        read_subjects(path, known, gallery=False)


def test_ids_have_up_to_nine_digits(tmp_path):
    path, known = tmp_path / "list", np.array([7, 999_999_999], np.int32)
    path.write_text("999999999 7 1\n7 999999999 0\n")
    pairs = read_pairs(path, known)
    assert (pairs.left.tolist(), pairs.right.tolist()) == ([1, 0], [0, 1])
    path.write_text("T,S\n7,0\n999999999,999999999\n")
    subjects = read_subjects(path, known, gallery=True)
    assert (subjects.templates.tolist(), subjects.subjects.tolist()) == ([0, 1], [0, 999_999_999])
    path.write_text("7 1000000000 1\n7 7 0\n")
    with pytest.raises(ValueError, match="line 1: '1000000000' must be a whole number of at most 9 digits"):
        read_pairs(path, known)


def test_white_space_in_pairs(tmp_path):
    path = tmp_path / "pairs.txt"
    known = np.array([3, 10], np.int32)
    path.write_bytes(b" 3\t10  1 \r\n0010 3 00\n3 3 1\n \n\n")
    pairs = read_pairs(path, known)
    assert (pairs.left.tolist(), pairs.right.tolist(), pairs.issame.tolist()) == ([0, 1, 0], [1, 0, 0], [1, 0, 1])
    path.write_bytes(b"3 10 1\n3 3 0")
    assert len(read_pairs(path, known).left) == 2
    path.write_bytes(b"3 10\n1 3 3 0\n3 3 1\n")  # three per line on average, but not in each
    with pytest.raises(ValueError, match="line 1: 2 columns"):
        read_pairs(path, known)
    path.write_bytes(b"3 10 1\n3 \xff 1\n")
    with pytest.raises(ValueError, match="line 2: '.*' must be a whole number"):
        read_pairs(path, known)


@pytest.mark.parametrize("first", ["T,S", '"TEMPLATE_ID",SUBJECT_ID', "\ufeffT,S", None])
def test_the_heading_of_a_list_of_subjects_may_be_missing(tmp_path, first):
    path = tmp_path / "list.csv"
    path.write_text("".join(f"{line}\n" for line in (first, "5,1", "9,2") if line), encoding="utf-8")
    assert read_subjects(path, np.array([5, 9], np.int32), gallery=True).subjects.tolist() == [1, 2]
    path.write_text("5,1\nT,S\n9,2\n")
    with pytest.raises(ValueError, match="list.csv, line 2: 'T' must be a whole number"):
        read_subjects(path, np.array([5, 9], np.int32), gallery=True)
    path.write_text("5.0,1\n9,2\n")
    with pytest.raises(ValueError, match="list.csv, line 1: '5.0' must be a whole number"):
        read_subjects(path, np.array([5, 9], np.int32), gallery=True)


@pytest.mark.parametrize("number, score", [(3, "-0.1"), (1, "0")])
def test_templates_without_a_weight_are_refused(root, number, score):
    """A negative score; three images of a template with 0."""
    path = root / "meta" / LANDMARKS
    lines = path.read_text().splitlines()
    for line in [number] if score != "0" else range(1, 4):
        edit(path, line, f"{lines[line - 1].rsplit(' ', 1)[0]} {score}")
    with pytest.raises(ValueError, match=f"line {number}: detector score {score} .*--no-detector-score"):
        read_protocol(root)
    assert len(read_protocol(root, detector_score=False).images.names) == len(lines)


@pytest.mark.parametrize("content, count", [(b"", 0), (b"\n\n", 0), (b"3 3 1\n3 10 1\n", 2), (b"3 10 0\n", 1)])
def test_pairs_with_equal_labels_are_refused(tmp_path, content, count):
    path = tmp_path / "pairs.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"pairs with label 1 and pairs with label 0: all {count} are equal"):
        read_pairs(path, np.array([3, 10], np.int32))


def test_missing_images_are_reported_before_any_is_read(root):
    """Images in subfolders are not missing."""
    (root / "loose_crop" / "a").mkdir()
    (root / "loose_crop" / "0.png").rename(root / "loose_crop" / "a" / "0.png")
    for name in (LANDMARKS, MEDIA):
        path = root / "meta" / name
        edit(path, 1, path.read_text().splitlines()[0].replace("0.png", "a/0.png", 1))
    assert read_protocol(root).images.names[0] == "a/0.png"
    (root / "loose_crop" / "4.png").unlink()
    (root / "loose_crop" / "9.png").unlink()
    with pytest.raises(OSError, match=r"loose_crop/4.png does not exist; 2 of 36 images are missing"):
        read_protocol(root)
    write(root / "meta" / LANDMARKS, [])
    with pytest.raises(ValueError, match="lists no images"):
        read_protocol(root)


def test_the_target_is_detected(root):
    with pytest.raises(OSError, match="neither meta/ijbc_name_5pts_score.txt nor meta/ijbb_name_5pts_score.txt"):
        read_protocol(root / "meta")
    (root / "meta" / "ijbb_name_5pts_score.txt").touch()
    with pytest.raises(ValueError, match="holds both IJBB and IJBC: select one with --target"):
        read_protocol(root)
    assert read_protocol(root, "IJBC").target == "IJBC"


def test_a_gallery_without_subjects_of_probes(root):
    lines = (root / "meta" / GALLERY).read_text().splitlines()
    others = [f"{line.split(',')[0]},{90 + row}" for row, line in enumerate(lines[1:])]
    write(root / "meta" / GALLERY, [lines[0], *others])
    with pytest.raises(ValueError, match="no probe of .*probe_mixed.csv has its subject in .*gallery_G1.csv"):
        read_protocol(root)


@pytest.mark.parametrize("name", [LANDMARKS, MEDIA, PAIRS, GALLERY, PROBES])
def test_damaged_lists(root, name):
    path = root / "meta" / name
    check_damaged(root, path.read_bytes(), lambda root: read_protocol(root), write=path.write_bytes)
