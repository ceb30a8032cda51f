"""Computes embeddings of any items with the ONNX model of a training.

Shapes: N items, E embedding.
"""

import os
from collections.abc import Mapping
from operator import itemgetter

import numpy as np

from partial_fc.data.batch import Inputs, map_inputs, num_items
from partial_fc.utils.text import plural

from .model import check_independent, open_session, run_session
from .model_file import find_model


class ItemModel:
    """An ONNX model that maps one or more inputs to embeddings (N, E), with a dynamic batch size.

    Args:
        source: content or path of the ONNX file.
        name: name for error messages.

    Attributes:
        name: name for error messages.
        session: session of onnxruntime.
        input_names: names of the model's inputs.
        path: path of the ONNX file; None if the content was given.

    Raises:
        ValueError: the file is not an ONNX model, or it has a fixed batch size or several outputs.
    """

    batch = None  # the batch size is dynamic, see FaceModel

    def __init__(self, source: bytes | str, name: str):
        self.name = name
        self.path = source if isinstance(source, str) else None
        self._checked = False
        self.session, _ = open_session(source, name)
        shapes = {each.name: each.shape for each in self.session.get_inputs()}
        self.input_names = list(shapes)
        outputs = len(self.session.get_outputs())
        if outputs != 1 or any(not shape or isinstance(shape[0], int) for shape in shapes.values()):
            raise ValueError(
                f"{name}: takes input of shapes {shapes} and has {outputs} outputs, expected a dynamic batch size and "
                "one output"
            )

    @classmethod
    def open(cls, path: str | os.PathLike) -> "ItemModel":
        """Opens an ``.onnx`` file or a folder with one; raises OSError or ValueError."""
        path = find_model(path)
        return cls(path, path)

    def embed(self, inputs: Inputs, batch_size: int = 32) -> np.ndarray:
        """Returns the embeddings (N, E) float32 of N items, computed in batches.

        Args:
            inputs: arrays by the names of the inputs, or one array for a model with one input.
            batch_size: items at a time.

        Raises:
            ValueError: the model has different inputs, or fails.
        """
        count = num_items(inputs)
        if count > 1 and not self._checked:
            ends = np.array([0, count - 1])
            check_independent(lambda rows: self._run(map_inputs(itemgetter(ends[rows]), inputs)), self.name)
            self._checked = True
        batches = [slice(start, start + batch_size) for start in range(0, count, batch_size)]
        return np.concatenate([self._run(map_inputs(itemgetter(batch), inputs)) for batch in batches])

    def _run(self, inputs: Inputs) -> np.ndarray:
        feed = inputs if isinstance(inputs, Mapping) else {self.input_names[0]: inputs}
        embeddings = run_session(self.session, feed, f"{self.name} takes {', '.join(self.input_names)}, and")[0]
        if embeddings.ndim != 2 or len(embeddings) != num_items(inputs):
            shape = f"an array of shape {embeddings.shape} for {plural(num_items(inputs), 'item')}"
            raise ValueError(f"{self.name} returns {shape}, expected embeddings (N, E)")
        return embeddings
