"""Computes embeddings of aligned faces with an ONNX face model.

Shapes: N faces, H, W image size, E embedding.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
import onnx
import onnxruntime

from partial_fc.distributed.env import share_cores
from partial_fc.utils.distances import squared_distances
from partial_fc.utils.regular_files import read_regular
from partial_fc.utils.text import plural, say

from .model_file import external_locations, find_model, first_line, parse_model
from .normalization import NORMALIZED, PIXELS, RANGES, RAW, expected_range, first_operators
from .onnx import LARGEST, SYMBOL_ENDING, read_checkpoint, to_onnx
from .providers import wanted_providers, why_on_cpu
from .torch_files import ENDINGS, export_torch_model

Result = TypeVar("Result")
TORCH_SIZE = 112  # image size of published state_dicts
DEPENDENT = 1e-3  # limit of the cosine distance; rounding errors are far smaller, even in int8
LARGEST_INPUT = 1 << 28  # numbers (1 GiB), enough for a fixed batch of 128 faces of 832x832
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"  # option of onnxruntime
SILENT = 4  # onnxruntime's log level without errors, which are raised and reported with the file's name
OTHER_ITEMS = "; a model of other items works with the commands that have --reader"
FLOATS = ("tensor(float)", "tensor(double)", "tensor(float16)")


class Input(NamedTuple):
    """The input of a face model."""

    name: str
    batch: int | None  # fixed batch size; None if it is dynamic
    image_size: tuple[int, int]  # (H, W)
    normalizes: bool  # whether the model takes pixels 0..255 and normalizes them itself


class FaceModel:
    """An ONNX model that maps RGB faces (N, 3, H, W) to embeddings (N, E).

    Args:
        source: content or path of the ONNX file. The path is required if the weights are in separate files.
        name: name for error messages.

    Attributes:
        name: name for error messages.
        session: session of onnxruntime.
        input: the model's input.
        batch: its fixed batch size; None if it is dynamic.
        pixel_range: the range of the pixels that the model takes, a key of normalization.RANGES.
        path: path of the ONNX file; None if the content was given.
        mirrored: whether to add the embedding of the mirror image. False if the metadata contain
            ``rand_mirror=False``, because the model was not trained with mirror images.

    Raises:
        ValueError: the file is not an ONNX model, or the model does not take faces.
    """

    def __init__(self, source: bytes | str, name: str):
        self.name = name
        self.path = source if isinstance(source, str) else None
        try:
            self.session, model = open_session(source)
            self.input = _input_of(self.session)
            self.pixel_range = _pixel_range(self.session, model, name)
            self.input = self.input._replace(normalizes=self.pixel_range == RAW)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        self.batch = self.input.batch
        self.mirrored = self.session.get_modelmeta().custom_metadata_map.get("rand_mirror") != "False"

    @classmethod
    def open(cls, path: str | os.PathLike) -> FaceModel:
        """Opens an ``.onnx`` file, a folder with one, an MXNet checkpoint, or a PyTorch state_dict of a 112x112 model.

        Prints a warning if the model runs on the CPU although there is a GPU, or the user has selected one.

        Raises:
            ImportError: the path is a state_dict and PyTorch is not installed.
            OSError: there is no model at the path.
            ValueError: the model cannot be used.
        """
        path = os.fspath(path)
        names = os.listdir(path) if os.path.isdir(path) else [path]
        if os.path.isdir(path) and any(name.endswith(".onnx") for name in names):
            names = []  # other models in this folder do not count
        if any(name.endswith(SYMBOL_ENDING) for name in names) or path.endswith(".params"):
            model = cls(to_onnx(*read_checkpoint(path)), path)
        elif any(name.endswith(ENDINGS) for name in names):
            model = cls(export_torch_model(path, TORCH_SIZE, np.empty((0, TORCH_SIZE, TORCH_SIZE, 3), np.uint8)), path)
        else:
            path = find_model(path)
            model = cls(path, path)
        reason = why_on_cpu(os.environ, onnxruntime.get_available_providers(), model.session.get_providers())
        if reason:
            say(f"warning: {reason}", sys.stderr)
        model.check_independent()
        return model

    def check_independent(self) -> None:
        """Raises ValueError if a face's embedding depends on the other faces of a batch, or if batches fail."""
        if self.batch == 1:
            return
        noise = np.random.default_rng(0).integers(0, 256, (*self.input.image_size, 3), np.uint8)
        faces = np.stack([noise, np.sort(noise, axis=1) // 2])
        check_independent(lambda rows: self._run(faces[rows]), self.name)

    def embed(self, faces: np.ndarray, batch_size: int = 32) -> np.ndarray:
        """Returns the embeddings (N, E) float32 of faces (N, H, W, 3) uint8 RGB, computed in batches.

        Raises:
            ValueError: the faces are of a different size, or the model fails.
        """
        if faces.shape[1:] != (*self.input.image_size, 3):
            raise ValueError(f"{self.name} takes faces of {self.input.image_size} pixels, not {faces.shape[1:]}")
        size = self.input.batch or batch_size
        return np.concatenate([self._run(faces[start : start + size]) for start in range(0, len(faces), size)])

    def embed_with_mirrored(self, faces: np.ndarray, batch_size: int = 32) -> np.ndarray:
        """Returns (N, E): the embedding of each face plus the embedding of its mirror image."""
        return self.embed(faces, batch_size) + self.embed(faces[:, :, ::-1], batch_size)

    def pixels(self, faces: np.ndarray) -> np.ndarray:
        """Returns the model's input (N, 3, H, W) float32 for faces (N, H, W, 3) uint8 RGB."""
        data = np.ascontiguousarray(faces.transpose(0, 3, 1, 2), np.float32)
        mean, scale = RANGES[self.pixel_range]
        return data if self.input.normalizes else (data - np.float32(mean)) * np.float32(scale)

    def _run(self, faces: np.ndarray) -> np.ndarray:
        data = self.pixels(faces)
        if self.input.batch and len(data) < self.input.batch:
            data = np.concatenate([data, np.zeros((self.input.batch - len(data), *data.shape[1:]), np.float32)])
        embeddings = run_session(self.session, {self.input.name: data}, self.name)[0]
        if embeddings.ndim != 2 or len(embeddings) != len(data):
            shape = f"an array of shape {embeddings.shape} for {plural(len(data), 'face')}"
            raise ValueError(f"{self.name} returns {shape}, expected embeddings (N, E)")
        return embeddings[: len(faces)]


def interruptible(work: Callable[[onnxruntime.RunOptions], Result]) -> Result:
    """Returns ``work(options)``, computed in a thread, because Python handles no signals while onnxruntime computes.

    After Ctrl-C or SIGTERM, a session that runs with these options ends at its next node. This function waits a few
    seconds for it at most.
    """
    options, future = onnxruntime.RunOptions(), Future[Result]()
    options.log_severity_level = SILENT

    def call() -> None:
        try:
            future.set_result(work(options))
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    try:
        return future.result()
    except KeyboardInterrupt:
        options.terminate = True
        thread.join(5)
        raise


def open_session(source: bytes | str, name: str = "") -> tuple[onnxruntime.InferenceSession, onnx.ModelProto]:
    """Opens an ONNX file, on a GPU if onnxruntime has CUDA, otherwise on OMP_NUM_THREADS or all cores.

    Args:
        source: content or path of the file.
        name: name of the model for errors of loading.

    Returns:
        The session, and the model without weights in separate files.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file cannot be loaded.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = share_cores(dict(os.environ))
    options.log_severity_level = SILENT
    options.add_session_config_entry("session.load_model_format", "ONNX")  # onnxruntime's own format is not checked
    providers = wanted_providers()
    try:
        content = source if isinstance(source, bytes) else read_regular(source, LARGEST)
        model, weights = parse_model(content, None if isinstance(source, bytes) else source)
        for each in model.graph.input:
            sizes = [dimension.dim_value for dimension in each.type.tensor_type.shape.dim]
            # With hostile sizes onnxruntime computes for minutes, without reacting to Ctrl-C, before it refuses them.
            if math.prod(size for size in sizes if size > 0) > LARGEST_INPUT:
                raise ValueError(f"input of shape {sizes}, more than {LARGEST_INPUT:,} numbers")
        if weights:  # replace their names by paths without links
            folder = os.path.commonpath([os.path.dirname(file) for file in weights.values()])
            for entry in external_locations(model):
                entry.value = os.path.relpath(weights[entry.value], folder)
            content = model.SerializeToString()
            options.add_session_config_entry(WEIGHTS_FOLDER, folder)
        # From the content: the owner of the path could replace the file after this check.
        return interruptible(lambda _: onnxruntime.InferenceSession(content, options, providers=providers)), model
    except OSError:
        raise
    except Exception as error:  # errors of onnxruntime have no common base class
        where = f"{name}: onnxruntime" if name else "onnxruntime"
        problem = f"cannot load this as an ONNX model: {first_line(error)}"
        raise ValueError(f"{where} {onnxruntime.__version__} {problem}") from None


def run_session(session: onnxruntime.InferenceSession, feed: Mapping[str, np.ndarray], name: str) -> list[np.ndarray]:
    """Returns the outputs of a session; Ctrl-C interrupts it. Raises ValueError with the model's name if it fails."""
    try:
        outputs: list[np.ndarray] = interruptible(lambda options: session.run(None, dict(feed), options))
        return outputs
    except Exception as error:  # errors of onnxruntime have no common base class
        raise ValueError(f"{name} fails to run: {first_line(error)}") from None


def check_independent(embed: Callable[[list[int]], np.ndarray], name: str) -> None:
    """Checks that an item's embedding does not depend on the other items of its batch.

    Computes it in a batch with another item, and in a batch with itself. Both batches are of the same size, because
    rounding may depend on the size.

    Args:
        embed: maps a list of two or fewer indices, each 0 or 1, to the embeddings of these items; raises ValueError if
            the model fails.
        name: name of the model.

    Raises:
        ValueError: the cosine distance is DEPENDENT or more, or the model takes only one item at a time.
    """
    try:
        distance = float(squared_distances(embed([0, 1])[1:], embed([1, 1])[1:])[0]) / 2
    except ValueError:
        embed([1])
        raise ValueError(
            f"{name} fails on two items at a time, but not on one: export it with a dynamic batch size"
        ) from None
    if distance >= DEPENDENT:
        raise ValueError(
            f"{name}: its embeddings depend on the other items of a batch (by a cosine distance of {distance:.2g}): "
            "export it in eval mode, or with static quantization"
        )


def _input_of(session: onnxruntime.InferenceSession) -> Input:
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if len(inputs) != 1 or len(outputs) != 1:
        raise ValueError(f"has {len(inputs)} inputs and {len(outputs)} outputs, expected one of each{OTHER_ITEMS}")
    shape = inputs[0].shape
    if len(shape) != 4 or shape[1] != 3 or not all(isinstance(side, int) and side > 0 for side in shape[2:]):
        raise ValueError(f"takes input of shape {shape}, expected faces (N, 3, H, W) with fixed H and W{OTHER_ITEMS}")
    if inputs[0].type != "tensor(float)" or outputs[0].type not in FLOATS:
        raise ValueError(f"maps {inputs[0].type} to {outputs[0].type}, expected float32 to embeddings of floats")
    batch = shape[0] if isinstance(shape[0], int) and shape[0] > 0 else None
    return Input(inputs[0].name, batch, (shape[2], shape[3]), False)


def _pixel_range(session: onnxruntime.InferenceSession, model: onnx.ModelProto, name: str) -> str:
    """Returns the key of RANGES that a model takes, by its metadata or first operators; warns if it is unclear."""
    stated = session.get_modelmeta().custom_metadata_map.get(PIXELS)
    if stated is not None and stated not in RANGES:
        raise ValueError(f"has {PIXELS!r} {stated!r} in its metadata, expected {' or '.join(RANGES)}")
    first = None if stated else first_operators(model)
    if first is None:
        return stated or NORMALIZED
    data = session.get_inputs()[0]
    shape = [size if isinstance(size, int) and size > 0 else 1 for size in data.shape]
    first_session = cache(lambda: open_session(first.SerializeToString())[0])

    def respond(value: float) -> float:
        try:
            output = run_session(first_session(), {data.name: np.full(shape, value, np.float32)}, "")[0]
            return float(np.mean(output, dtype=float))
        except ValueError:
            return math.nan

    expected = expected_range(respond, (node.name for node in first.graph.node))
    if expected is None:
        say(
            f"warning: the first operators of {name} do not show which pixel range it takes; {NORMALIZED} is assumed. "
            f"Otherwise, write the range ({' or '.join(RANGES)}) into its metadata as {PIXELS!r}",
            sys.stderr,
        )
    return expected or NORMALIZED
