"""Computes embeddings of aligned faces with any ONNX face model.

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

from .model_file import external_locations, find_model, first_line, onnx_names, parse_model
from .normalization import NORMALIZED, PIXELS, RANGES, RAW, expected_range, first_operators
from .onnx import LARGEST, SYMBOL_ENDING, read_checkpoint, to_onnx
from .providers import wanted_providers, why_on_cpu
from .torch_files import export_torch_model, is_torch_model

Result = TypeVar("Result")
TORCH_SIZE = 112  # of the images of published state_dicts
DEPENDENT = 1e-3  # cosine distance; rounding is far below it, also in int8
LARGEST_INPUT = 1 << 28  # numbers, 1 GiB; a fixed batch of 128 faces of 832x832
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"  # option of onnxruntime
SILENT = 4  # of onnxruntime, whose errors are reported with their file
OTHER_ITEMS = "; a model of other items works with the commands that have --reader"
FLOATS = ("tensor(float)", "tensor(double)", "tensor(float16)")


class Input(NamedTuple):
    """Name; fixed batch size, None if it is dynamic; (H, W); whether the model normalizes pixels 0..255 itself."""

    name: str
    batch: int | None
    image_size: tuple[int, int]
    normalizes: bool


class FaceModel:
    """An ONNX model that maps RGB faces (N, 3, H, W) to embeddings (N, E).

    Args:
        source: Content of the ONNX file, or its path, which is required if the weights are in further files.
        name: Name for error messages.

    Attributes:
        name: As given.
        session: Session of onnxruntime.
        input: The model's input.
        batch: Its fixed batch size, None if it is dynamic.
        pixel_range: Of the pixels that it takes, one of partial_fc.export.normalization.RANGES.
        path: Of the ONNX file; None if only its content is known.
        mirrored: Whether the embedding of the mirror image is added: not if the model's metadata say that it was
            trained with ``rand_mirror=False``.

    Raises:
        ValueError: The file is not an ONNX model, or the model does not take such images.
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
        """Opens an ``.onnx`` file, a folder that holds one, an MXNet checkpoint, or a state_dict of PyTorch.

        For the latter two see `read_checkpoint` and `export_torch_model`; a state_dict takes faces of 112 x 112.

        Prints a warning if it computes on the CPU where there is a GPU, or one was asked for.

        Raises:
            ImportError: PyTorch, which a state_dict needs, is missing.
            OSError: There is no model at the path.
            ValueError: The model cannot be used.
        """
        path = os.fspath(path)
        if _is_mxnet_checkpoint(path):
            model = cls(to_onnx(*read_checkpoint(path)), path)
        elif is_torch_model(path) and not _holds_onnx(path):
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
        """Raises ValueError if the embedding of a face depends on the others of a batch, or only one face works."""
        if self.batch == 1:
            return
        noise = np.random.default_rng(0).integers(0, 256, (*self.input.image_size, 3), np.uint8)
        faces = np.stack([noise, np.sort(noise, axis=1) // 2])
        check_independent(lambda rows: self._run(faces[rows]), self.name)

    def embed(self, faces: np.ndarray, batch_size: int = 32) -> np.ndarray:
        """Returns the embeddings (N, E) float32 of faces (N, H, W, 3) uint8 RGB, computed in batches.

        Raises:
            ValueError: The faces have another size, or the model fails.
        """
        if faces.shape[1:] != (*self.input.image_size, 3):
            raise ValueError(f"{self.name} takes faces of {self.input.image_size} pixels, not {faces.shape[1:]}")
        size = self.input.batch or batch_size
        return np.concatenate([self._run(faces[start : start + size]) for start in range(0, len(faces), size)])

    def embed_with_mirrored(self, faces: np.ndarray, batch_size: int = 32) -> np.ndarray:
        """Returns (N, E): the embedding of each face plus the embedding of its mirror image."""
        return self.embed(faces, batch_size) + self.embed(faces[:, :, ::-1], batch_size)

    def pixels(self, faces: np.ndarray) -> np.ndarray:
        """Returns what the model takes (N, 3, H, W) float32 for faces (N, H, W, 3) uint8 RGB."""
        data = np.ascontiguousarray(faces.transpose(0, 3, 1, 2), np.float32)
        mean, scale = RANGES[self.pixel_range]
        return data if self.input.normalizes else (data - np.float32(mean)) * np.float32(scale)

    def _run(self, faces: np.ndarray) -> np.ndarray:
        data = self.pixels(faces)
        if self.input.batch and len(data) < self.input.batch:
            data = np.concatenate([data, np.zeros((self.input.batch - len(data), *data.shape[1:]), np.float32)])
        embeddings = run_session(self.session, {self.input.name: data}, self.name)[0]
        if embeddings.ndim != 2 or len(embeddings) != len(data):
            found = f"an array of shape {embeddings.shape} for {plural(len(data), 'face')}"
            raise ValueError(f"{self.name} returns {found}, expected embeddings (N, E)")
        return embeddings[: len(faces)]


def interruptible(work: Callable[[onnxruntime.RunOptions], Result]) -> Result:
    """Returns ``work(options)``, which a signal can interrupt: handlers of Python do not run within onnxruntime.

    After Ctrl-C or SIGTERM, a session that runs with the options ends at its next node, and nothing waits for longer.
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


def open_session(source: bytes | str) -> tuple[onnxruntime.InferenceSession, onnx.ModelProto]:
    """Opens an ONNX file, its content or path, on a GPU if onnxruntime has CUDA, else on all cores or OMP_NUM_THREADS.

    Returns:
        The session, and the model without the weights that are in further files.

    Raises:
        OSError: The file cannot be read.
        ValueError: It cannot be loaded.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = share_cores(dict(os.environ))
    options.log_severity_level = SILENT
    options.add_session_config_entry("session.load_model_format", "ONNX")  # not onnxruntime's own, which is not checked
    providers = wanted_providers()
    try:
        content = source if isinstance(source, bytes) else read_regular(source, LARGEST)
        model, weights = parse_model(content, None if isinstance(source, bytes) else source)
        for each in model.graph.input:
            sizes = [dimension.dim_value for dimension in each.type.tensor_type.shape.dim]
            # onnxruntime computes with them for minutes, without an end by Ctrl-C, before it refuses some.
            if math.prod(size for size in sizes if size > 0) > LARGEST_INPUT:
                raise ValueError(f"input of shape {sizes}, more than {LARGEST_INPUT:,} numbers")
        if weights:  # by names that lead through no link
            folder = os.path.commonpath([os.path.dirname(file) for file in weights.values()])
            for entry in external_locations(model):
                entry.value = os.path.relpath(weights[entry.value], folder)
            content = model.SerializeToString()
            options.add_session_config_entry(WEIGHTS_FOLDER, folder)
        # Not the path: its owner could put another file there, after this one has been checked.
        return interruptible(lambda _: onnxruntime.InferenceSession(content, options, providers=providers)), model
    except OSError:
        raise
    except Exception as error:  # errors of onnxruntime have no common base class
        version = f"onnxruntime {onnxruntime.__version__}"
        raise ValueError(f"{version} cannot load this as an ONNX model: {first_line(error)}") from None


def run_session(session: onnxruntime.InferenceSession, feed: Mapping[str, np.ndarray], name: str) -> list[np.ndarray]:
    """Returns the outputs for inputs by name, interruptibly. Raises ValueError, which names the model, if it fails."""
    try:
        outputs: list[np.ndarray] = interruptible(lambda options: session.run(None, dict(feed), options))
        return outputs
    except Exception as error:  # errors of onnxruntime have no common base class
        raise ValueError(f"{name} fails to run: {first_line(error)}") from None


def check_independent(embed: Callable[[list[int]], np.ndarray], name: str) -> None:
    """Checks that a model computes the embedding of an item alike beside another one and beside itself.

    Both batches have two items, because other sizes may be computed with other rounding.

    Args:
        embed: Numbers of items, 0 or 1 -> their embeddings (n, E); raises ValueError if the model fails.
        name: Of the model.

    Raises:
        ValueError: The cosine distance is DEPENDENT or more, or the model takes only one item at a time.
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


def _is_mxnet_checkpoint(path: str) -> bool:
    """Returns whether a path names MXNet files, or a folder that holds them and no ONNX file."""
    if path.endswith((SYMBOL_ENDING, ".params")):
        return True
    names = os.listdir(path) if os.path.isdir(path) else []
    return any(name.endswith(SYMBOL_ENDING) for name in names) and not _holds_onnx(path)


def _holds_onnx(path: str) -> bool:
    return os.path.isdir(path) and bool(onnx_names(path))


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
    """Returns which of RANGES a model takes, by its metadata or first operators; warns if that is unclear."""
    stated = session.get_modelmeta().custom_metadata_map.get(PIXELS)
    if stated is not None and stated not in RANGES:
        raise ValueError(f"has {PIXELS!r} {stated!r} in its metadata, expected {' or '.join(RANGES)}")
    found = stated or _expected_range(model, session.get_inputs()[0])
    if found is None:
        say(
            f"warning: {name}: its first operators do not tell which pixels it takes: it gets {NORMALIZED}; write "
            f"{' or '.join(RANGES)} into its metadata as {PIXELS!r}",
            sys.stderr,
        )
    return found or NORMALIZED


def _expected_range(model: onnx.ModelProto, data: onnxruntime.NodeArg) -> str | None:
    """Returns which of RANGES a model takes by its first operators; None if that is unclear."""
    first = first_operators(model)
    if first is None:
        return NORMALIZED
    shape = [size if isinstance(size, int) and size > 0 else 1 for size in data.shape]
    session = cache(lambda: open_session(first.SerializeToString())[0])

    def respond(value: float) -> float:
        try:
            output = run_session(session(), {data.name: np.full(shape, value, np.float32)}, "")[0]
            return float(np.mean(output, dtype=float))
        except ValueError:
            return math.nan

    return expected_range(respond, (node.name for node in first.graph.node))
