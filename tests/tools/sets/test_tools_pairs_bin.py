"""bin: validation pairs of a list, and drawn from identities."""

import os
import pickle
from itertools import combinations

import cv2
import numpy as np
import pytest

from command_line import call, exit_code
from face_sets import jpeg
from partial_fc.data.face_records import write_face_set
from partial_fc.data.pairs_bin import read_pairs
from partial_fc_tools.sets import pairs_bin
from partial_fc_tools.sets.pairs_draw import FOLDS, choose, draw_pairs
from partial_fc_tools.sets.pairs_list import read_pairs_list

SMALL = ("--size", 16)


@pytest.fixture
def tree(tmp_path):
    """LFW's layout: 24 people, each with 3 images."""
    for person in range(24):
        folder = tmp_path / "lfw" / f"P{person:02d}"
        folder.mkdir(parents=True)
        for image in range(1, 4):
            (folder / f"P{person:02d}_{image:04d}.jpg").write_bytes(jpeg(10 * person + image))
    return str(tmp_path / "lfw")


def listed(tmp_path, text):
    path = tmp_path / "pairs.txt"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_list_of_paths(tree, tmp_path):
    os.rename(os.path.join(tree, "P02"), os.path.join(tree, "P 2"))
    text = "P00/P00_0001.jpg P00/P00_0002.jpg 1\n\nP01/P01_0003.jpg\tP 2/P02_0001.jpg\t0\n"
    out = str(tmp_path / "x.bin")
    call(pairs_bin, out, "--pairs", listed(tmp_path, text), "--images", tree, *SMALL)
    images, same = read_pairs(out)
    assert images == [jpeg(1), jpeg(2), jpeg(13), jpeg(21)] and same.tolist() == [True, False]


@pytest.mark.parametrize("head", ["10\t300\n", "500\n", "", "\ufeff"], ids=["folds", "number", "none", "mark"])
def test_lfws_pairs(tree, tmp_path, head):
    out = str(tmp_path / "lfw.bin")
    pairs = listed(tmp_path, head + "P03\t1\t3\nP04\t2\tP05\t1\n")
    call(pairs_bin, out, "--pairs", pairs, "--images", tree, *SMALL)
    images, same = read_pairs(out)
    assert images == [jpeg(31), jpeg(33), jpeg(42), jpeg(51)] and same.tolist() == [True, False]
    with open(out, "rb") as file:  # as the original's own loader does
        assert pickle.load(file, encoding="bytes") == (images, [True, False])


@pytest.mark.parametrize("ending", [".JPG", ".Jpeg", ".jfif", ".png", "", ".JPG_1"])
def test_an_image_of_lfws_list_may_have_any_ending(tree, tmp_path, ending):
    path = os.path.join(tree, "P03", "P03_0001")
    os.rename(path + ".jpg", path + ending)
    assert read_pairs_list(listed(tmp_path, "P03 1 3\n"), tree)[0][0][0] == path + ending


def test_bad_lines_are_listed_by_number(tree, tmp_path):
    text = "10 300\nP00 1 2\nP00 1 9\none two\nP00/P00_0001.jpg P00/none.jpg 1\n"
    text += "P00/P00_0001.jpg P00/P00_0002.jpg 2\n10 300\n"
    with pytest.raises(ValueError) as error:
        read_pairs_list(listed(tmp_path, text), tree)
    _, *lines = str(error.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["line 3", "line 4", "line 5", "line 6", "line 7"]
    assert "P00/P00_0009.jpg" in lines[0] and "P00/none.jpg" in lines[2]
    with pytest.raises(ValueError, match="lists no pairs"):
        read_pairs_list(listed(tmp_path, "10\t300\n"), tree)


def test_images_of_a_list_are_checked_and_resized(tree, tmp_path):
    words = [tmp_path / "x.bin", "--pairs", listed(tmp_path, "P03 1 3\nP03 1 P04 1\n"), "--images", tree]
    with pytest.raises(ValueError, match="P03_0001.jpg has 16x16 pixels .*--resize"):
        call(pairs_bin, *words)
    call(pairs_bin, *words, "--resize")
    assert cv2.imdecode(np.frombuffer(read_pairs(tmp_path / "x.bin")[0][0], np.uint8), 1).shape == (112, 112, 3)
    for line in ("P03 1 3", "P03 1 P04 1"):
        with pytest.raises(ValueError, match="of one kind"):
            call(pairs_bin, tmp_path / "y.bin", "--pairs", listed(tmp_path, f"{line}\n" * 2), "--images", tree, *SMALL)
    assert not (tmp_path / "y.bin").exists()


def check_drawing(counts, pairs, same, number):
    """Checks properties that hold for every seed."""
    assert len(pairs) == number and sum(same) == number // 2
    assert all(0 <= image < counts[person] for pair in pairs for person, image in pair)
    assert [first[0] == second[0] for first, second in pairs] == same
    assert len({frozenset(pair) for pair in pairs}) == number and all(len(set(pair)) == 2 for pair in pairs)
    folds = np.array_split(np.arange(number), FOLDS)
    people = [{person for place in fold for person, _ in pairs[place]} for fold in folds]
    assert all(not one & other for one, other in combinations(people, 2))
    assert all(sum(same[place] for place in fold) == len(fold) // 2 for fold in folds)


@pytest.mark.parametrize(
    "counts, number",
    [([5] * 60, 600), ([1, 2, 9, 30] * 40, 1000), ([2] * 20, 20), ([3] * 40, 240), ([200] + [2] * 40, 40)],
)
def test_drawn_pairs(counts, number):
    drawings = [draw_pairs(counts, number, seed) for seed in (0, 1)]
    for pairs, same in drawings:
        check_drawing(counts, pairs, same, number)
    assert drawings[0] != drawings[1] and drawings[0] == draw_pairs(counts, number, 0)


def test_drawn_pairs_are_reproducible():
    """Validation files of one seed must be the same on every machine and with every numpy."""
    pairs, _ = draw_pairs([4] * 30, 20, 2022)
    assert pairs[:2] == [((7, 0), (7, 1)), ((7, 2), (13, 1))]
    assert {choose(2, 1, np.random.default_rng(seed))[0] for seed in range(10)} == {0, 1}


@pytest.mark.parametrize(
    "counts, number, message",
    [
        ([3] * 40, 260, "give 240 pairs .* not 260"),
        ([3] * 8, 20, "at least 20 identities, 10 of them .*; there are 8 identities, 8 with 2 images or more"),
        ([2] * 9 + [1] * 30, 20, "there are 39 identities, 9 with 2 images or more"),
        *(([3] * 40, number, "multiple of 20") for number in (0, 10, 30)),
    ],
)
def test_numbers_of_pairs_that_cannot_be_drawn(counts, number, message):
    with pytest.raises(ValueError, match=message):
        draw_pairs(counts, number, 0)


def test_pairs_of_a_set_and_of_a_tree_are_the_same(tree, tmp_path):
    people = [[jpeg(10 * person + image) for image in range(1, 4)] for person in range(24)]
    write_face_set(tmp_path / "set", people, (16, 16))
    drawn, written = ["--num-pairs", 40, "--seed", 7, "--force"], set()
    for labels in ([], ["--identities", "0:21"], ["--identities", "4:24"], ["--identities", "4:24", "--seed", 8]):
        call(pairs_bin, tmp_path / "a.bin", "--set", tmp_path / "set", *drawn, *labels)
        call(pairs_bin, tmp_path / "b.bin", "--folder", tree, *drawn, *labels, *SMALL)
        assert (tmp_path / "a.bin").read_bytes() == (tmp_path / "b.bin").read_bytes()
        written.add((tmp_path / "a.bin").read_bytes())
    assert len(written) == 4
    images, same = read_pairs(tmp_path / "a.bin")
    owner = {image: person for person, of_one in enumerate(people) for image in of_one}
    owners = [owner[image] for image in images]
    assert min(owners) >= 4 and [a == b for a, b in zip(owners[::2], owners[1::2])] == same.tolist()
    with pytest.raises(ValueError, match="has 24 identities, none with the label 29"):
        call(pairs_bin, tmp_path / "c.bin", "--set", tmp_path / "set", *drawn, "--identities", "20:30")


def test_pairs_of_a_set_are_decoded_first(tmp_path):
    people = [[jpeg(10 * person + image) for image in range(2)] for person in range(40)]
    flat = cv2.imencode(".jpg", np.zeros((8, 16, 3), np.uint8))[1].tobytes()
    for bad, what in ((b"no image", "decoded"), (jpeg(0)[:-40], "truncated"), (flat, "8x16 pixels")):
        write_face_set(tmp_path / "set", [[bad, jpeg(999)], *people[1:]], (16, 16))
        with pytest.raises(ValueError, match=f"key 1 at offset 0 .*{what}.*: use other"):
            call(pairs_bin, tmp_path / "a.bin", "--set", tmp_path / "set", "--num-pairs", 80)
    call(pairs_bin, tmp_path / "a.bin", "--set", tmp_path / "set", "--num-pairs", 20, "--identities", "1:40")
    assert len(read_pairs(tmp_path / "a.bin")[1]) == 20


OF_LIST, OF_TREE = ["--pairs", "pairs.txt", "--images", "lfw"], ["--folder", "lfw"]


@pytest.mark.parametrize(
    "wrong, what",
    [
        ([*OF_LIST, "--seed", "0"], "--seed belongs to --set or --folder, not to --pairs"),
        (["--set", "lfw", "--size", "112"], "--size belongs to --pairs or --folder, not to --set"),
        ([*OF_TREE, "--images", "lfw"], "--images belongs to --pairs, not to --folder"),
        (["--pairs", "x"], "--pairs needs --images"),
        ([*OF_TREE, "--identities", "5:3"], "A:B"),
        ([], "--pairs --set --folder"),
    ],
)
def test_options_of_another_source_are_refused(wrong, what, tmp_path, capsys):
    assert exit_code("sets", "bin", tmp_path / "other.bin", *wrong) == 2
    assert what in capsys.readouterr().err and not os.listdir(tmp_path)
