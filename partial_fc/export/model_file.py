"""Finds and reads ONNX files, which may come from strangers: their weights must lie inside the folder of the model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import onnx
from onnx.external_data_helper import load_external_data_for_model

from partial_fc.utils.regular_files import open_regular, read_regular

from .onnx import LARGEST

BACKBONE = "backbone.onnx"  # of a training
HALF_NAME, INT8_NAME = "backbone_half.onnx", "backbone_int8.onnx"
DERIVED = ("backbone_ema.onnx", HALF_NAME, INT8_NAME)


def find_model(path: str | os.PathLike) -> str:
    """Returns the path of an ONNX file: ``path``, or the last by name in that folder, as in the masked-face challenge.

    In the folder of a training that saved averaged weights, or of smaller files, it is ``backbone.onnx``, not these.

    Raises FileNotFoundError if there is no such file.
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
    """Returns the paths of an ONNX file and of the files beside it that hold its weights.

    Raises:
        OSError, ValueError: The file cannot be read.
    """
    names = sorted({entry.value for entry in external_locations(_read(path))})
    return [path, *(os.path.join(os.path.dirname(path), name) for name in names)]


def model_content(path: str) -> bytes:
    """Returns the content of an ONNX file with all of its weights.

    Raises:
        OSError, ValueError: A file cannot be read, or together they exceed the limit of one file.
    """
    files = model_files(path)
    if sum(map(os.path.getsize, files)) >= LARGEST:
        raise ValueError(f"{path}: with its weights it exceeds the 2 GiB of an ONNX file")
    model = _read(path)
    try:
        load_external_data_for_model(model, os.path.dirname(path))
    except OSError:
        raise
    except Exception as error:  # errors of onnx have no common base class
        raise ValueError(f"{path} cannot be loaded as an ONNX model: {first_line(error)}") from None
    content: bytes = model.SerializeToString()
    return content


def external_locations(message: Any) -> Iterator[onnx.StringStringEntryProto]:
    """Yields the entries of a message, such as a model or a subgraph, that name the files in which its tensors are."""
    if isinstance(message, onnx.TensorProto):
        external = message.data_location == onnx.TensorProto.EXTERNAL
        yield from (entry for entry in message.external_data if external and entry.key == "location")
        return
    for field, value in message.ListFields():
        if field.message_type:
            for each in [value] if hasattr(value, "ListFields") else value:
                yield from external_locations(each)


def read_model(path: str) -> onnx.ModelProto:
    """Parses an ONNX file without the weights that are in further files; see parse_model."""
    return parse_model(read_regular(path, LARGEST), path)[0]


def parse_model(content: bytes, path: str | None) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Parses the content of an ONNX file, without the weights that are in further files beside its path, if it has one.

    All models are opened here: onnx and onnxruntime, depending on their releases, read weights wherever a model says.

    Returns:
        The model, and the paths of the further files, in which no links are left, by their names in the model.

    Raises:
        OSError: The file cannot be read.
        ValueError: Weights are in a file that is not a regular one inside the folder of the model.
        Exception: Other errors of onnx, which have no common base class.
    """
    model = onnx.load_model_from_string(content)
    weights = {name: _in_folder(name, path) for name in sorted({entry.value for entry in external_locations(model)})}
    for name, file in weights.items():
        if not file:
            raise ValueError(f"its weights {name!r} are not in a regular file inside the folder of the model")
    return model, weights


def _in_folder(name: str, path: str | None) -> str:
    """Returns the path of a file of weights of a model, if it is a regular one inside its folder; else "".

    That of a model that is a link, as in the cache of Hugging Face, may be where the link leads to.
    """
    if path is None or name.startswith("*"):  # onnxruntime takes "*/_ORT_MEM_ADDR_/*" for an address in memory
        return ""
    weights = os.path.realpath(os.path.join(os.path.dirname(path), name))
    for folder in {os.path.dirname(path), os.path.dirname(os.path.realpath(path))}:
        with suppress(OSError, ValueError), open_regular(weights, folder):
            return weights
    return ""


def _read(path: str) -> onnx.ModelProto:
    try:
        return read_model(path)
    except OSError:
        raise
    except Exception as error:  # errors of onnx have no common base class
        raise ValueError(f"{path} cannot be loaded as an ONNX model: {first_line(error)}") from None


def first_line(error: Exception) -> str:
    """Returns the message of an onnx or onnxruntime error without the C++ stack trace that some of them add."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
