"""What Partial FC must compute, in plain float64 loops that share nothing with the product.

Shapes: G global batch, C classes, E embedding.
"""

import math

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


def mean_loss(features, centers, labels, classes, margins, scale, threshold=0.0, counts=None):
    """Mean cross entropy of the margin softmax over the centers `classes`, one row after the other.

    With a threshold, other centers than the label's count only up to this cosine. A class in `counts` counts so many
    times. A row whose label is not among the classes has no loss.
    """
    m1, m2, m3 = margins
    total, lengths = 0.0, {c: float(np.linalg.norm(centers[c])) for c in classes}
    for feature, label in zip(features, labels):
        if label not in classes:
            continue
        logits, length = {}, float(np.linalg.norm(feature))
        for c in classes:
            cosine = float(feature @ centers[c]) / (length * lengths[c])
            if c == label:
                cosine = psi(m1 * math.acos(max(-1.0, min(1.0, cosine))) + m2) - m3
            elif threshold and cosine > threshold:
                continue
            logits[c] = scale * cosine
        top = max(logits.values())
        terms = ((counts or {}).get(c, 1.0) * math.exp(z - top) for c, z in logits.items())
        total += top + math.log(sum(terms)) - logits[label]
    return total / len(labels)


def negative_counts(classes, labels, shards):
    """How often each sampled negative counts: 1 / the share of the negatives of its shard that are in the sample."""
    counts = {}
    for start, stop in shards:
        negatives = set(range(start, stop)) - set(labels)
        counts |= {c: len(negatives) / len(negatives & set(classes)) for c in negatives & set(classes)}
    return counts


def gradient(function, point, step=1e-6):
    """Central differences of `function()` by every element of `point`, which is changed and put back."""
    result = np.zeros_like(point)
    for i in np.ndindex(point.shape):
        kept = point[i]
        point[i] = kept + step
        above = function()
        point[i] = kept - step
        below = function()
        point[i] = kept
        result[i] = (above - below) / (2 * step)
    return result


def sgd_momentum(weight, momentum_state, grad, lr, momentum=0.9, wd=5e-4):
    """One step of SGD with momentum and weight decay; returns (weight, momentum)."""
    state = momentum * momentum_state - lr * (grad + wd * weight)
    return weight + state, state
