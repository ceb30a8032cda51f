"""Verification with TorchEngine gives the same figures as one process."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch_layer import RANK, SIZE
from torch_training import build_engine

import partial_fc.evaluation.items
import verification_cases
from partial_fc.distributed.errors import JobError
from partial_fc.evaluation.items import EmbeddedItems
from partial_fc.evaluation.metrics import build_metrics, evaluate
from partial_fc.training.embedder import Embedder
from partial_fc.training.tasks import Evaluation, LabeledItems
from partial_fc.training.verifying import CallBackVerification
from partial_fc_torch.averaged import AveragedBackbone
from partial_fc_torch.collectives import default_collectives
from partial_fc_torch.pixels import normalized
from verification_cases import PAIRS, SIDE, E, draw_images


def backbone():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, E), nn.BatchNorm1d(E))
    model[2].running_mean.copy_(torch.arange(E))
    nn.init.constant_(model[2].running_var, 2.0)
    nn.init.normal_(model[2].bias)
    return model


def build():
    """Returns an engine whose running mean differs between ranks; the average is that of backbone()."""
    engine = build_engine(backbone())
    engine.backbone[2].running_mean += RANK - (SIZE - 1) / 2
    return engine


def expected_embeddings(images):
    """Returns the embeddings of images and of mirrored images, computed in float64."""
    model = copy.deepcopy(backbone()).double().eval()
    with torch.no_grad():
        both = [
            normalized(torch.from_numpy(faces.copy()).permute(0, 3, 1, 2)) for faces in (images, images[:, :, ::-1])
        ]
        return [model(faces.double()).numpy() for faces in both]


@pytest.mark.parametrize("pairs, batch", PAIRS)
def test_distances_are_those_of_one_rank(pairs, batch, folder):
    verification_cases.distances_are_those_of_one_rank(build(), expected_embeddings, folder, pairs, batch)


@pytest.mark.parametrize("count", [11, 2])  # with three ranks, one has none of two
def test_every_rank_has_the_embeddings_of_all_items(count):
    engine, images = build(), draw_images(count)
    engine.average_statistics()
    found = Embedder(engine, 2, "set").embed_all(count, lambda start, stop: images[start:stop].transpose(0, 3, 1, 2))
    np.testing.assert_allclose(found, expected_embeddings(images)[0], atol=1e-5)


@pytest.mark.parametrize("count", [50, 8])  # eight items are one block, of one rank
def test_metrics_of_labeled_items_are_those_of_all_embeddings(count, monkeypatch):
    monkeypatch.setattr(partial_fc.evaluation.items, "SCORES", 1)
    monkeypatch.setattr(partial_fc.evaluation.items, "LEAST_ROWS", 8)
    images, labels = draw_images(count), np.arange(count) // 2
    names, options = ["map", "recall", "eer", "knn", "nmi"], {"ranks": (1, 2), "neighbors": 1}
    evaluation = LabeledItems(labels, lambda start, stop: images[start:stop].transpose(0, 3, 1, 2), names, options)
    engine = build()
    callback = CallBackVerification(engine, 6, {"set": evaluation}, 5)
    callback.prepare()
    callback.verify_all(5)
    embedded = expected_embeddings(images)[0].astype(np.float32)
    items = EmbeddedItems(embedded / np.linalg.norm(embedded, axis=1, keepdims=True), labels)
    expected = {name: each.value for name, each in evaluate(items, build_metrics(names, options), draws=0).items()}
    point = callback.history["set"][0]
    assert {name: getattr(point, name) for name in evaluation.figures} == pytest.approx(expected, abs=1e-6)
    assert evaluation.figures[0] == "map" and evaluation.higher_is_better


def test_embeddings_that_are_not_finite_end_the_verification():
    """Without this, their normalized rows are zeros, which have figures."""
    engine = build()
    engine.backbone[1].bias.data[0] = np.nan
    evaluation = LabeledItems(np.arange(8) // 2, lambda start, stop: draw_images(8)[start:stop].transpose(0, 3, 1, 2))
    with pytest.raises(ValueError, match="embeddings of set are not finite: has training diverged"):
        evaluation.measure(Embedder(engine, 2, "set"))


def test_metrics_that_the_columns_do_not_fit_are_refused_before_the_training():
    evaluation = LabeledItems(np.arange(4) // 2, lambda start, stop: None, cameras=np.arange(3))
    with pytest.raises(JobError, match="cameras has shape"):
        CallBackVerification(build(), 6, {"set": evaluation}, 5).prepare()


class MeanOfSteps(nn.Module):
    """Embeds signals of any length as the mean of a layer's results over their steps, without the padding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.linear = nn.Linear(3, E)

    def forward(self, inputs):
        return (self.linear(inputs["steps"]) * inputs["mask"][..., None]).sum(dim=1) / inputs["mask"].sum(dim=1)[
            :, None
        ]


@pytest.mark.parametrize("count", [23, 2])
def test_items_of_different_lengths_are_embedded_in_the_order_of_their_lengths(count):
    rng = np.random.default_rng(0)
    items = [rng.standard_normal((length, 3)).astype(np.float32) for length in rng.integers(1, 60, count)]
    lengths, batches = [len(item) for item in items], []

    def read(rows):
        batches.append([lengths[row] for row in rows])
        steps, mask = np.full((len(rows), max(batches[-1]), 3), 7, np.float32), np.zeros((len(rows), max(batches[-1])))
        for place, row in enumerate(rows):
            steps[place, : lengths[row]], mask[place, : lengths[row]] = items[row], 1
        return {"steps": steps, "mask": mask.astype(np.float32)}

    engine = build_engine(MeanOfSteps(), pixels=False)
    found = Embedder(engine, 4, "set").embed_by_length(lengths, read)
    with torch.no_grad():
        expected = [engine.backbone.linear(torch.from_numpy(item)).mean(dim=0) for item in items]
    np.testing.assert_allclose(found, torch.stack(expected), atol=1e-5)
    of_all = default_collectives.gather_object("batches", batches)
    assert sorted(sum(sum(of_all, []), [])) == sorted(lengths)
    assert all(sum(of_rank, []) == sorted(lengths)[rank::SIZE] for rank, of_rank in enumerate(of_all))


def test_a_stop_request_ends_a_verification_on_all_ranks(folder, monkeypatch):
    verification_cases.a_stop_request_ends_a_verification_on_all_ranks(build(), folder, monkeypatch)


class Measured(Evaluation):
    figures = ("rank1", "loss")

    def __init__(self, measured):
        self.measured = measured

    def measure(self, embedder):
        return self.measured


def verified(measured, name="set"):
    callback = CallBackVerification(build(), 6, {name: Measured(measured)}, 5)
    callback.prepare()
    return callback.verify_all(5), callback.history[name][0]


@pytest.mark.parametrize(
    "measured, message",
    [
        ({"rank1": 0.5}, "expected a number for each of .'rank1', 'loss'."),
        ({"rank1": 0.5, "loss": 1, "more": 2}, "expected a number for each"),
        ({"rank1": np.ones(3), "loss": 1}, "expected a number for each"),
        (0.5, "set has measured 0.5"),
        ({"rank1": float("nan"), "loss": 1}, "rank1 of set is nan after update 5"),
    ],
)
def test_a_wrong_result_on_one_rank_is_an_error_on_all(measured, message):
    with pytest.raises(JobError, match=message):
        verified(measured if RANK == SIZE - 1 else {"rank1": 0.5, "loss": 1})


@pytest.mark.parametrize(
    "figures", [None, "rank1", (), (1,), ("rank 1",), ("rank1", "rank1"), ("seconds",), {"rank1"}], ids=repr
)
def test_figures_without_proper_names_are_refused_before_the_training(figures):
    evaluation = Measured({})
    evaluation.figures = figures
    with pytest.raises(JobError, match="evaluation .set. has figures "):
        CallBackVerification(build(), 6, {"set": evaluation}, 5).prepare()


def test_a_set_with_the_name_of_another_sets_averaged_results_is_refused():
    engine = build()
    engine.averaged = AveragedBackbone(engine.backbone, 0.9)
    sets = {name: Measured({"rank1": 0.5, "loss": 1}) for name in ("val_ema", "val")}
    with pytest.raises(JobError, match="rename the set, or set ema_decay=0"):
        CallBackVerification(engine, 6, sets, 5).prepare()


def test_points_of_other_figures_are_not_restored():
    callback = CallBackVerification(build(), 6, {"set": Measured({"rank1": 0.5, "loss": 1})}, 5)
    callback.prepare()
    renamed = {"set": ["num_update", "rank1", "distance", "seconds"]}
    for fields, restored in ((renamed, 0), (callback.fields(), 1), (None, 1)):  # earlier versions saved no fields
        callback.history["set"] = []
        callback.restore({"set": [[4, 0.9, 2.0, 1.0]]}, {}, fields)
        assert len(callback.history["set"]) == restored


def test_all_ranks_have_the_figures_of_rank_0(caplog):
    values, point = verified({"rank1": np.float32(0.5 + RANK / 4), "loss": 2})
    assert values == {"set": 0.5} and (point.rank1, point.loss) == (0.5, 2.0)
    warned = [record.message for record in caplog.records if "those of rank 0 are taken" in record.message]
    assert len(warned) == (SIZE - 1 if RANK == 0 else 0)
    assert all("rank1 0.50000 and" in message and "loss" not in message for message in warned)


@pytest.mark.world_size(2, 3)
def test_ranks_with_other_sets_are_refused():
    with pytest.raises(JobError, match="rank 0 on .'first'., rank 1 on .'other'."):
        verified({"rank1": 0.5, "loss": 1}, "other" if RANK else "first")
