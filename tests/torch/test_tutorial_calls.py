"""PartialFC with the calls of the tutorial's train.py, and its files."""

import pickle

import numpy as np
import pytest
import torch

from partial_fc_torch import ArcFace, PartialFC

B, E, CLASSES = 6, 4, 13


def build(folder, **arguments):
    """The layer as the tutorial builds it."""
    defaults = dict(rank=0, local_rank=0, world_size=1, batch_size=B, resume=False, margin_softmax=ArcFace())
    defaults |= dict(num_classes=CLASSES, sample_rate=0.5, embedding_size=E, prefix=str(folder))
    return PartialFC(**defaults | arguments)


def batch():
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.standard_normal((B, E)).astype(np.float32)).requires_grad_()
    return features, torch.from_numpy(rng.integers(0, CLASSES, B))


def train(layer, steps):
    """The tutorial's loop without a backbone; returns the losses."""
    optimizer = torch.optim.SGD([{"params": layer.parameters()}], lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.1 if epoch >= 2 else 1.0)
    losses = []
    for _ in range(steps):
        features, labels = batch()
        x_grad, loss = layer.forward_backward(labels, features, optimizer)
        features.backward(x_grad)
        assert torch.equal(features.grad, x_grad)
        before = layer.weight.clone()
        optimizer.step()
        layer.update()
        optimizer.zero_grad()
        assert torch.equal(layer.weight, before)
        schedule.step()
        losses.append(loss.item())
    return losses


def test_the_tutorials_loop_updates_as_torch_optim_sgd(tmp_path):
    """With all classes in every step and a falling learning rate, which distinguishes the conventions of momentum."""
    layer = build(tmp_path, sample_rate=1.0)
    weight = layer.weight.clone().requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=5e-4)
    losses = train(layer, 4)
    for step in range(4):
        features, labels = batch()
        normalized = torch.nn.functional.normalize(weight)
        cosines = torch.nn.functional.linear(torch.nn.functional.normalize(features), normalized)
        loss = torch.nn.functional.cross_entropy(ArcFace()(cosines, labels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = 0.01 if step >= 2 else 0.1
        optimizer.step()
        np.testing.assert_allclose(losses[step], loss.item(), rtol=1e-4)
    np.testing.assert_allclose(layer.weight, weight.detach(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(layer.weight_mom, optimizer.state[weight]["momentum_buffer"], rtol=1e-3, atol=1e-3)


def test_a_training_continues_from_its_files(tmp_path):
    whole, first = build(tmp_path), build(tmp_path)
    train(whole, 2)
    train(first, 2)
    first.save_params()
    second = build(tmp_path, resume=True)
    assert torch.equal(second.weight, whole.weight) and torch.equal(second.weight_mom, whole.weight_mom)
    second.sampler.restore(whole.sampler.state())
    assert train(second, 2) == train(whole, 2)
    for name in ("rank_0_softmax_weight.pt", "rank_0_softmax_weight_mom.pt"):
        rows = torch.load(tmp_path / name, weights_only=True)
        assert type(rows) is torch.Tensor and rows.shape == (CLASSES, E) and rows.dtype == torch.float32


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(OSError, match="no centers at .*rank_0_softmax_weight.pt"):
        build(tmp_path, resume=True)
    saved = build(tmp_path)
    saved.save_params()
    with pytest.raises(ValueError, match=r"\(13, 4\), expected .* \(14, 4\)"):
        build(tmp_path, resume=True, num_classes=14)
    path = tmp_path / "rank_0_softmax_weight_mom.pt"
    torch.save({"mom": saved.weight_mom}, path)
    with pytest.raises(ValueError, match="weight_mom.pt holds dict"):
        build(tmp_path, resume=True)
    for content in (b"", b"broken", path.read_bytes()[:100], pickle.dumps(print)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="weight_mom.pt is damaged"):
            build(tmp_path, resume=True)


def test_saving_reports_progress(tmp_path, monkeypatch):
    saved, calls = build(tmp_path), []
    monkeypatch.setattr(type(saved.collectives), "report_progress", lambda self: calls.append(self))
    saved.save_params()
    assert calls


@pytest.mark.parametrize("rank, size", [(1, 1), (0, 2)])
def test_a_rank_that_differs_from_the_process_group_is_refused(rank, size, tmp_path):
    with pytest.raises(ValueError, match=f"rank 0 of 1 .* not rank {rank} of {size}"):
        build(tmp_path, rank=rank, world_size=size)


def test_a_missing_learning_rate_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="learning_rate"):
        build(tmp_path).step(*batch())


@pytest.mark.parametrize("kind, options", [(torch.optim.Adam, {}), (torch.optim.SGD, {"nesterov": True})])
def test_another_optimizer_is_refused(kind, options, tmp_path):
    layer = build(tmp_path)
    features, labels = batch()
    optimizer = kind(layer.parameters(), lr=0.1, **({"momentum": 0.9, **options} if options else {}))
    with pytest.raises(ValueError, match=f"{kind.__name__} .*{list(options)}".replace("[", r"\[")):
        layer.forward_backward(labels, features, optimizer)
