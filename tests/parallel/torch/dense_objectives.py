"""Objectives, several labels and sub-centers in a dense formulation in float64 with autograd."""

import numpy as np
import torch
from test_torch_layer_oracle import TOLERANCE, record_samples
from torch.nn.functional import normalize, softplus
from torch_layer import LOCAL, SIZE, all_ranks, random_batch

from partial_fc_torch import AdaFace, CombinedMarginLoss, CosFace, MagFace

CLASSES, SCALE = 31, 8.0
# Item by item: three labels, two, one, one that is repeated, none, and two again.
LABELS = np.array([[3, 30, 11], [11, -1, 4], [-1, 20, -1], [7, 7, 7], [-1, -1, -1], [30, 3, -1]])
TILES = {"tile_classes": 3, "logits_cache_mb": 0}


def own(negatives, targets, cosines, present):
    """An objective of a user that reads everything."""
    gap = torch.where(present, softplus(negatives[:, None] - targets) + 0.1 * cosines**2, 0.0)
    return gap.sum(dim=1)


def g(cosine):
    return 2 * ((cosine + 1) / 2) ** 3 - 1


def loss_of_row(name, negatives, t, z, b):
    """The formulas of the papers for a row with the logits of its negatives (n,), and those of its labels (p,)."""
    total = negatives.exp().sum()
    return {
        "softmax": lambda: ((total + t.exp()).log() - t).mean(),
        "softmax_shared": lambda: torch.stack(
            [(total + each.exp() + (z.exp().sum() - other.exp())).log() - each for each, other in zip(t, z)]
        ).mean(),
        "mlcd": lambda: (1 + total).log() + (1 + (-t).exp().sum()).log(),
        "circle": lambda: (1 + total * (-t).exp().sum()).log(),
        "bce": lambda: (1 + (-t - b).exp()).log().mean() + (1 + (negatives + b).exp()).log().sum(),
        "uniface": lambda: (1 + (-t - b).exp()).log().mean() + (1 + (negatives + b).exp()).log().sum(),
        "sphereface2": lambda: (
            0.7 / SCALE * (1 + (-SCALE * (g(z / SCALE) - 0.4) - b).exp()).log().mean()
            + 0.3 / SCALE * (1 + (SCALE * (g(negatives / SCALE) + 0.4) + b).exp()).log().sum()
        ),
        own: lambda: (((total + t.exp()).log() - t) + 0.1 * z**2).sum(),
    }[name]()


class Reference:
    """Loss and gradients of the dense formulation; ``target`` maps cosines and the norm of a row to its t / s."""

    def __init__(
        self, name, features, centers, labels, classes, target, sub_centers=1, bias=0.0, counts=None, change=None
    ):
        rows, columns = (torch.from_numpy(each).double().requires_grad_() for each in (features, centers))
        b = torch.tensor(bias, dtype=torch.float64, requires_grad=True)
        cosine = (normalize(rows) @ normalize(columns).T).view(len(rows), -1, sub_centers).amax(dim=2)
        losses, one_versus_all = [], name in ("bce", "uniface", "sphereface2")
        for row, found in enumerate(labels.reshape(len(rows), -1)):
            present = sorted(set(found[found >= 0].tolist()) & set(classes))
            if not present:
                continue
            others = sorted(set(classes) - set(present))
            negatives = SCALE * (change(cosine[row, others]) if change else cosine[row, others])
            if counts is not None:
                weights = torch.tensor([counts.get(each, 1.0) for each in others]).double()
                negatives = negatives if one_versus_all else negatives + weights.log()
            value, penalty = target(cosine[row, present], rows[row].norm())
            losses.append(loss_of_row(name, negatives, SCALE * value, SCALE * cosine[row, present], b) + penalty)
        self.loss = torch.stack(losses).sum() / len(rows)
        wanted = torch.autograd.grad(self.loss, (rows, columns, b), materialize_grads=True)
        self.d_features, self.d_centers, self.d_bias = (each.numpy() for each in wanted)
        self.loss = self.loss.item()


def cosface(cosine, norm):
    return cosine - 0.4, 0.0


def arcface(cosine, norm):
    angle = cosine.acos() + 0.5
    return torch.where(angle > torch.pi, -angle.cos() - 2, angle.cos()), 0.0


def straight_through(cosine, norm):
    """The value of ArcFace with the derivative 1, as in arcface_torch."""
    return cosine + (arcface(cosine, norm)[0] - cosine).detach(), 0.0


def magface(cosine, norm):
    a = norm.clip(1.6, 2.2)
    angle = cosine.acos() + 0.45 + 0.35 / 0.6 * (a - 1.6)
    return torch.where(angle > torch.pi, -angle.cos() - 2, angle.cos()), 35 * (1 / a + a / 2.2**2)


def adaface(cosine, norm):
    z = (0.333 * (norm.detach() - 2.0) / 0.401).clip(-1, 1)
    return (cosine.acos() - 0.4 * z).clip(0, torch.pi).cos() - 0.4 - 0.4 * z, 0.0


def adaface_module():
    margin = AdaFace(SCALE).eval()  # the state is not part of this test
    margin.norm_mean.fill_(2.0)
    margin.norm_std.fill_(0.4)
    return margin


MARGINS = {
    cosface: lambda: CosFace(SCALE),
    arcface: lambda: CombinedMarginLoss(SCALE, 1.0, 0.5, 0.0),
    straight_through: lambda: CombinedMarginLoss(SCALE, 1.0, 0.5, 0.0, straight_through=True),
    magface: lambda: MagFace(SCALE, 1.6, 2.2),
    adaface: adaface_module,
}


def gradients_of(layer, labels):
    """Loss and gradients of a step of PartialFC_V2 over all ranks, and the classes of the step."""
    samples = [] if layer.sampling_correction else record_samples(layer)
    features = random_batch(layer.num_classes)[0]
    local = torch.from_numpy(features[LOCAL]).requires_grad_()
    loss = layer(local, torch.from_numpy(labels[LOCAL]))
    loss.backward()
    by_centers = all_ranks(layer.weight.grad)
    classes = samples[0] if samples else np.flatnonzero(by_centers.reshape(layer.num_classes, -1).any(axis=1))
    by_bias = layer.objective.bias.grad.item() if hasattr(layer.objective, "bias") else 0.0
    return features, classes.tolist(), (loss.item(), all_ranks(local.grad / SIZE), by_centers, by_bias)


def assert_equal(found, expected):
    loss, by_features, by_centers, by_bias = found
    np.testing.assert_allclose(loss, expected.loss, rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(by_features, expected.d_features, **TOLERANCE)
    np.testing.assert_allclose(by_centers, expected.d_centers, rtol=2e-4, atol=2e-4)  # divided by norms of 0.02
    np.testing.assert_allclose(by_bias, expected.d_bias, rtol=1e-4, atol=1e-6)


def bias_of(layer):
    return layer.objective.bias.item() if hasattr(layer.objective, "bias") else 0.0


def check_step(layer, labels, name, target=cosface, sub_centers=1, change=None):
    """Compares a step of PartialFC_V2 over all ranks with the dense form; returns its classes and results."""
    bias = bias_of(layer)
    features, classes, found = gradients_of(layer, labels)
    rows = features, all_ranks(layer.weight), labels, classes
    assert_equal(found, Reference(name, *rows, target, sub_centers, bias, change=change))
    return classes, found
