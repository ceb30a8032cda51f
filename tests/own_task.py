"""A user's task without images: words of letters, some of which are misspelled.

Shapes: N words, T letters.
"""

import numpy as np

from partial_fc.data.item_batches import ArrayItems
from partial_fc.training.tasks import Evaluation, ItemPairs, Task
from partial_fc.utils.config import Setting

LETTERS, LONGEST, EACH, HELD_OUT = 20, 8, 6, 20  # HELD_OUT classes are not trained on


def words(classes, seed):
    """Returns EACH spellings of every class: {"letters": (N, LONGEST) int64, "length": (N,) int64}, labels (N,)."""
    rng = np.random.default_rng(seed)
    spelled, labels = rng.integers(1, LETTERS, (classes, LONGEST)), np.repeat(np.arange(classes), EACH)
    letters = spelled[labels]
    length = rng.integers(LONGEST - 2, LONGEST + 1, classes)[labels]
    wrong = rng.integers(0, LONGEST - 2, len(labels))
    letters[np.arange(len(labels)), wrong] = rng.integers(1, LETTERS, len(labels))
    letters[np.arange(LONGEST) >= length[:, None]] = 0
    return {"letters": letters, "length": length}, labels


def some(inputs, rows):
    return {name: array[rows] for name, array in inputs.items()}


class Words(Task):
    options = (Setting("classes", 30, "words that are trained on", at_least=2, at_most=1000),)

    def items(self):
        return ArrayItems(*words(self.classes, seed=0))

    def network_sizes(self):
        return {"letters": LETTERS}

    def evaluations(self):
        inputs, labels = words(HELD_OUT, seed=1)
        rng = np.random.default_rng(2)
        left, right = rng.permutation(len(labels)), rng.permutation(len(labels))
        left, right = np.append(left, np.arange(0, len(labels), 2)), np.append(right, np.arange(1, len(labels), 2))
        rows = np.stack([left, right], axis=1).ravel()
        pairs = ItemPairs(labels[left] == labels[right], lambda start, stop: some(inputs, rows[start:stop]))
        return {"pairs": pairs, "spellings": Nearest(inputs, labels)}


class Reading(Words):
    def items(self):
        return ArrayItems(*words(self.settings.words_of_a_file, seed=0))


class Broken(Words):
    def prepare(self, home):
        raise RuntimeError("not what a task raises")


class Failing(Words):
    def prepare(self, home):
        if self.classes == 2:
            raise ValueError("the user's text")

    def evaluations(self):
        raise ValueError("the user's text")


class Nearest(Evaluation):
    """Measures how often the nearest other word is of the same class."""

    figures, shares = ("rank1", "distance"), ("rank1",)

    def __init__(self, inputs, labels):
        self.inputs, self.labels = inputs, labels

    def measure(self, embedder):
        embeddings = embedder.embed_all(len(self.labels), lambda start, stop: some(self.inputs, slice(start, stop)))
        unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
        cosine = unit @ unit.T - 2 * np.eye(len(unit))
        nearest = cosine.argmax(axis=1)
        return {
            "rank1": float(np.mean(self.labels[nearest] == self.labels)),
            "distance": float(np.mean(1 - cosine.max(axis=1))),
        }

    def baselines(self, report_progress):
        report_progress()
        return {"guessing": 1 / HELD_OUT}


def network(num_features, letters):
    """Word -> embedding (B, E), from the embeddings of each letter at each position."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(letters, 8 * LONGEST)
            self.dropout = nn.Dropout(0.1)
            self.out = nn.Sequential(nn.Linear(8 * LONGEST, num_features), nn.BatchNorm1d(num_features))

        def forward(self, word):
            positions = torch.arange(LONGEST, device=word["letters"].device)
            mask = (positions < word["length"][:, None]).float()
            rows = self.table(word["letters"]).view(-1, LONGEST, LONGEST, 8)
            letters = rows[:, positions, positions] * mask[:, :, None]
            return self.out(self.dropout(letters.flatten(1)))

    return Network()


def deep(num_features, letters):
    """The same network followed by layers whose outputs take most of a step's memory."""
    from torch import nn

    layers = (layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.GELU()))
    return nn.Sequential(network(512, letters), *layers, nn.Linear(512, num_features))
