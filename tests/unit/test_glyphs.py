"""The example's set of characters, with typefaces of rectangles whose sides depend on the code point."""

from functools import partial

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTFont

from command_line import call
from examples.glyphs import dataset, evaluate, noise
from examples.glyphs.dataset import GALLERY, NEW, TRAINED, Size, choose_typefaces, glyph_set, split_characters
from examples.glyphs.drawing import SIZE, Drawing, draw
from examples.glyphs.library import Library, distinct, packages
from examples.glyphs.typefaces import CHARACTERS, outline_numbers, read_typefaces
from examples.search_figures import search_scores, search_shares
from partial_fc.data.face_records import FaceRecords
from partial_fc.data.pairs_bin import read_pairs
from partial_fc.data.transforms import decode_rgb

COUNT = 1100  # characters of a typeface, from the first
EM = 1000


def box(width, height):
    pen = TTGlyphPen(None)
    if width:
        for step, point in enumerate(((0, 0), (0, height), (width, height), (width, 0))):
            (pen.lineTo if step else pen.moveTo)(point)
        pen.closePath()
    return pen.glyph()


def make_font(path, name, weight, change=lambda glyphs: None):
    """Writes a TrueType font with the first COUNT characters; ``change`` may replace their (width, height)."""
    sizes = {".notdef": (EM, EM), "space": (0, 0)}
    for place in range(COUNT):
        sizes[f"g{place}"] = (100 + place % 40 * 20 + weight, 100 + place // 40 * 20)
    change(sizes)
    font = FontBuilder(EM, isTTF=True)
    font.setupGlyphOrder(list(sizes))
    font.setupCharacterMap({0x20: "space", **{CHARACTERS[place]: f"g{place}" for place in range(COUNT)}})
    font.setupGlyf({glyph: box(*size) for glyph, size in sizes.items()})
    font.setupHorizontalMetrics(dict.fromkeys(sizes, (EM, 0)))
    font.setupHorizontalHeader(ascent=EM, descent=0)
    font.setupNameTable({"familyName": name, "styleName": "Regular", "fullName": name})
    font.setupOS2()
    font.setupPost()
    font.save(path)
    return path


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Four typefaces of two packages for training, and two new ones."""
    folder = tmp_path_factory.mktemp("fonts")
    read = []
    typefaces = {dataset.REFERENCE: "a", "A2": "a", "A3": "a", "B": "b", "N1": "n", "N2": "n"}
    for number, (name, package) in enumerate(typefaces.items()):
        read += read_typefaces(package, package == "n", make_font(folder / f"{number}.ttf", name, 2 * number + 1))
    return Library([typeface for typeface, _ in read], distinct(np.stack([outlines for _, outlines in read])))


def test_characters_without_an_outline_of_their_own_and_small_typefaces_are_left_out(tmp_path):
    def change(sizes):
        sizes["g0"] = (EM, EM)  # the box of .notdef
        sizes["g1"] = (0, 0)
        sizes["g2"] = sizes["g3"]

    with TTFont(make_font(tmp_path / "font.ttf", "F", 1, change)) as font:
        numbers = outline_numbers(font)
    assert not numbers[:4].any() and numbers[4:COUNT].all() and not numbers[COUNT:].any()
    assert len(set(numbers[4:COUNT].tolist())) == COUNT - 4
    small = make_font(tmp_path / "small.ttf", "F", 1, lambda sizes: sizes.update({f"g{n}": (0, 0) for n in range(200)}))
    assert read_typefaces("p", False, small) == []


def test_an_outline_counts_once():
    outlines = np.array([[5, 0, 7], [5, 6, 8], [9, 6, 7]], np.uint64)
    assert distinct(outlines).tolist() == [[True, False, True], [False, True, True], [True, False, False]]


def test_typefaces_are_chosen_from_each_package_in_turn(library):
    rows = np.arange(4)
    for column in range(20):
        chosen = choose_typefaces(library, rows, column, 3, seed=0)
        packages = [library.typefaces[row].package for row in chosen]
        assert len(set(chosen)) == 3 and sorted(packages[:2]) == ["a", "b"] and packages[2] == "a"
    assert len(choose_typefaces(library, rows, 0, 9, seed=0)) == 4


def test_characters_are_split(library):
    classes, unseen = split_characters(library, Size(classes=1000, unseen=100, images=4))
    assert sorted([*classes, *unseen]) == list(range(COUNT))
    assert len(unseen) == 100 and unseen.max() > COUNT / 2
    with pytest.raises(ValueError, match="1100 characters .* 1101 are needed"):
        split_characters(library, Size(classes=1001, unseen=100, images=4))


def test_images_show_the_outline(library):
    column = 39 + 5 * 40  # 880 + 1 wide, 200 high, of an em of 1000
    plain = decode_rgb(draw(0, Drawing(CHARACTERS[column], library.typefaces[0], -1)), (SIZE, SIZE))
    ink = plain[:, :, 0] < 128
    assert (ink.any(axis=0).sum(), ink.any(axis=1).sum()) == pytest.approx((45.8, 10.4), abs=1.5)
    first, second = (Drawing(CHARACTERS[column], library.typefaces[0], number) for number in (0, 1))
    assert draw(0, first) != draw(0, second) == draw(0, second) != draw(1, second)
    assert decode_rgb(draw(0, first), (SIZE, SIZE)).shape == (SIZE, SIZE, 3)


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_set_is_complete_and_the_same_with_any_number_of_processes(library, tmp_path):
    size = Size(classes=40, unseen=20, images=4, unseen_images=3, pairs=20)
    for workers, name in ((1, "one"), (2, "two")):
        glyph_set(tmp_path / name, [], size).write(partial(dataset.write_files, library, size, workers))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    root = tmp_path / "one"
    assert glyph_set(root, [], size).is_current() and not glyph_set(root, [], size._replace(seed=1)).is_current()
    records = FaceRecords(root / "train.rec")
    assert (records.num_images, records.num_identities, records.image_size) == (160, 40, (SIZE, SIZE))
    rows = [line.split("\t") for line in (root / "unseen" / "images.tsv").read_text().splitlines()[1:]]
    unseen = FaceRecords(root / "unseen" / "train.rec")
    assert [int(row[0]) for row in rows] == unseen.labels(np.arange(unseen.num_images)).tolist()
    assert [row[2] for row in rows] == [GALLERY, *[TRAINED] * 3, *[NEW] * 2] * 20
    assert {row[3] for row in rows if row[2] == NEW} == {"N1", "N2"}
    assert {row[3] for row in rows if row[2] == TRAINED} == {"A2", "A3", "B"}
    trained = set((root / "characters.txt").read_text().split())
    assert len(trained) == 40 and not trained & {row[1] for row in rows}
    for name in dataset.PAIR_SETS.values():
        images, issame = read_pairs(root / name)
        assert len(images) == 40 and issame.sum() == 10


def test_figures_of_a_search(tmp_path):
    gallery = np.eye(4, dtype=np.float32)
    probes = np.float32([[0.8, 0.6, 0, 0], [0.6, 0.8, 0, 0], [0, 0, 0.6, 0.8], [0, 0, 0, 1]])
    scores = search_scores(lambda a, b: a @ b.T, probes, gallery, np.array([0, 0, 2, 3]), evaluate.FARS)
    # At FAR 1e-4 none of the 12 other pairs may be accepted. The highest has 0.8, and only a score of 1 is above it.
    assert search_shares(scores, evaluate.FARS) == {"rank1": 0.5, "tar": 0.25}
    evaluate.write_scores(tmp_path / "scores.npz", dict.fromkeys(evaluate.KINDS, scores))
    for found in evaluate.read_scores(tmp_path / "scores.npz").values():
        for array, written in zip(found, scores):
            np.testing.assert_array_equal(array, written)


def test_packages_are_listed_once_with_a_licence():
    every = packages()
    assert len({package.name for package in every}) == len(every) > 50
    assert all(package.licence for package in every) and {package.is_new for package in every} == {True, False}
    assert [package.name for package in packages(["fonts-klee"])] == ["fonts-klee"]
    with pytest.raises(ValueError, match="fonts-none: not in .*packages.txt"):
        packages(["fonts-none"])


def test_noise_flips_labels_and_splits_classes():
    labels = np.repeat(np.arange(50), 20)
    flipped = noise.flipped(labels, 0.2, seed=0)
    assert np.sum(flipped != labels) == 200 and set(flipped) <= set(labels)
    assert np.array_equal(flipped, noise.flipped(labels, 0.2, seed=0))
    assert not np.array_equal(flipped, noise.flipped(labels, 0.2, seed=1))
    split = noise.split(labels, 0.2, seed=0)
    parts = [len(set(split[labels == label])) for label in range(50)]
    assert sorted(parts) == [1] * 40 + [2] * 5 + [3] * 5 and split.max() == 50 + 5 + 10 - 1
    assert np.bincount(split).min() == 6


def test_a_noisy_set_has_the_images_under_their_new_labels(library, tmp_path):
    size = Size(classes=20, unseen=20, images=4, unseen_images=3, pairs=20)
    (tmp_path / "clean").mkdir()
    dataset.write_files(library, size, 1, tmp_path / "clean")
    clean = FaceRecords(tmp_path / "clean" / "train.rec")
    labels = clean.labels(np.arange(80))
    for kind, of_images in noise.KINDS.items():
        call(noise, kind, tmp_path / kind, "--source", tmp_path / "clean")
        noisy = FaceRecords(tmp_path / kind / "train.rec")
        expected = of_images(labels, 0.2, 0)
        assert (80, expected.max() + 1) == (noisy.num_images, noisy.num_identities)
        relabelled = [(clean.read_image(place)[0], expected[place]) for place in range(80)]
        assert sorted(map(noisy.read_image, range(80))) == sorted(relabelled)
        assert (tmp_path / kind / "unseen_typefaces.bin").exists()
    with pytest.raises(FileExistsError, match="already exists"):
        call(noise, "flip", tmp_path / "flip", "--source", tmp_path / "clean")
