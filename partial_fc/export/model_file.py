"""Finds and reads untrusted ONNX files. Their weights must be inside the folder of the model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import onnx
from onnx.external_data_helper import load_external_data_for_model

from partial_fc.utils.regular_files import open_regular, read_regular

from .onnx import LARGEST

BACKBONE = "backbone.onnx"  # written by a training
HALF_NAME, INT8_NAME = "backbone_half.onnx", "backbone_int8.onnx"
DERIVED = ("backbone_ema.onnx", HALF_NAME, INT8_NAME)


def find_model(path: str | os.PathLike) -> str:
    """Returns the path of an ONNX file: ``path`` itself, or the last file by name in the folder ``path``.

    The masked-face challenge defines this rule. In the output folder of a training, ``backbone.onnx`` takes precedence
    over its averaged and smaller variants.

    Raises:
        FileNotFoundError: there is no ONNX file.
    """
    path = os.fspath(path)
    if not os.path.isdir(path):
        if not os.path.exists(path):
            raise FileNotFoundError(f"{path} does not exist: give an .onnx file or a folder that holds one")
        return path
    names = onnx_names(path)
    if not names:
        raise FileNotFoundError(f"{path} holds no .onnx file")
    return os.path.join(path, BACKBONE if BACKBONE in names and names[-1] in DERIVED else names[-1])


def onnx_names(folder: str) -> list[str]:
    """Returns the names of the ONNX files in a folder, sorted."""
    return sorted(name for name in os.listdir(folder) if name.endswith(".onnx"))


def model_files(path: str) -> list[str]:
    """Returns the paths of an ONNX file and of the separate files with its weights.

    Raises:
        OSError, ValueError: the file cannot be read.
    """
    names = sorted({entry.value for entry in external_locations(read_model(path))})
    return [path, *(os.path.join(os.path.dirname(path), name) for name in names)]


def model_content(path: str) -> bytes:
    """Returns the content of an ONNX file, including all weights in separate files.

    Raises:
        OSError, ValueError: a file cannot be read, or the content exceeds the limit of an ONNX file.
    """
    files = model_files(path)
    if sum(map(os.path.getsize, files)) >= LARGEST:
        raise ValueError(f"{path}: with its weights it exceeds the 2 GiB of an ONNX file")
    model = read_model(path)
    with _named_in_errors(path):
        load_external_data_for_model(model, os.path.dirname(path))
    content: bytes = model.SerializeToString()
    return content


def external_locations(message: Any) -> Iterator[onnx.StringStringEntryProto]:
    """Yields the entries of a protobuf message, such as a model or a subgraph, that name files with its tensors."""
    if isinstance(message, onnx.TensorProto):
        external = message.data_location == onnx.TensorProto.EXTERNAL
        yield from (entry for entry in message.external_data if external and entry.key == "location")
        return
    for field, value in message.ListFields():
        if field.message_type:
            for each in [value] if hasattr(value, "ListFields") else value:
                yield from external_locations(each)


def read_model(path: str) -> onnx.ModelProto:
    """Parses an ONNX file without weights in separate files; see parse_model. Raises OSError or ValueError."""
    with _named_in_errors(path):
        return parse_model(read_regular(path, LARGEST), path)[0]


def parse_model(content: bytes, path: str | None) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Parses an ONNX file's content, but not its weights in separate files, and checks where these files are.

    All models are opened here, because some releases of onnx and onnxruntime read weights from any path in a model.

    Args:
        content: content of the file.
        path: path of the file; None for a model that must not have separate files.

    Returns:
        The model, and the resolved paths of the separate files by their names in the model.

    Raises:
        ValueError: a separate file is not a regular file inside the folder of the model.
        Exception: other errors of onnx, which have no common base class.
    """
    model = onnx.load_model_from_string(content)
    weights = {name: _in_folder(name, path) for name in sorted({entry.value for entry in external_locations(model)})}
    for name, file in weights.items():
        if not file:
            raise ValueError(f"its weights {name!r} are not in a regular file inside the folder of the model")
    return model, weights


def _in_folder(name: str, path: str | None) -> str:
    """Returns the resolved path of a separate file if it is a regular file inside the model's folder, else "".

    Hugging Face's cache has links to both files. So the folder of the model's link target is allowed, too.
    """
    if path is None or name.startswith("*"):  # onnxruntime reads "*/_ORT_MEM_ADDR_/*" as an address in memory
        return ""
    weights = os.path.realpath(os.path.join(os.path.dirname(path), name))
    for folder in {os.path.dirname(path), os.path.dirname(os.path.realpath(path))}:
        with suppress(OSError, ValueError), open_regular(weights, folder):
            return weights
    return ""


@contextmanager
def _named_in_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # errors of onnx have no common base class
        raise ValueError(f"{path} cannot be loaded as an ONNX model: {first_line(error)}") from None


def first_line(error: Exception) -> str:
    """Returns the first line of an error of onnx or onnxruntime. Some have a C++ stack trace below it."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
