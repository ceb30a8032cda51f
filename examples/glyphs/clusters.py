"""Trains on the characters without their labels: clusters of embeddings are the labels, see docs/clusters.md.

Round 0 embeds the training images by their pixels, or by a network that was trained with the labels of some characters.
Each round clusters the latest embeddings with partial-fc cluster, trains with the P nearest clusters of each image as
its labels, and embeds the images with the new model. A training that exists in FOLDER is not repeated: remove the
folder after a change of the code.

Shapes: N images, E embedding size, C characters, K clusters.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import cv2
import numpy as np

from partial_fc.data.face_records import FaceRecords
from partial_fc.evaluation.metrics.clusters import MutualInformation
from partial_fc.export.model import FaceModel
from partial_fc.utils.cli import add_seed, run_module, start, whole_number
from partial_fc.utils.tables import markdown_table
from partial_fc_tools.__main__ import main as partial_fc

from ..figures import Figure, percent
from ..search_figures import search_figures
from ..trainings import TORCH, train
from .dataset import COSFACE, add_folders
from .evaluate import FARS, KINDS, embed, read_unseen, search_unseen

EXAMPLE = "--root data/glyphs"
SCHEDULE = ["batch_size=128", "num_epoch=4", "lr_epochs=[3]", "warmup_steps=300"]
QUICK = ["batch_size=32", "num_epoch=0", "max_update=20", "lr_epochs=[]", "warmup_steps=5"]
LABELS = (1, 5)
SIDE, BLUR = 16, 2.0  # of the images whose pixels are the first embeddings; a standard deviation in pixels
NEIGHBORS = 5


class Pixels:
    """Takes the place of a model: embeddings are the SIDE x SIDE gray levels of blurred images, without their mean."""

    def embed(self, images: np.ndarray, batch_size: int) -> np.ndarray:
        """Returns embeddings (N, E) float32 of images (N, H, W, 3) uint8; the batch size has no effect."""
        blurred = [cv2.GaussianBlur(image, (0, 0), BLUR) for image in images]
        small = [cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA) for image in blurred]
        gray = np.stack(small).mean(axis=3, dtype=np.float32).reshape(len(images), -1)
        return gray - gray.mean(axis=1, keepdims=True)


class Study:
    """The trainings and the figures of their models.

    Args:
        root: folder of the set of characters.
        folder: folder of the embeddings, labels and trainings.
        clusters: K; by default C.
        schedule: settings of all trainings.
        seed: seed of the clusters and the trainings.
    """

    def __init__(self, root: Path, folder: Path, clusters: int | None, schedule: Sequence[str], seed: int):
        self.root, self.folder, self.schedule, self.seed = root, folder, schedule, seed
        self.train_records = FaceRecords(root / "train.rec")
        self.unseen_records, *self.unseen = read_unseen(root)
        self.characters = self.train_records.labels(np.arange(self.train_records.num_images))
        self.clusters = clusters or self.train_records.num_identities
        folder.mkdir(parents=True, exist_ok=True)

    def embeddings(self, name: str, records: FaceRecords) -> np.ndarray:
        """Returns the embeddings (N, E) of a set's images by a training's model, or by pixels."""
        model = cast(FaceModel, Pixels()) if name == "pixels" else FaceModel.open(self.folder / name)
        return embed(model, [records.read_image(position)[0] for position in range(records.num_images)], name)

    def cluster(self, name: str, labels: int) -> Path:
        """Clusters the training images by their embeddings; returns the file with the labels of each image."""
        path = self.folder / f"{name}-labels{labels}.npy"
        if not path.exists():
            source = self.folder / f"{name}.npy"
            if not source.exists():
                np.save(source, self.embeddings(name, self.train_records))
            words = [source, "--classes", self.clusters, "--labels", labels, "--out", path, "--seed", self.seed]
            if partial_fc(["cluster", *map(str, words)]):
                raise SystemExit(1)
        return path

    def train(self, name: str, *settings: str) -> str:
        """Trains, unless this has been done; returns the name."""
        words = [f"rec={self.root}", f"seed={self.seed}", "val_targets=[]", *self.schedule, *settings]
        train(self.folder / name, *COSFACE, *words, python=TORCH)
        return name

    def row(self, name: str, *cells: str) -> list[str]:
        """Returns a row of the table, beginning with ``cells``: the figures of a model, or of pixels."""
        clusters = np.load(self.cluster(name, 1))
        embeddings = self.embeddings(name, self.unseen_records)
        values = [mutual_information(clusters, self.characters), purity(clusters, self.characters)]
        figures = [Figure(value, np.nan) for value in (*values, neighbors_accuracy(embeddings, self.unseen[0]))]
        scores = search_unseen(embeddings, *self.unseen).values()
        figures += [search_figures(of_kind, FARS)["rank1"] for of_kind in scores]
        return [*cells, *map(percent, figures)]

    def train_labelled(self, count: int) -> str:
        """Trains with the labels of ``count`` characters, all other images without a label; returns the name."""
        path = self.folder / f"labels-of-{count}.npy"
        np.save(path, np.where(self.characters < count, self.characters, -1)[:, None])
        return self.train(f"labelled{count}", f"labels={path}", f"num_classes={count}")

    def rows(self, rounds: int, labelled: int) -> Iterator[list[str]]:
        """Yields the rows of the table. Round 0 is a network trained on ``labelled`` characters; 0: pixels."""
        first, title = "pixels", "pixels"
        if labelled:
            first, title = self.train_labelled(labelled), f"characters, {labelled} of {self.characters.max() + 1}"
        random = np.random.default_rng(self.seed).integers(self.clusters, size=len(self.characters))
        shares = [measure(random, self.characters) for measure in (mutual_information, purity)]
        yield ["random clusters", "", *(percent(Figure(share, np.nan)) for share in shares), "", "", ""]
        yield self.row(first, title, "0")
        for labels in LABELS:
            name = first
            for number in range(1, rounds + 1):
                settings = [f"labels={self.cluster(name, labels)}", f"num_classes={self.clusters}"]
                name = self.train(f"{first}-p{labels}-round{number}", *settings)
                yield self.row(name, f"clusters, P = {labels}", str(number))
        classes = f"num_classes={self.train_records.num_identities}"
        yield self.row(self.train("supervised", classes), "characters, all", "")


def mutual_information(left: np.ndarray, right: np.ndarray) -> float:
    """Returns the normalized mutual information of two labelings (N,)."""
    pairs, counts = np.unique(np.stack([left, right]), axis=1, return_counts=True)
    statistic, _ = MutualInformation().statistic(np.stack([*pairs, counts], axis=1))
    return statistic(None)[0]


def purity(clusters: np.ndarray, labels: np.ndarray) -> float:
    """Returns the fraction of items whose label (N,) is the most frequent one in their cluster (N,)."""
    pairs, counts = np.unique(np.stack([clusters, labels]), axis=1, return_counts=True)
    highest = np.zeros(int(clusters.max()) + 1, np.int64)
    np.maximum.at(highest, pairs[0], counts)
    return float(highest.sum() / len(labels))


def neighbors_accuracy(embeddings: np.ndarray, labels: np.ndarray) -> float:
    """Returns the fraction of embeddings (N, E) whose NEIGHBORS nearest others mostly have their label (N,).

    Of equally frequent labels, the nearest neighbor's counts.
    """
    right = 0
    for first in range(0, len(labels), 1024):
        cosines = embeddings[first : first + 1024] @ embeddings.T
        np.put_along_axis(cosines, np.arange(first, first + len(cosines))[:, None], -np.inf, axis=1)
        nearest = labels[np.argsort(-cosines, axis=1, kind="stable")[:, :NEIGHBORS]]
        votes = (nearest[:, :, None] == nearest[:, None]).sum(axis=2)
        chosen = np.take_along_axis(nearest, votes.argmax(axis=1)[:, None], axis=1)[:, 0]
        right += int((chosen == labels[first : first + 1024]).sum())
    return right / len(labels)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_folders(parser, "clusters")
    parser.add_argument(
        "--clusters", type=whole_number(1), help="number of clusters (default: the number of characters)"
    )
    text = "characters whose labels train a first network (default: 0, pixels are the first embeddings)"
    parser.add_argument("--labelled", type=whole_number(0), default=0, help=text)
    parser.add_argument("--rounds", type=whole_number(1), default=2, help="trainings for each P (default: 2)")
    add_seed(parser)
    parser.add_argument("--quick", action="store_true", help="run 20 updates per training")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    schedule = QUICK if args.quick else SCHEDULE
    study = Study(args.root.resolve(), args.folder.resolve(), args.clusters, schedule, args.seed)
    columns = ["NMI", "purity", f"{NEIGHBORS}-NN", *(f"rank-1, {kind}" for kind in KINDS.values())]
    print("\n".join(markdown_table(["labels", "round", *columns], list(study.rows(args.rounds, args.labelled)))))
    return 0


if __name__ == "__main__":
    start(lambda: run_module("examples.glyphs.clusters", "python -m examples.glyphs.clusters"))
