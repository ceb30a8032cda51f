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


KNOWN = np.array([5, 9, 999_999_999], np.int32)


def read_gallery(path, known):
    return read_subjects(path, known, gallery=True)


def read_probes(path, known):
    return read_subjects(path, known, gallery=False)


@pytest.mark.parametrize(
    "reader, content, message",
    [
        (read_probes, b"T,S\n5,1\n9,2\n5,2\n", "line 4: template 5 has subject 1 in an earlier line"),
        (read_gallery, b"T,S\n5,1\n\n9,1\n", "line 4: subject 1 .* second template, the first is 5"),
        (read_probes, b"T,S\n", "lists no templates"),
        (read_gallery, b"5,1\nT,S\n9,2\n", "line 2: 'T' must be a whole number"),
        (read_gallery, b"5.0,1\n9,2\n", "line 1: '5.0' must be a whole number"),
        (read_pairs, b"5 1000000000 1\n5 5 0\n", "line 1: '1000000000' must be .* at most 9 digits"),
        (read_pairs, b"5 9\n1 5 5 0\n5 5 1\n", "line 1: 2 columns"),  # three per line on average, but not in each
        (read_pairs, b"5 9 1\n5 \xff 1\n", "line 2: '.*' must be a whole number"),
        (read_pairs, b"", "all 0 are equal"),
        (read_pairs, b"\n\n", "all 0 are equal"),
        (read_pairs, b"5 5 1\n5 9 1\n", "all 2 are equal"),
        (read_pairs, b"5 9 0\n", "all 1 are equal"),
    ],
)
def test_an_invalid_list_is_refused(tmp_path, reader, content, message):
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(ValueError, match=f"list.*{message}"):
        reader(tmp_path / "list", KNOWN)


@pytest.mark.parametrize("heading", ["", "T,S\r\n", '"TEMPLATE_ID",SUBJECT_ID\n', "\ufeffT,S\n"])
def test_a_list_of_subjects_has_an_optional_heading_and_repeated_lines(tmp_path, heading):
    path = tmp_path / "list.csv"
    path.write_text(f"{heading}5,1,a\n5,1,b\r\n 999999999 , 999999999 ,c\n\n", encoding="utf-8", newline="")
    for reader in (read_gallery, read_probes):
        subjects = reader(path, KNOWN)
        assert (subjects.templates.tolist(), subjects.subjects.tolist()) == ([0, 2], [1, 999_999_999])
    path.write_text("5,1\n9,1\n")
    assert read_probes(path, KNOWN).subjects.tolist() == [1, 1]


@pytest.mark.parametrize("content", [b" 5\t999999999  1 \r\n0009 5 00\n5 5 1\n \n\n", b"5 999999999 1\n9 5 0\n5 5 1"])
def test_white_space_in_pairs(tmp_path, content):
    (tmp_path / "pairs.txt").write_bytes(content)
    pairs = read_pairs(tmp_path / "pairs.txt", KNOWN)
    assert (pairs.left.tolist(), pairs.right.tolist(), pairs.issame.tolist()) == ([0, 1, 0], [2, 0, 0], [1, 0, 1])


@pytest.mark.parametrize("number, score", [(3, "-0.1"), (1, "0")])
def test_templates_without_a_weight_are_refused(root, number, score):
    """A negative score; a template whose three images have a score of 0."""
    path = root / "meta" / LANDMARKS
    lines = path.read_text().splitlines()
    for line in [number] if score != "0" else range(1, 4):
        edit(path, line, f"{lines[line - 1].rsplit(' ', 1)[0]} {score}")
    with pytest.raises(ValueError, match=f"line {number}: detector score {score} .*--no-detector-score"):
        read_protocol(root)
    assert len(read_protocol(root, detector_score=False).images.names) == len(lines)


def test_missing_images_are_reported_before_any_is_read(root):
    (root / "loose_crop" / "a").mkdir()
    (root / "loose_crop" / "0.png").rename(root / "loose_crop" / "a" / "0.png")
    for name in (LANDMARKS, MEDIA):
        path = root / "meta" / name
        edit(path, 1, path.read_text().splitlines()[0].replace("0.png", "a/0.png", 1))
    assert read_protocol(root).images.names[0] == "a/0.png"  # images may be in subfolders
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
    with pytest.raises(ValueError, match="has both IJBB and IJBC: select one with --target"):
        read_protocol(root)
    assert read_protocol(root, "IJBC").target == "IJBC"


def test_a_gallery_without_subjects_of_probes_is_refused(root):
    lines = (root / "meta" / GALLERY).read_text().splitlines()
    others = [f"{line.split(',')[0]},{90 + row}" for row, line in enumerate(lines[1:])]
    write(root / "meta" / GALLERY, [lines[0], *others])
    with pytest.raises(ValueError, match="no probe of .*probe_mixed.csv has its subject in .*gallery_G1.csv"):
        read_protocol(root)


@pytest.mark.parametrize("name", [LANDMARKS, MEDIA, PAIRS, GALLERY, PROBES])
def test_damaged_lists(root, name):
    path = root / "meta" / name
    check_damaged(root, path.read_bytes(), lambda root: read_protocol(root), write=path.write_bytes)
