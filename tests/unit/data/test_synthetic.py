"""The synthetic faces and the set `demo`: reproducible bytes, and validation pairs that are a fair test.

Pixels are compared with stored digests. JPEG files are compared between runs, because their bytes depend on libjpeg.
"""

import hashlib
import json

import cv2
import numpy as np
import pytest

from face_sets import images_of
from partial_fc.data.pairs_bin import read_pairs
from partial_fc.data.synthetic import DemoSize, dataset, draw_face, encode_face, plan_pairs, write_demo
from partial_fc.data.synthetic.dataset import DEMO, FOLDS, HELD_OUT_START, VALIDATION
from partial_fc.utils.staging import MARKER

TINY = DemoSize(identities=3, images_per_identity=2, held_out=20, pairs=20)
SEED = DEMO.seed
FILES = [MARKER, "demo.json", "demo_val.bin", "property", "train.idx", "train.rec"]

# SHA-256 of the pixels. If a change of the drawing changes them, increase dataset.VERSION and store the new digests.
# If they change without one, a new OpenCV draws differently, and results on the demo are no longer comparable.
DIGESTS = {
    (0, 0, 0): "30e9f47bc1be5f23",
    (2022, 0, 0): "c9fdc2ab42816080",
    (2022, 0, 1): "e14e61f36910a32d",
    (2022, 999, 19): "2d297aac74554e0f",
    (2022, 2**31, 0): "961873328e8c83ef",
    (2022, 2**31 + 199, 3999): "10774c7e73afb581",
    (2**32 - 1, 2**32 - 1, 2**32 - 1): "4f5279ce10210e70",
}


def digest(picture: np.ndarray) -> str:
    return hashlib.sha256(picture.tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("numbers", DIGESTS)
def test_pixels_are_the_stored_ones(numbers):
    picture = draw_face(*numbers)
    assert picture.shape == (112, 112, 3) and picture.dtype == np.uint8
    assert digest(picture) == DIGESTS[numbers], f"OpenCV {cv2.__version__}, NumPy {np.__version__}"


def test_two_writings_give_the_same_files(tmp_path):
    write_demo(tmp_path / "one", TINY, workers=1)
    write_demo(tmp_path / "two", TINY, workers=2)
    write_demo(tmp_path / "other", TINY._replace(seed=1), workers=1)
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == FILES
    for name in FILES:
        content = (tmp_path / "one" / name).read_bytes()
        assert (tmp_path / "two" / name).read_bytes() == content
        if name.endswith((".rec", ".bin", "demo.json")):
            assert (tmp_path / "other" / name).read_bytes() != content


def test_the_real_readers_find_what_was_drawn(tmp_path):
    write_demo(tmp_path / "demo", TINY, workers=1)
    assert images_of(tmp_path / "demo") == [(encode_face(SEED, who, n), who) for who in range(3) for n in range(2)]
    assert (tmp_path / "demo" / "property").read_text() == "3,112,112\n"
    images, issame = read_pairs(tmp_path / "demo" / VALIDATION)
    plan, planned = plan_pairs(TINY)
    assert issame.tolist() == planned
    assert images == [encode_face(SEED, plan[number // 2][number % 2], number) for number in range(40)]
    assert len(set(images)) == 40


def test_folds_are_balanced_and_share_no_identity():
    plan, issame = plan_pairs(DEMO)
    assert len(plan) == len(issame) == DEMO.pairs
    seen: set = set()
    for fold in np.split(np.arange(DEMO.pairs), FOLDS):
        assert sum(issame[row] for row in fold) == len(fold) // 2
        people = {person for row in fold for person in plan[row]}
        assert len(people) == DEMO.held_out // FOLDS and not people & seen
        seen |= people
    assert min(seen) >= HELD_OUT_START and max(seen) < HELD_OUT_START + DEMO.held_out
    assert all((one == other) == same for (one, other), same in zip(plan, issame))


def test_an_up_to_date_set_is_kept_and_another_one_replaced(tmp_path, monkeypatch):
    root = tmp_path / "demo"
    write_demo(root, TINY, workers=1)
    before = (root / "train.rec").stat().st_mtime_ns
    write_demo(root, TINY, workers=1)
    assert (root / "train.rec").stat().st_mtime_ns == before
    other = TINY._replace(identities=2)
    write_demo(root, other, workers=1)
    assert json.loads((root / "demo.json").read_text())["identities"] == 2
    (root / "train.idx").unlink()
    write_demo(root, other, workers=1)
    assert (root / "train.idx").exists()
    monkeypatch.setattr(dataset, "VERSION", dataset.VERSION + 1)
    write_demo(root, other, workers=1)
    assert json.loads((root / "demo.json").read_text())["version"] == dataset.VERSION
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_a_set_is_not_drawn_again_over_files_of_the_user(tmp_path):
    write_demo(tmp_path / "demo", TINY, workers=1)
    (tmp_path / "demo" / MARKER).unlink()  # as in sets of earlier versions
    write_demo(tmp_path / "demo", TINY._replace(seed=1), workers=1)
    own = [tmp_path / "demo" / "lfw.bin", tmp_path / "demo" / "models" / "backbone.pt"]
    own[1].parent.mkdir()
    for path in own:
        path.write_text("mine")
    with pytest.raises(OSError, match="/demo holds lfw.bin, models/backbone.pt, "):
        write_demo(tmp_path / "demo", TINY, workers=1)
    assert [path.read_text() for path in own] == ["mine"] * 2


@pytest.mark.parametrize(
    "change", [{"identities": 0}, {"images_per_identity": 0}, {"held_out": 19}, {"pairs": 0}, {"pairs": 30}]
)
def test_invalid_counts_are_refused(tmp_path, change):
    with pytest.raises(ValueError, match="got"):
        write_demo(tmp_path / "demo", TINY._replace(**change))
    assert not list(tmp_path.iterdir())
