"""Metrics of labeled items of any inputs, such as recall of a held-out set; docs/evaluate.md lists the metrics.

Shapes: N items.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from partial_fc.distributed.collectives import Collectives
from partial_fc.evaluation.items import EmbeddedItems, Workers
from partial_fc.evaluation.metrics import build_metrics, evaluate
from partial_fc.training.embedder import Embedder, Read
from partial_fc.utils.distances import normalized

from .evaluation import Evaluation


class LabeledItems(Evaluation):
    """Measures metrics of items that every rank can read.

    Args:
        labels: (N,) integers, see EmbeddedItems.
        read: (start, stop) in 0 .. N -> items.
        metrics: keys of partial_fc.evaluation.metrics.METRICS, or your own as ``package.module:name``. The first figure
            of the first one determines the best verification.
        options: arguments of the metrics, such as ``{"ranks": (1, 10)}``.
        columns: further columns of EmbeddedItems: ``is_query``, ``cameras``, ``pairs``.

    Raises:
        ValueError: A metric or an option is unknown.
    """

    def __init__(
        self,
        labels: np.ndarray,
        read: Read,
        metrics: Sequence[str] = ("recall", "map"),
        options: Mapping[str, Any] | None = None,
        **columns: Any,
    ):
        self.labels, self.read, self.columns = np.asarray(labels), read, columns
        self.metrics = build_metrics(metrics, options or {})
        self.figures = self.shares = [name for metric in self.metrics for name in metric.figures]
        self.higher_is_better = self.metrics[0].higher_is_better

    def prepare(self, name: str, collectives: Collectives) -> None:
        """See Evaluation. Collectives: all-gather ``status.check.<name>``."""
        without_items = np.zeros((len(self.labels), 1), np.float32)
        collectives.run_on_all_ranks(f"check.{name}", lambda: EmbeddedItems(without_items, self.labels, **self.columns))

    def measure(self, embedder: Embedder) -> Mapping[str, float]:
        """See Evaluation.

        Collectives: those of embed_all; for each pass over the embeddings, all-gathers ``status.metrics.<name>`` and
        ``metrics.<name>``.
        """
        name, collectives = f"metrics.{embedder.name}", embedder.collectives
        embeddings = normalized(embedder.embed_all(len(self.labels), self.read))

        def together(share: Callable[[], Any]) -> list[Any]:
            return collectives.gather_object(name, collectives.run_on_all_ranks(name, share))

        workers = Workers(collectives.rank, collectives.size, together, lambda count: collectives.report_progress())
        items = EmbeddedItems(embeddings, self.labels, **self.columns)
        return {figure: found.value for figure, found in evaluate(items, self.metrics, workers, draws=0).items()}
