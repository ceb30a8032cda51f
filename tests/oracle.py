"""What Partial FC must compute, in plain float64 loops that share nothing with the product.

Shapes: G global batch, C classes, E embedding.
"""

import math
from functools import partial

import numpy as np

# Name of a loss -> (m1, m2, m3)
MARGINS = {
    "arcface": (1.0, 0.5, 0.0),
    "cosface": (1.0, 0.0, 0.4),
    "sphereface": (1.5, 0.0, 0.0),
    "combined": (0.9, 0.4, 0.15),
    "past_pi": (2.0, 1.0, 0.1),
}


def psi(angle):
    """cos up to pi, then the falling continuation (-1)^k cos(angle) - 2k."""
    turns = math.floor(angle / math.pi)
    return (-1) ** turns * math.cos(angle) - 2 * turns


class Combined:
    """m1, m2, m3, and the threshold above which negatives are left out; the base class of the other margins.

    `target` returns a row's target logit / s and the penalty that is added to its loss; `negative` returns a negative's
    logit / s, or None if it is left out.
    """

    def __init__(self, m1=1.0, m2=0.0, m3=0.0, threshold=0.0):
        self.margins, self.threshold = (m1, m2, m3), threshold

    def target(self, row, cosine, length):
        m1, m2, m3 = self.margins
        return psi(m1 * math.acos(cosine) + m2) - m3, 0.0

    def negative(self, cosine, target):
        return None if self.threshold and cosine > self.threshold else cosine


class AdaFace(Combined):
    """AdaFace after a step with the averages `mean` and `std`. z is constant, because norms have no gradient here."""

    def __init__(self, features, centers, labels, classes, mean, std, m=0.4, h=0.333, alpha=0.01):
        super().__init__()
        lengths = [min(max(float(np.linalg.norm(feature)), 0.001), 100.0) for feature in features]
        batch_mean = sum(lengths) / len(lengths)
        deviation = math.sqrt(sum((length - batch_mean) ** 2 for length in lengths) / (len(lengths) - 1))
        self.state = {
            "norm_mean": alpha * batch_mean + (1 - alpha) * mean,
            "norm_std": alpha * deviation + (1 - alpha) * std,
        }
        mean, std = self.state.values()
        self.m, self.z = m, [min(max((length - mean) / (std + 0.001) * h, -1.0), 1.0) for length in lengths]

    def target(self, row, cosine, length):
        shift = self.m * self.z[row]
        return math.cos(min(max(math.acos(cosine) - shift, 0.0), math.pi)) - (self.m + shift), 0.0


class MagFace(Combined):
    """MagFace: margin and regularizer depend on the norm, which has a gradient."""

    state: dict = {}

    def __init__(self, features, centers, labels, classes, l_a, u_a, l_m=0.45, u_m=0.8, lambda_g=35.0):
        super().__init__()
        self.ends, self.margins_at_ends, self.weight = (l_a, u_a), (l_m, u_m), lambda_g

    def target(self, row, cosine, length):
        (low, high), (least, most) = self.ends, self.margins_at_ends
        a = min(max(length, low), high)
        margin = least + (most - least) * (a - low) / (high - low)
        return psi(math.acos(cosine) + margin), self.weight * (a / high**2 + 1 / a)


class CurricularFace(Combined):
    """CurricularFace after a step with t, which has no gradient. A row without its positive counts as t."""

    def __init__(self, features, centers, labels, classes, t, m=0.5):
        super().__init__(1.0, m, 0.0)
        cosines = [
            float(feature @ centers[label]) / float(np.linalg.norm(feature) * np.linalg.norm(centers[label]))
            if label in classes
            else t
            for feature, label in zip(features, labels)
        ]
        self.t = 0.99 * t + 0.01 * sum(cosines) / len(cosines)
        self.state = {"t": self.t}

    def negative(self, cosine, target):
        return cosine * (self.t + cosine) if cosine > target else cosine


def mean_loss(features, centers, labels, classes, margins, scale, threshold=0.0, counts=None, rows=None):
    """Returns the mean cross entropy of the margin softmax over the centers `classes`, row by row.

    Args:
        margins: (m1, m2, m3) or a Combined.
        threshold: leaves out negatives with a higher cosine; 0 keeps all.
        counts: class -> weight of its exponential, 1 for other classes.
        rows: rows whose losses are summed, all by default. A row whose label is not in `classes` has no loss.
    """
    margin = margins if isinstance(margins, Combined) else Combined(*margins, threshold)
    total, lengths = 0.0, np.linalg.norm(features, axis=1)
    scales = np.outer(lengths, np.linalg.norm(centers[classes], axis=1))
    of_rows = (features @ centers[classes].T / scales).tolist()
    for row in range(len(labels)) if rows is None else rows:
        label = int(labels[row])
        if label not in classes:
            continue
        cosines = dict(zip(classes, of_rows[row]))
        target, penalty = margin.target(row, max(-1.0, min(1.0, cosines.pop(label))), float(lengths[row]))
        logits = {c: margin.negative(cosine, target) for c, cosine in cosines.items()} | {label: target}
        logits = {c: scale * value for c, value in logits.items() if value is not None}
        top = max(logits.values())
        terms = ((counts or {}).get(c, 1.0) * math.exp(z - top) for c, z in logits.items())
        total += top + math.log(sum(terms)) - logits[label] + penalty
    return total / len(labels)


def negative_counts(classes, labels, shards):
    """Returns the weight of each sampled negative: 1 / the fraction of its shard's negatives that are sampled."""
    counts = {}
    for start, stop in shards:
        negatives = set(range(start, stop)) - set(labels)
        counts |= {c: len(negatives) / len(negatives & set(classes)) for c in negatives & set(classes)}
    return counts


def gradient(function, point, step=1e-6):
    """Returns central differences of `function()` by every element of `point`, which is restored afterwards."""
    result = np.zeros_like(point)
    for i in np.ndindex(point.shape):
        value = point[i]
        point[i] = value + step
        above = function()
        point[i] = value - step
        below = function()
        point[i] = value
        result[i] = (above - below) / (2 * step)
    return result


def gradients(features, centers, labels, classes, *arguments):
    """Returns the gradients of `mean_loss` by features and centers.

    A row's features affect its own loss only; centers outside of `classes` affect no loss.
    """
    loss = partial(mean_loss, features, centers, labels, classes, *arguments)
    of_features = [gradient(partial(loss, rows=[row]), feature) for row, feature in enumerate(features)]
    of_centers = np.zeros_like(centers)
    for c in classes:
        of_centers[c] = gradient(loss, centers[c])
    return np.stack(of_features), of_centers


def sgd_momentum(weight, momentum_state, grad, lr, momentum=0.9, wd=5e-4):
    """One step of SGD with momentum and weight decay; returns (weight, momentum)."""
    state = momentum * momentum_state - lr * (grad + wd * weight)
    return weight + state, state
