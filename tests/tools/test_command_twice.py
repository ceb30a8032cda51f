"""Every command that writes a second time: the same result, and nothing else has changed."""

import json
import os
import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from test_commands import COMMANDS

from command_line import exit_code
from ijb_files import write_protocol
from made_up_training import a_training
from partial_fc.data.face_records import write_face_set
from partial_fc.data.names import write_names
from partial_fc.data.pairs_bin import write_pairs
from partial_fc.training.report import write_report
from patterns import photos_of
from tiny_onnx import TinyModel

pytest.importorskip("faiss", reason="pip install faiss-cpu")

PEOPLE, IMAGES = 20, 4
MODEL = ("--model", "backbone.onnx")
# Command -> its arguments, where OUT is a path in another folder, and the files that it writes.
WRITES = {
    "sets align": ("photos OUT --detector red_squares:RedSquares", "OUT OUT.csv"),
    "sets pack": ("faces OUT", "OUT"),
    "sets unpack": ("set OUT", "OUT"),
    "sets merge": ("OUT set set", "OUT"),
    "sets bin": ("OUT.bin --set set --num-pairs 20", "OUT.bin"),
    "sets clean": ("set OUT --model backbone.onnx --workers 1", "OUT OUT.work"),
    "sets sheet": ("set OUT.png", "OUT.png"),
    "embed": ("faces --model backbone.onnx --out OUT", "OUT.json OUT.npy OUT.txt"),
    "index build": ("known --out OUT", "OUT"),
    "cluster": ("known --classes 5 --labels 2 --out OUT.npy", "OUT.npy"),
    "verify": ("backbone.onnx val.bin --out OUT", "OUT.json OUT_roc.png"),
    "checkpoints map": ("set/identities.txt set/identities.txt OUT", "OUT"),
    "export": ("run --half --pairs val.bin --limit 1 --out OUT.onnx", "OUT.onnx"),
    "report card": ("run --pairs val.bin --out OUT", "OUT.html OUT.md"),
    "report compare": ("run other --out OUT.html", "OUT.html"),
    "ijb": ("--model-root backbone.onnx --image-path IJBC --result-dir OUT", "OUT"),
}
# OUT is a copy of the index.
CHANGES = {"index add": "OUT more", "index remove": "OUT known.txt", "index merge": "OUT other.index"}


def write_folders(place):
    """Images of people: a pattern each, and noise."""
    rng = np.random.default_rng(0)
    people = photos_of(rng.integers(0, 256, (PEOPLE, 14, 14, 3)), IMAGES, 50, rng, 112, ".png")
    for person, images in enumerate(people):
        (place / "faces" / f"p{person:02}").mkdir(parents=True)
        for number, image in enumerate(images):
            (place / "faces" / f"p{person:02}" / f"{number}.png").write_bytes(image)
    write_face_set(place / "set", people)
    write_names(place / "set", [f"p{person:02}" for person in range(PEOPLE)])
    issame = [True, False] * 50
    pairs = [(people[pair % PEOPLE][0], people[(pair + (not same)) % PEOPLE][1]) for pair, same in enumerate(issame)]
    write_pairs(place / "val.bin", [image for pair in pairs for image in pair], issame)
    (place / "photos" / "a").mkdir(parents=True)
    photo = np.full((120, 160, 3), 200, np.uint8)
    photo[30:94, 20:84] = 0, 0, 255
    cv2.imwrite(str(place / "photos" / "a" / "1.png"), photo)
    shutil.copytree(place / "faces" / "p03", place / "others" / "q")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the files that the commands read."""
    place = tmp_path_factory.mktemp("twice")
    before = os.getcwd()
    os.chdir(place)
    write_folders(place)
    TinyModel(features=64).write(place / "backbone.onnx")
    for name in ("run", "other"):
        (place / name).mkdir()
        write_report(a_training(folder=str(place / name)))
        shutil.copy(place / "backbone.onnx", place / name)
        (place / name / "settings.json").write_text(json.dumps({"batch_size": 8}))
    for name, folder in (("known", "faces"), ("more", "others")):
        assert exit_code("embed", folder, *MODEL, "--out", name) == 0
    assert exit_code("index", "build", "known", "--out", "known.index") == 0
    assert exit_code("index", "build", "more", "--out", "other.index") == 0
    write_protocol(place / "IJBC")
    os.chdir(before)
    return place


def content(folder):
    """{path: bytes} of all files below a folder, without the seconds that a command took."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
    return {name: re.sub(rb'"seconds": {[^}]*}', b"", whole) for name, whole in files.items()}


def call(command, arguments, out, *more):
    words = [word.replace("OUT", str(out)) for word in arguments]
    return exit_code(*command.split(), *words, *more)


@pytest.fixture
def unchanged(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    before = content(place)
    yield tmp_path / "result"
    assert content(place) == before


def test_every_command_that_writes_is_here(capsys):
    forced = set()
    for names in COMMANDS:
        assert exit_code(*names, "--help") == 0
        if "--force" in capsys.readouterr().out:
            forced.add(" ".join(names))
    assert forced <= WRITES.keys()


@pytest.mark.parametrize("command", WRITES)
def test_what_is_there_is_refused_or_written_again_with_the_same_bytes(command, unchanged, tmp_path, capsys):
    arguments, files = WRITES[command]
    assert call(command, arguments.split(), unchanged) == 0, capsys.readouterr().err
    first = content(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(files.replace("OUT", "result").split()) and all(first.values())
    assert call(command, arguments.split(), unchanged) == 2 and content(tmp_path) == first
    capsys.readouterr()
    assert exit_code(*command.split(), "--help") == 0
    if "--force" in capsys.readouterr().out:
        assert call(command, arguments.split(), unchanged, "--force") == 0
        assert content(tmp_path) == first


@pytest.mark.parametrize("command", CHANGES)
def test_a_change_of_an_index_is_made_once(command, place, unchanged, tmp_path):
    shutil.copytree(place / "known.index", unchanged)
    before = content(tmp_path)
    assert call(command, CHANGES[command].split(), unchanged) == 0
    first = content(tmp_path)
    assert first != before and len(first) == len(before)
    assert call(command, CHANGES[command].split(), unchanged) == 2 and content(tmp_path) == first
