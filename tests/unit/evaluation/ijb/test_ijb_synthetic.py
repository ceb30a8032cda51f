"""The synthetic protocol is complete and reproducible, and its landmarks match the faces."""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from partial_fc.data.alignment import ARCFACE, SIZE, align, read_rgb, similarities
from partial_fc.data.synthetic.dataset import HELD_OUT_START
from partial_fc.data.synthetic.draw import draw_face
from partial_fc.evaluation.ijb.protocol import read_protocol
from partial_fc.evaluation.ijb.synthetic import write_protocol
from partial_fc.utils.cli import run_module


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    root = str(tmp_path_factory.mktemp("ijb") / "IJBC")
    return root, write_protocol(root, 6, 1, "IJBC", "face", 1)


def aligned_faces(root):
    ijb = read_protocol(root)
    matrices = similarities(ijb.images.landmarks)
    return np.stack([align(read_rgb(os.path.join(ijb.folder, n)), m) for n, m in zip(ijb.images.names, matrices)])


def test_the_protocol_is_complete(drawn):
    root, plan = drawn
    ijb = read_protocol(root)
    probes = ijb.search.probes
    subject_of = dict(sum(plan.galleries, plan.probes))
    assert set(subject_of.values()) == set(range(6))
    assert len(ijb.images.names) == len(plan.images) and len(ijb.images.template_ids) == len(subject_of)
    assert len(ijb.pairs.left) == 6 * len(plan.probes)
    ids = ijb.images.template_ids.tolist()
    same = [subject_of[ids[a]] == subject_of[ids[b]] for a, b in zip(ijb.pairs.left, ijb.pairs.right)]
    assert ijb.pairs.issame.tolist() == same and sum(same) == len(plan.probes)
    galleries = [set(gallery.subjects.tolist()) for gallery in ijb.search.galleries.values()]
    assert galleries == [{0, 2, 4}, {1, 3, 5}] and set(probes.subjects.tolist()) == set(range(6))
    media = {(image.template, image.media) for image in plan.images}
    assert len(subject_of) < len(media) < len(plan.images)  # media of several images, templates of several media
    assert read_rgb(os.path.join(ijb.folder, "1.jpg")).shape == (160, 160, 3)


def test_equal_seeds_give_equal_bytes(drawn, tmp_path):
    root, again = drawn[0], str(tmp_path / "again")
    write_protocol(again, 6, 1, "IJBC", "face", 2)

    def contents(folder):
        return {path.relative_to(folder): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}

    assert contents(again) == contents(root)


def test_alignment_moves_facial_features_to_the_template(drawn):
    """In the mean of the aligned faces the eyes are darker than the skin below them, and the mouth is redder than the
    skin above and below it. The mean of the unaligned images shows neither."""
    ijb = read_protocol(drawn[0])
    pictures = [read_rgb(os.path.join(ijb.folder, name)) for name in ijb.images.names]
    raw = np.mean([cv2.resize(picture, (SIZE, SIZE)) for picture in pictures], axis=0)

    def contrasts(picture):
        light, redness = picture.mean(axis=2), (picture[:, :, 0] - picture[:, :, 1])[:, 50:62].mean(axis=1)
        eyes = [light[int(y) + 11, int(x)] - light[int(y), int(x)] for x, y in ARCFACE[:2]]
        mouth = redness[90:95].mean()
        return min(eyes), min(mouth - redness[80:84].mean(), mouth - redness[104:108].mean())

    eyes, mouth = contrasts(aligned_faces(drawn[0]).mean(axis=0))
    raw_eyes, raw_mouth = contrasts(raw)
    assert eyes > 20 > raw_eyes and mouth > 10 > raw_mouth


def test_demo_framing(tmp_path):
    """Aligned faces have the position that the demo data set draws them at."""
    root = str(tmp_path / "IJBC")
    plan = write_protocol(root, 4, 5, "IJBC", "demo", 1)
    faces = aligned_faces(root)
    inner = slice(30, 82)
    distances = []
    for face, image in list(zip(faces, plan.images))[:20]:
        drawn = draw_face(5, HELD_OUT_START + image.subject, image.number, SIZE)
        difference = cv2.blur(face, (5, 5)).astype(float) - cv2.blur(drawn, (5, 5))
        distances.append(np.abs(difference[inner, inner]).mean())
    assert np.median(distances) < 8  # of 255: blur, noise and compression differ, the position does not


def test_the_command(drawn, tmp_path, capsys):
    """Another target and another seed give other file names and other faces."""

    def run(*words):
        return run_module("partial_fc.evaluation.ijb.synthetic", "synthetic", [root, "--workers", "1", *words])

    root = str(tmp_path / "IJBB")
    assert run("--subjects", "4", "--target", "IJBB", "--seed", "2") == 0
    assert f"{root}: IJBB, " in capsys.readouterr().out
    ijb = read_protocol(root)
    assert ijb.target == "IJBB" and list(ijb.search.galleries) == ["S1", "S2"]
    first = [read_rgb(os.path.join(folder, "1.jpg")) for folder in (ijb.folder, os.path.join(drawn[0], "loose_crop"))]
    assert (first[0] != first[1]).any()
    assert run("--subjects", "4") == 2
    assert "already exists and is not empty" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("--subjects", "3")
