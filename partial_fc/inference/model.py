"""Computes embeddings of aligned faces with any ONNX face model.

Shapes: N faces, H, W image size, E embedding.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime

from partial_fc.distributed.env import share_cores
from partial_fc.export.normalization import MEAN, SCALE, takes_raw_pixels
from partial_fc.export.onnx import SYMBOL_ENDING, read_checkpoint, to_onnx


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
        mirrored: Whether the embedding of the mirror image is added: not if the model's metadata say that it was
            trained with ``rand_mirror=False``.

    Raises:
        ValueError: The file is not an ONNX model, or the model does not take such images.
    """

    def __init__(self, source: bytes | str, name: str):
        self.name = name
        try:
            self.session = open_session(source)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if isinstance(source, bytes):
            model = onnx.load_model_from_string(source)
        else:
            model = onnx.load(source, load_external_data=False)
        self.input = _input_of(self.session, model.graph, name)
        self.mirrored = self.session.get_modelmeta().custom_metadata_map.get("rand_mirror") != "False"

    @classmethod
    def open(cls, path: str | os.PathLike) -> FaceModel:
        """Opens an ``.onnx`` file, a folder that holds one, or an MXNet checkpoint, see `read_checkpoint`.

        Raises:
            OSError: There is no model at the path.
            ValueError: The model cannot be used.
        """
        path = os.fspath(path)
        if _is_mxnet_checkpoint(path):
            return cls(to_onnx(*read_checkpoint(path)), path)
        path = find_model(path)
        return cls(path, path)

    def embed(self, faces: np.ndarray, batch_size: int = 32) -> np.ndarray:
        """Returns the embeddings (N, E) float32 of faces (N, H, W, 3) uint8 RGB, computed in batches.

        Raises:
            ValueError: The faces have another size, or an embedding is not finite.
        """
        if faces.shape[1:] != (*self.input.image_size, 3):
            raise ValueError(f"{self.name} takes faces of {self.input.image_size} pixels, not {faces.shape[1:]}")
        size = self.input.batch or batch_size
        embeddings = np.concatenate([self._run(faces[start : start + size]) for start in range(0, len(faces), size)])
        if not np.isfinite(embeddings).all():
            raise ValueError(f"{self.name} computes embeddings that are not finite")
        return embeddings

    def embed_with_mirrored(self, faces: np.ndarray, batch_size: int = 32) -> np.ndarray:
        """Returns (N, E): the embedding of each face plus the embedding of its mirror image."""
        return self.embed(faces, batch_size) + self.embed(faces[:, :, ::-1], batch_size)

    def _run(self, faces: np.ndarray) -> np.ndarray:
        data = np.ascontiguousarray(faces.transpose(0, 3, 1, 2), np.float32)
        if not self.input.normalizes:
            data = (data - np.float32(MEAN)) * np.float32(SCALE)
        if self.input.batch and len(data) < self.input.batch:
            data = np.concatenate([data, np.zeros((self.input.batch - len(data), *data.shape[1:]), np.float32)])
        try:
            embeddings: np.ndarray = self.session.run(None, {self.input.name: data})[0][: len(faces)]
        except Exception as error:  # errors of onnxruntime have no common base class
            raise ValueError(f"{self.name} fails to run: {first_line(error)}") from None
        if embeddings.ndim != 2:
            raise ValueError(f"{self.name} returns an array of shape {embeddings.shape}, expected embeddings (N, E)")
        return embeddings


def find_model(path: str | os.PathLike) -> str:
    """Returns the path of an ONNX file: ``path``, or the last by name in that folder, as in the masked-face challenge.

    Raises FileNotFoundError if there is no such file.
    """
    path = os.fspath(path)
    if not os.path.isdir(path):
        if not os.path.exists(path):
            raise FileNotFoundError(f"{path} does not exist: give an .onnx file or a folder that holds one")
        return path
    names = sorted(name for name in os.listdir(path) if name.endswith(".onnx"))
    if not names:
        raise FileNotFoundError(f"{path} holds no .onnx file")
    return os.path.join(path, names[-1])


def first_line(error: Exception) -> str:
    """Returns the message of an onnx or onnxruntime error without the C++ stack trace that some of them add."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def open_session(source: bytes | str) -> onnxruntime.InferenceSession:
    """Opens an ONNX file, its content or path, on a GPU if onnxruntime has CUDA, else on all cores or OMP_NUM_THREADS.

    Raises:
        OSError: The file cannot be read.
        ValueError: onnxruntime cannot load it.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = share_cores(dict(os.environ))
    options.log_severity_level = 3
    available = onnxruntime.get_available_providers()
    providers = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in available]
    try:
        return onnxruntime.InferenceSession(source, options, providers=providers)
    except OSError:
        raise
    except Exception as error:  # errors of onnxruntime have no common base class
        version = f"onnxruntime {onnxruntime.__version__}"
        raise ValueError(f"{version} cannot load this as an ONNX model: {first_line(error)}") from None


def _is_mxnet_checkpoint(path: str) -> bool:
    """Returns whether a path names MXNet files, or a folder that holds them and no ONNX file."""
    if path.endswith((SYMBOL_ENDING, ".params")):
        return True
    names = os.listdir(path) if os.path.isdir(path) else []
    return any(name.endswith(SYMBOL_ENDING) for name in names) and not any(name.endswith(".onnx") for name in names)


def _input_of(session: onnxruntime.InferenceSession, graph: onnx.GraphProto, name: str) -> Input:
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if len(inputs) != 1 or len(outputs) != 1:
        raise ValueError(f"{name} has {len(inputs)} inputs and {len(outputs)} outputs, expected one of each")
    shape = inputs[0].shape
    if len(shape) != 4 or shape[1] != 3 or not all(isinstance(side, int) for side in shape[2:]):
        raise ValueError(f"{name} takes input of shape {shape}, expected faces (N, 3, H, W) with fixed H and W")
    if inputs[0].type != "tensor(float)":
        raise ValueError(f"{name} takes input of type {inputs[0].type}, expected float32")
    normalizes = takes_raw_pixels(node.name for node in graph.node)
    batch = shape[0] if isinstance(shape[0], int) and shape[0] > 0 else None
    return Input(inputs[0].name, batch, (shape[2], shape[3]), normalizes)
