"""The example of synthetic speakers: voices, pieces, network, scores, and both stages of the training."""

import importlib.util
import json
import shutil

import numpy as np
import pytest
import torch

import default
from command_line import call
from examples.speakers import __main__ as making
from examples.speakers import evaluate
from examples.speakers.network import speakers as speaker_network
from examples.speakers.recordings import BANDS, FILES, PARTS, read_part
from examples.speakers.task import Pieces
from examples.speakers.wespeaker_projection import Projection
from partial_fc.checkpoint import CheckpointFolder
from partial_fc.training.trainer import train
from partial_fc_torch import InterTopK, PartialFC_V2
from partial_fc_torch.build import TorchFramework

MAKES_SPEECH = shutil.which("espeak-ng") and importlib.util.find_spec("kaldi_native_fbank")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A set of the same form, in which each speaker has a mean frame."""
    folder, rng = tmp_path_factory.mktemp("sets") / "speakers", np.random.default_rng(0)
    folder.mkdir()
    for part, count in zip(PARTS, (12, 6)):
        labels, lengths = np.repeat(np.arange(count), 5), rng.integers(20, 60, 5 * count)
        means = 3 * rng.standard_normal((count, BANDS))[np.repeat(labels, lengths)]
        waves = np.sin(np.arange(lengths.sum()))[:, None]
        frames = means * waves + rng.standard_normal((lengths.sum(), BANDS))
        for name, array in (("frames", frames.astype(np.float16)), ("starts", np.cumsum([0, *lengths]))):
            np.save(folder / f"{part}-{name}.npy", array)
        np.save(folder / f"{part}-speakers.npy", labels)
    (folder / "speakers.json").write_text("{}")
    return folder


@pytest.mark.skipif(not MAKES_SPEECH, reason="espeak-ng or kaldi-native-fbank is missing")
def test_the_set_is_spoken_alike_again(tmp_path, capfd):
    for name in ("one", "two"):
        arguments = ["--root", tmp_path / name, "--speakers", 3, "--unseen", 2, "--utterances", 2]
        assert call(making, *arguments) == 0
    assert "trained: 3 speakers, 6 utterances of" in capfd.readouterr().out
    for name in FILES:
        np.testing.assert_array_equal(*(np.load(tmp_path / each / name) for each in ("one", "two")), err_msg=name)
    trained = read_part(tmp_path / "one", "trained")
    assert trained.frames.shape == (trained.starts[-1], BANDS) and np.isfinite(trained.frames).all()
    assert 100 <= trained.lengths.min() and trained.lengths.max() <= 1000
    assert len(np.unique(trained.means(), axis=0)) == 6


def test_a_piece_depends_on_epoch_and_position_alone(root):
    trained = read_part(root, "trained")
    pieces = Pieces(trained, speakers=8, frames=40, seed=3)
    assert len(pieces) == 40 and pieces.num_classes == 8
    everything, some = pieces.read(np.arange(40), 1).inputs, pieces.read(np.array([7, 30]), 1)
    for name, array in some.inputs.items():
        np.testing.assert_array_equal(array, everything[name][[7, 30]])
    assert some.labels.tolist() == [1, 6]
    assert not np.array_equal(pieces.read(np.arange(40), 2).inputs["frames"], everything["frames"])
    assert trained.lengths[:40].min() < 40 < trained.lengths[:40].max() and set(everything["lengths"]) == {40}
    for row, frames in enumerate(everything["frames"]):
        utterance = np.asarray(trained.frames[trained.starts[row] : trained.starts[row + 1]], np.float32)
        repeated = np.tile(utterance, (2 if len(utterance) < 40 else 1, 1))
        starts = range(max(1, len(utterance) - 39))
        assert any(np.array_equal(repeated[start : start + 40], frames) for start in starts)
    with pytest.raises(ValueError, match="the set has 12 speakers: set num_classes"):
        Pieces(trained, speakers=13, frames=40, seed=3)


@pytest.mark.parametrize("length", [37, 38, 40, 41, 64])
def test_padding_does_not_change_an_embedding(length):
    torch.manual_seed(length)
    network = speaker_network(16, width=2, blocks=(1, 2, 1)).eval()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
            module.bias.data.normal_()
    frames, lengths = torch.randn(1, length, BANDS), torch.tensor([length])
    found = [network({"frames": each, "lengths": lengths}) for each in (frames, torch.cat([frames, 9 + frames], 1))]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(network({"frames": frames, "lengths": lengths - 9}), found[0], rtol=1e-2)


def settings_of(root, stage, output, **changes):
    quick = {"data_root": str(root.parent), "num_classes": 12, "batch_size": 8, "embedding_size": 16}
    quick |= {"num_epoch": 4, "verify_every": 8, "checkpoint_every": 5, "output": str(output)}
    quick |= {"task_options": "frames=30,width=2,blocks=[1,1]", **changes}
    return default.generate_config(config_file=f"examples/speakers/{stage}.json", changes=quick, trainer="torch")


def test_both_stages_train_resume_and_are_compared(root, tmp_path, capfd):
    first, again, second = (tmp_path / name for name in ("first", "again", "second"))
    train(settings_of(root, "settings", first, average_checkpoints=2), TorchFramework())
    summary = json.loads((first / "summary.json").read_text())
    assert set(summary["baselines"]) == {"mean_filter_banks", "untrained"}
    saved = dict(CheckpointFolder(str(first / "checkpoints"), 2).complete())
    resumed = settings_of(root, "settings", again, average_checkpoints=2, resume=saved[min(saved)])
    train(resumed, TorchFramework())
    for name in ("backbone.pth", "backbone.onnx", "rank_0_softmax_weight.pt"):
        assert (again / name).read_bytes() == (first / name).read_bytes(), name

    changes = {"pretrained": saved[max(saved)], "task_options": "frames=50,width=2,blocks=[1,1]", "lr": 1e-9}
    train(settings_of(root, "large_margin", second, **changes), TorchFramework())
    weights = [torch.load(folder / "backbone.pth", weights_only=True)["fc.weight"] for folder in (first, second)]
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-6)  # starts with the mean
    capfd.readouterr()
    assert call(evaluate, first, second, "--root", root, "--out", tmp_path / "figures.json") == 0
    assert len(capfd.readouterr().out.splitlines()) == 2 + 3 * 3
    found = json.loads((tmp_path / "figures.json").read_text())
    assert found[str(first)]["cosine"]["eer"] == pytest.approx(found[str(second)]["cosine"]["eer"], abs=0.02)


def test_the_projection_of_wespeakers_loop_has_its_form():
    conf = {"embed_dim": 8, "num_class": 20, "scale": 32.0, "K": 2, "k_top": 3, "mp": 0.06}
    projection, random = Projection(conf), torch.Generator().manual_seed(0)
    rows, labels = torch.randn(6, 8, generator=random), torch.arange(6)
    losses = []
    for margin in (0.0, 0.1):
        projection.update(margin)
        outputs, loss = projection(rows, labels)
        layer = PartialFC_V2(InterTopK(32.0, margin, 3, 0.3 * margin), 8, 20, 1.0, sub_centers=2)
        layer.weight.data.copy_(projection.layer.weight)
        assert outputs.shape == (6, 20) and projection.margin == margin
        torch.testing.assert_close(loss, layer(rows, labels))
        losses.append(loss.item())
    loss.backward()
    assert projection.layer.weight.grad.any() and losses[0] < losses[1]
    projection = Projection({**conf, "do_lm": True})
    projection.update(0.5)
    assert projection.layer.margin.penalty == 0 and projection.layer.margin.m == 0.5
