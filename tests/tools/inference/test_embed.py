"""partial-fc embed against a slow reference."""

import os
import signal
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest

from command_line import interruptible
from partial_fc.data.synthetic.draw import draw_face, encode_face
from partial_fc_tools.__main__ import main
from partial_fc_tools.inference.index import read_index
from paths import with_root
from tiny_onnx import TinyModel
from waiting import happens

NAMES = ["a.jpg", "b/1.png", "b/2.jpg", "b/deep/3.JPG", "c.webp", "d.jpg", "e.jpg"]
OTHERS = "1 other file ignored: notes.txt\n"
RUN = (
    "import sys; from partial_fc_tools.__main__ import main; code = main(['embed', *sys.argv[1:]]); "
    "sys.exit('mxnet' in sys.modules or code)"
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a model, seven faces, some in subfolders, and files that are not images."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faces" / "b" / "deep").mkdir(parents=True)
    for person, name in enumerate(NAMES):
        face = draw_face(1, person, 0)[:, :, ::-1]
        (tmp_path / "faces" / name).write_bytes(cv2.imencode(os.path.splitext(name)[1].lower(), face)[1].tobytes())
    (tmp_path / "faces" / "notes.txt").write_text("no image")
    (tmp_path / "faces" / ".hidden.jpg").write_bytes(encode_face(1, 9, 0))
    TinyModel().write(tmp_path / "backbone.onnx")
    return tmp_path


def pixels(path):
    return cv2.imread(str(path), cv2.IMREAD_COLOR)[:, :, ::-1]


def expected(place, model, names=NAMES, mirrored=True):
    return np.stack([model.slow_unit(pixels(place / "faces" / name), mirrored) for name in names])


def run(*arguments):
    return main(["embed", "faces", "--model", "backbone.onnx", *arguments])


def test_end_to_end_without_mxnet(place):
    command = [sys.executable, "-c", RUN, "faces", "--model", str(place)]
    done = subprocess.run(command, env=with_root(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, OTHERS)
    assert "embeddings.npy: 7 embeddings of dimension 16 and length 1, with mirror images" in done.stdout
    assert (place / "embeddings.txt").read_text() == "".join(name + "\n" for name in NAMES)
    embeddings = np.load(place / "embeddings.npy")
    assert embeddings.dtype == np.float32 and embeddings.shape == (7, 16)
    np.testing.assert_allclose(embeddings, expected(place, TinyModel()), atol=1e-5)
    files = [f"embeddings.{ending}" for ending in ("json", "npy", "txt")]
    assert sorted(os.listdir(place)) == ["backbone.onnx", *files, "faces"]


@pytest.mark.parametrize("batch, size", [("batch", "1"), ("batch", "4"), ("batch", "100"), (1, "4"), (3, "4")])
def test_batch_size_does_not_change_the_embeddings(place, batch, size):
    model = TinyModel(batch=batch)
    model.write(place / "backbone.onnx")
    assert run("--batch-size", size) == 0
    np.testing.assert_allclose(np.load("embeddings.npy"), expected(place, model), atol=1e-5)


def test_without_mirror_images_and_replaced_only_with_force(place, capsys):
    assert run("--out", "sub/alone") == 0
    before = (place / "sub" / "alone.npy").read_bytes()
    assert run("--no-flip", "--out", "sub/alone.npy") == 2
    assert "alone.npy already exists" in capsys.readouterr().err
    assert (place / "sub" / "alone.npy").read_bytes() == before
    assert run("--no-flip", "--out", "sub/alone.npy", "--force") == 0
    assert "without mirror images" in capsys.readouterr().out
    alone = read_index("sub/alone").embeddings
    np.testing.assert_allclose(alone, expected(place, TinyModel(), mirrored=False), atol=1e-5)


def test_unusable_images_are_reported_and_skipped(place, capsys):
    whole = encode_face(1, 20, 0)
    (place / "faces" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (place / "faces" / "empty.jpg").write_bytes(b"")
    (place / "faces" / "garbage.png").write_bytes(b"no image at all")
    (place / "faces" / "torn.jpg").write_bytes(whole[:1500] + bytes(200) + whole[1700:])
    (place / "faces" / "large.jpg").write_bytes(cv2.imencode(".jpg", np.zeros((120, 90, 3), np.uint8))[1].tobytes())
    os.symlink("nowhere.jpg", place / "faces" / "lost.jpg")
    assert run("--batch-size", "2") == 1
    messages = capsys.readouterr().err.removeprefix(OTHERS).splitlines()
    unusable = ["cut.jpg", "empty.jpg", "garbage.png", "large.jpg", "lost.jpg", "torn.jpg"]
    assert [line.split(" ")[1] for line in messages] == [f"faces/{name}" for name in unusable]
    for message, what in zip(messages, ("truncated", "decoded", "decoded", "120x90", "No such file", "damaged")):
        assert what in message
    index = read_index("embeddings")
    assert index.names == NAMES
    np.testing.assert_allclose(index.embeddings, expected(place, TinyModel()), atol=1e-5)


def test_images_of_another_size_are_scaled_with_resize(place):
    large = cv2.resize(draw_face(1, 3, 1), (224, 224), interpolation=cv2.INTER_NEAREST)
    (place / "faces" / "large.png").write_bytes(cv2.imencode(".png", large[:, :, ::-1])[1].tobytes())
    assert run("--resize") == 0
    index = read_index("embeddings")
    row = index.embeddings[index.names.index("large.png")]  # scaling by half averages four equal pixels
    np.testing.assert_allclose(row, TinyModel().slow_unit(draw_face(1, 3, 1)), atol=1e-5)
    TinyModel((64, 48)).write(place / "backbone.onnx")
    assert run("--force") == 2 and run("--force", "--resize") == 0
    assert read_index("embeddings").embeddings.shape == (8, 16)


def test_links_that_form_a_loop(place):
    os.symlink("..", place / "faces" / "b" / "back")
    os.symlink(place / "faces" / "b" / "deep", place / "faces" / "a")  # the same images under another name count once
    assert run() == 0
    assert read_index("embeddings").names == NAMES


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["absent", "--model", "backbone.onnx"], "absent is not a folder"),
        (["empty", "--model", "backbone.onnx"], "empty and its subfolders hold no images"),
        (["faces", "--model", "absent.onnx"], "absent.onnx does not exist"),
        (["faces", "--model", "faces/a.jpg"], "faces/a.jpg: onnxruntime"),
        (["broken", "--model", "backbone.onnx"], "no usable image among 1 image in broken: broken/x.jpg"),
        (["faces", "--model", "backbone.onnx", "--out", "results/"], "results/ is a folder"),
        (["lines", "--model", "backbone.onnx"], "the name contains a line break"),
    ],
)
def test_errors_leave_no_files(place, capsys, arguments, message):
    for name in ("empty", "broken", "lines"):
        (place / name).mkdir()
    (place / "broken" / "x.jpg").write_bytes(b"")
    (place / "lines" / "two\nlines.jpg").write_bytes(encode_face(1, 0, 0))
    there = sorted(os.listdir(place))
    assert main(["embed", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert sorted(os.listdir(place)) == there


@pytest.mark.parametrize("kind", ["Relu", "Sqrt"])
def test_an_item_without_an_embedding_is_skipped_and_named_by_every_command(place, capsys, kind):
    cv2.imwrite("faces/b/black.png", np.zeros((112, 112, 3), np.uint8))
    model = TinyModel()
    model.refuse_black(kind)
    model.write(place / "backbone.onnx")
    assert run() == 1
    assert capsys.readouterr().err.count("zero or not finite") == 1
    assert read_index("embeddings").names == NAMES
    model = ["--model", "backbone.onnx"]
    assert main(["search", "faces/a.jpg", "faces", *model]) == 1
    assert "skipped: faces/b/black.png has an embedding that" in capsys.readouterr().err
    for words in (["compare", "faces/a.jpg"], ["search", "--index", "embeddings"]):
        assert main([*words, "faces/b/black.png", *model]) == 2
        assert "error: faces/b/black.png has an embedding that" in capsys.readouterr().err


def test_a_model_without_any_embedding_is_refused(place, capsys):
    model = TinyModel()
    model.initializers[4].raw_data = np.float32(np.nan).tobytes()  # a factor of all embeddings
    model.write(place / "backbone.onnx")
    assert run() == 2
    assert "no usable image among 7 images in faces: faces/a.jpg has an embedding" in capsys.readouterr().err
    assert not (place / "embeddings.npy").exists()


def test_a_signal_within_onnxruntime_leaves_no_files(place):
    endless = TinyModel()
    endless.loop(10**12)
    endless.write(place / "backbone.onnx")
    with interruptible("-m", "partial_fc_tools", "embed", "faces", "--model", "backbone.onnx") as child:
        assert happens(lambda: any(name.startswith(".partial_fc-") for name in os.listdir(place)))
        time.sleep(0.5)
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=30)
    assert (child.returncode, errors) == (143, "terminated\n")
    assert sorted(os.listdir(place)) == ["backbone.onnx", "faces"]
