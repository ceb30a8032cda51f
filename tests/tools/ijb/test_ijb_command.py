"""The command on a protocol of random images, compared with a loop that shares no code with it."""

import csv
import json
import os
import signal
import time
from collections import defaultdict

import cv2
import numpy as np
import pytest
from test_ijb_embedding import umeyama

from command_line import exit_code, interruptible
from ijb_files import edit, write_protocol
from image_forms import write_slow_images
from partial_fc.export.model import FaceModel
from partial_fc_tools.ijb.evaluate import EmbeddingOptions, evaluate
from partial_fc_tools.ijb.protocol import read_protocol
from paths import ROOT
from tiny_onnx import TinyModel
from waiting import happens

FILES = ["IJBC.csv", "IJBC.json", "IJBC.md", "IJBC_roc.pdf", "IJBC_roc.png", "IJBC_scores.npy"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with a protocol and a model."""
    return prepare(tmp_path_factory.mktemp("ijb"))


def prepare(folder):
    write_protocol(folder / "IJBC")
    TinyModel().write(folder / "model.onnx")
    return folder


def run(folder, out, *options):
    paths = ["--model-root", folder, "--image-path", folder / "IJBC", "--result-dir", out]
    return exit_code("ijb", *paths, *options)


def slow_scores(folder, flip, detector_score, norm_score):
    """Returns scores and labels of the pairs, computed from the files."""
    meta = folder / "IJBC" / "meta"
    groups = defaultdict(lambda: defaultdict(list))
    lines = ((meta / name).open() for name in ("ijbc_name_5pts_score.txt", "ijbc_face_tid_mid.txt"))
    for line, members in zip(*lines):
        name, *numbers, score = line.split()
        picture = cv2.imread(str(folder / "IJBC" / "loose_crop" / name))[:, :, ::-1]
        points = np.array(numbers, float).reshape(5, 2)
        face = cv2.warpAffine(np.ascontiguousarray(picture), umeyama(points), (112, 112), borderValue=0.0)
        embedding = TinyModel().slow(face)
        if flip:
            embedding = embedding + TinyModel().slow(face[:, ::-1])
        if not norm_score:
            embedding = embedding / np.linalg.norm(embedding)
        _, template, media = members.split()
        groups[int(template)][media].append(embedding * (float(score) if detector_score else 1))
    templates = {}
    for template, images in groups.items():
        total = np.sum([np.mean(group, axis=0) for group in images.values()], axis=0)
        templates[template] = total / np.linalg.norm(total)
    pairs = [list(map(int, line.split())) for line in (meta / "ijbc_template_pair_label.txt").open()]
    return np.array([templates[a] @ templates[b] for a, b, _ in pairs]), np.array([c for _, _, c in pairs])


def results_of(folder, **options):
    return evaluate(FaceModel.open(folder), read_protocol(folder / "IJBC"), EmbeddingOptions(**options))


def test_an_image_whose_embedding_is_not_finite_is_named(tmp_path):
    folder = prepare(tmp_path)
    cv2.imwrite(str(folder / "IJBC" / "loose_crop" / "5.png"), np.zeros((140, 140, 3), np.uint8))
    model = TinyModel()
    model.refuse_black("Sqrt")
    model.write(folder / "model.onnx")
    with pytest.raises(ValueError, match="loose_crop/5.png has an embedding that is not finite"):
        results_of(folder, batch_size=4)


@pytest.mark.parametrize(
    "flip, detector_score, norm_score",
    [(True, True, True), (False, True, True), (True, False, True), (True, True, False), (False, False, False)],
)
def test_scores_match_the_definition(root, flip, detector_score, norm_score):
    begun = time.monotonic()
    results = results_of(root, flip=flip, detector_score=detector_score, norm_score=norm_score)
    assert 0 < sum(results.seconds.values()) <= time.monotonic() - begun and len(results.seconds) == 3
    slow, labels = slow_scores(root, flip, detector_score, norm_score)
    assert results.scores.dtype == np.float32
    np.testing.assert_allclose(results.scores, slow, atol=1e-5)  # float32 sums of 588 numbers against float64
    others = slow_scores(root, not flip, detector_score, norm_score)[0]
    assert np.abs(others - slow).max() > 1e-3  # the tolerance above distinguishes the options
    genuine, impostor = results.scores[labels == 1], np.sort(results.scores[labels == 0])
    assert len(impostor) == 30  # so that FAR 1e-2 allows none of them and 0.1 three
    assert results.roc.at_most(0.01).tar == pytest.approx(np.mean(genuine > impostor[-1]))
    assert results.roc.at_most(0.1).tar == pytest.approx(np.mean(genuine > impostor[-4]))


def test_options_reach_the_results_and_no_search_without_lists(tmp_path, capsys):
    prepare(tmp_path)
    (tmp_path / "IJBC/meta/ijbc_1N_probe_mixed.csv").unlink()
    assert run(tmp_path, tmp_path / "out", "--no-flip", "--no-norm-score", "--batch-size", "7", "--workers", "3") == 0
    error = capsys.readouterr().err
    assert error.startswith("warning: no 1:N evaluation, missing files: ") and "ijbc_1N_probe_mixed.csv\n" in error
    assert "1:N" not in (tmp_path / "out" / "IJBC.md").read_text()
    results = results_of(tmp_path, flip=False, norm_score=False)
    np.testing.assert_allclose(np.load(tmp_path / "out" / "IJBC_scores.npy"), results.scores, atol=1e-6)
    facts = json.loads((tmp_path / "out" / "IJBC.json").read_text())
    assert [facts[name] for name in ("flip", "detector_score", "norm_score")] == [False, True, False]
    assert facts["identification"] == {}
    scores = tmp_path / "IJBC" / "meta" / "ijbc_name_5pts_score.txt"
    edit(scores, 1, f"{scores.read_text().splitlines()[0].rsplit(' ', 1)[0]} -1")
    assert run(tmp_path, tmp_path / "out") == 2
    assert run(tmp_path, tmp_path / "out", "--no-detector-score", "--force") == 0


def test_all_files_agree(root, tmp_path, capsys):
    """--force replaces earlier results and keeps other files."""
    (tmp_path / "IJBC.md").write_text("old")
    (tmp_path / "other.txt").write_text("kept")
    assert run(root, tmp_path) == 2 and "IJBC.md already exists" in capsys.readouterr().err
    assert run(root, tmp_path, "--force", "--json") == 0
    assert capsys.readouterr().out == (tmp_path / "IJBC.json").read_text()
    assert run(root, tmp_path, "--force") == 0
    assert sorted(os.listdir(tmp_path)) == sorted([*FILES, "other.txt"])
    printed = capsys.readouterr().out
    markdown = (tmp_path / "IJBC.md").read_text()
    assert markdown in printed and "| 1:N mean |" in markdown
    assert "36 images, 12 templates, 36 pairs; flip on" in markdown
    facts = json.loads((tmp_path / "IJBC.json").read_text())
    assert (facts["images"], facts["templates"], facts["pairs"]) == (36, 12, 36)
    assert (facts["genuine_pairs"], facts["impostor_pairs"]) == (6, 30)
    with open(tmp_path / "IJBC.csv") as file:
        rows = {row["protocol"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["1:1", "1:1 (nearest point)", "1:N G1", "1:N G2", "1:N mean"]
    for far, tar in facts["tar_at_far"].items():
        assert float(rows["1:1"][f"TAR@FAR={far}"]) == pytest.approx(tar, abs=1e-6)
    for name, search in facts["identification"].items():
        for rank in ("rank-1", "rank-5", "rank-10"):
            assert float(rows[f"1:N {name}"][rank]) == pytest.approx(search[rank], abs=1e-6)
        for fpir, rate in search["tpir_at_fpir"].items():
            assert float(rows[f"1:N {name}"][f"TPIR@FPIR={fpir}"]) == pytest.approx(rate, abs=1e-6)
    cells = [line.strip("| ").split(" | ") for line in markdown.splitlines() if line.startswith("| 1:")]
    shares = {name: [100 * float(share) for share in [*row.values()][1:] if share] for name, row in rows.items()}
    shown = {name: pytest.approx(percent, abs=0.0051) for name, percent in shares.items()}
    assert {name: list(map(float, percent)) for name, *percent in cells} == shown
    results = results_of(root)
    np.testing.assert_allclose(np.load(tmp_path / "IJBC_scores.npy"), results.scores, atol=1e-6)
    assert facts["tar_at_far"]["1e-1"] == results.roc.at_most(0.1).tar
    assert facts["identification"]["G1"]["mated_probes"] == facts["identification"]["G1"]["unmated_probes"] == 3
    picture = cv2.imread(str(tmp_path / "IJBC_roc.png"))
    assert picture.shape == (720, 960, 3) and picture.std() > 5
    assert (tmp_path / "IJBC_roc.pdf").read_bytes().startswith(b"%PDF")


def test_ranks_match_the_definition(root):
    """All gallery and probe templates are pairs of 1:1, so their scores determine the ranks."""
    meta = root / "IJBC" / "meta"
    results = results_of(root)
    pairs = [list(map(int, line.split())) for line in (meta / "ijbc_template_pair_label.txt").open()]
    for name in ("G1", "G2"):
        lines = (meta / f"ijbc_1N_gallery_{name}.csv").read_text().splitlines()[1:]
        gallery = {int(line.split(",")[0]) for line in lines}
        hits = []
        for probe in {b for _, b, _ in pairs}:
            row = [(score, label) for (a, b, label), score in zip(pairs, results.scores) if b == probe and a in gallery]
            if any(label for _, label in row):
                hits.append(max(row)[1])
        assert len(hits) == results.searches[name].mated == 3
        assert results.searches[name].rank(1) == pytest.approx(np.mean(hits))


@pytest.mark.parametrize("kind", ["damaged", "removed during the run"])
def test_an_unreadable_image_is_reported(tmp_path, capsys, kind):
    prepare(tmp_path)
    image = tmp_path / "IJBC" / "loose_crop" / "20.png"
    if kind == "damaged":
        image.write_bytes(image.read_bytes()[:50])
    else:
        image.unlink()
        image.symlink_to("nowhere.png")  # listed in the folder, but cannot be opened
    assert run(tmp_path, tmp_path / "out", "--batch-size", "4", "--workers", "2") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "20.png" in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_user_errors(root, tmp_path, capsys):
    small = TinyModel((112, 96)).write(tmp_path / "small.onnx")
    (tmp_path / "none").mkdir()
    paths = {"--model-root": root, "--image-path": root / "IJBC", "--result-dir": tmp_path / "out"}
    for change, message in [
        ({"--model-root": tmp_path / "none"}, "holds no .onnx file"),
        ({"--model-root": small}, "takes faces of 112x96 pixels, IJB faces are aligned to 112x112"),
        ({"--image-path": tmp_path / "none"}, "is not an IJB folder"),
        ({"--target": "IJBB"}, "ijbb_name_5pts_score.txt: No such file"),
    ]:
        assert exit_code("ijb", *(argument for item in {**paths, **change}.items() for argument in item)) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and message in error and error.count("\n") == 1


def test_ctrl_c(root, tmp_path):
    """The command as a user runs it, on large images."""
    protocol = write_protocol(tmp_path / "IJBC")
    write_slow_images(tmp_path, 1, side=7000)
    for image in sorted((protocol / "loose_crop").iterdir()):
        image.unlink()
        os.link(tmp_path / "slow0.jpg", image)
    paths = ["--model-root", root, "--image-path", protocol, "--result-dir", tmp_path / "out"]
    with interruptible(ROOT / "onnx_ijbc.py", *paths, "--batch-size", "4") as child:
        assert happens(lambda: (tmp_path / "out").exists(), 60)
        time.sleep(1)
        child.send_signal(signal.SIGINT)
        _, error = child.communicate(timeout=30)
    assert (child.returncode, error) == (130, "interrupted\n")
    assert not (tmp_path / "out").exists()
