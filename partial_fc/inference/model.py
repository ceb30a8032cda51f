"""From aligned faces to embeddings, by any ONNX face model.

Shapes: N faces, H, W image size, E embedding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime

from partial_fc.distributed import env as launch
from partial_fc.export.normalization import MEAN, SCALE, takes_raw_pixels
from partial_fc.export.onnx import SYMBOL_ENDING, read_checkpoint, to_onnx


class Input(NamedTuple):
    """What a model takes: ``batch`` is None where it takes any number of faces, ``normalizes``: raw pixels 0 .. 255."""

    name: str
    batch: int | None
    image_size: tuple[int, int]
    normalizes: bool


class FaceModel:
    """An ONNX model that takes faces (N, 3, H, W), RGB, and gives embeddings (N, E).

    Args:
        source: the ONNX file's bytes, or its path, which it needs where its weights are in further files.
        name: for messages.
        threads: of onnxruntime; 0: as many as there are cores, or OMP_NUM_THREADS.

    Attributes:
        name: as given.
        input: see Input.

    Raises:
        ValueError: it is no model that takes such images; says what it is.
    """

    def __init__(self, source: bytes | str, name: str, threads: int = 0):
        self.name = name
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or launch.share_cores(dict(os.environ))
        options.log_severity_level = 3
        try:
            graph = _graph_of(source)
            self.session = onnxruntime.InferenceSession(source, options, providers=best_providers())
        except OSError:
            raise
        except Exception as error:  # onnxruntime's and protobuf's own, without a common class
            raise ValueError(
                f"{name} is no ONNX model that onnxruntime {onnxruntime.__version__} loads: {first_line(error)}"
            ) from None
        self.input = _input_of(self.session, graph, name)

    @classmethod
    def open(cls, path: str | os.PathLike) -> FaceModel:
        """The model at a path: an ``.onnx`` file or the folder of one; or what MXNet has saved, see read_checkpoint.

        Raises:
            OSError, ValueError: there is none, or it cannot be used.
        """
        path = os.fspath(path)
        if _is_of_mxnet(path):
            return cls(to_onnx(*read_checkpoint(path)), path)
        path = find_model(path)
        return cls(path, path)

    def embed(self, faces: np.ndarray, batch_size: int = 32) -> np.ndarray:
        """(N, E) float32 of faces (N, H, W, 3) uint8 RGB, not normalised, ``batch_size`` at a time.

        Raises:
            ValueError: they have another size, or an embedding is not finite.
        """
        if faces.shape[1:] != (*self.input.image_size, 3):
            raise ValueError(f"{self.name} takes faces of {self.input.image_size} pixels, not {faces.shape[1:]}")
        parts = [self._run(part) for part in _parts(faces, self.input.batch or batch_size)]
        embeddings = np.concatenate(parts)
        if not np.isfinite(embeddings).all():
            raise ValueError(f"{self.name} gives embeddings that are not finite")
        return embeddings

    def embed_with_mirrored(self, faces: np.ndarray, batch_size: int = 32) -> np.ndarray:
        """(N, E): the embedding of each face plus that of its mirror image."""
        return self.embed(faces, batch_size) + self.embed(faces[:, :, ::-1], batch_size)

    def _run(self, faces: np.ndarray) -> np.ndarray:
        data = np.ascontiguousarray(faces.transpose(0, 3, 1, 2), np.float32)
        if not self.input.normalizes:
            data = (data - np.float32(MEAN)) * np.float32(SCALE)
        if self.input.batch and len(data) < self.input.batch:
            data = np.concatenate([data, np.zeros((self.input.batch - len(data), *data.shape[1:]), np.float32)])
        try:
            embeddings: np.ndarray = self.session.run(None, {self.input.name: data})[0][: len(faces)]
        except Exception as error:  # onnxruntime's own, without a common class
            raise ValueError(f"{self.name} does not run: {first_line(error)}") from None
        if embeddings.ndim != 2:
            raise ValueError(f"{self.name} gives an array of shape {embeddings.shape}, not embeddings (N, E)")
        return embeddings


def find_model(path: str | os.PathLike) -> str:
    """The ONNX file that a path names: itself, or the last by name of a folder, as the masked-face challenge takes it.

    Raises:
        OSError: there is none.
    """
    path = os.fspath(path)
    if not os.path.isdir(path):
        if not os.path.exists(path):
            raise FileNotFoundError(f"{path} is not there: name an .onnx file, or a folder that holds one")
        return path
    names = sorted(name for name in os.listdir(path) if name.endswith(".onnx"))
    if not names:
        raise FileNotFoundError(f"{path} holds no .onnx file")
    return os.path.join(path, names[-1])


def first_line(error: Exception) -> str:
    """What an error of onnx or onnxruntime says, without the stack of C++ that some add."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def best_providers() -> list[str]:
    """CUDA where it is there, then the CPU; onnxruntime lists others first, which are for other machines."""
    known = onnxruntime.get_available_providers()
    return [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in known]


def _graph_of(source: bytes | str) -> onnx.GraphProto:
    if isinstance(source, bytes):
        return onnx.load_model_from_string(source).graph
    return onnx.load(source, load_external_data=False).graph


def _is_of_mxnet(path: str) -> bool:
    """Whether it names files of MXNet, or a folder of them without an ONNX file, which would say the same."""
    if path.endswith((SYMBOL_ENDING, ".params")):
        return True
    names = os.listdir(path) if os.path.isdir(path) else []
    return any(name.endswith(SYMBOL_ENDING) for name in names) and not any(name.endswith(".onnx") for name in names)


def _input_of(session: onnxruntime.InferenceSession, graph: onnx.GraphProto, name: str) -> Input:
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if len(inputs) != 1 or len(outputs) != 1:
        raise ValueError(f"{name} has {len(inputs)} inputs and {len(outputs)} outputs: a face model has one of each")
    shape = inputs[0].shape
    if len(shape) != 4 or shape[1] != 3 or not all(isinstance(side, int) for side in shape[2:]):
        raise ValueError(f"{name} takes {shape}, not faces (N, 3, H, W) of a known size")
    if inputs[0].type != "tensor(float)":
        raise ValueError(f"{name} takes {inputs[0].type}, not float32 pixels")
    normalizes = takes_raw_pixels(node.name for node in graph.node)
    batch = shape[0] if isinstance(shape[0], int) and shape[0] > 0 else None
    return Input(inputs[0].name, batch, (shape[2], shape[3]), normalizes)


def _parts(faces: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (faces[start : start + size] for start in range(0, len(faces), size))
