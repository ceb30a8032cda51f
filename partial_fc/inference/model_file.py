"""Finds and reads ONNX files, which may come from strangers: their weights must lie inside the folder of the model."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import onnx
from onnx.external_data_helper import load_external_data_for_model

from partial_fc.export.onnx import LARGEST
from partial_fc.utils.regular_files import open_regular, read_regular

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
    names = sorted(_external_data_files(_read(path)))
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


def _external_data_files(message: Any) -> set[str]:
    """Returns the names of the files in which tensors of a message, such as a model or a subgraph, are."""
    if isinstance(message, onnx.TensorProto):
        external = message.data_location == onnx.TensorProto.EXTERNAL
        return {entry.value for entry in message.external_data if external and entry.key == "location"}
    names: set[str] = set()
    for field, value in message.ListFields():
        if field.message_type:
            names = names.union(*map(_external_data_files, [value] if hasattr(value, "ListFields") else value))
    return names


def read_model(source: bytes | str) -> onnx.ModelProto:
    """Parses an ONNX file, its content or path, without the weights that are in further files.

    All models are opened here: onnx and onnxruntime, depending on their releases, read weights wherever a model says.

    Raises:
        OSError: The file cannot be read.
        ValueError: Weights are in a file that is not a regular one inside the folder of the model.
        Exception: Other errors of onnx, which have no common base class.
    """
    model = onnx.load_model_from_string(source if isinstance(source, bytes) else read_regular(source, LARGEST))
    for name in sorted(_external_data_files(model)):
        if isinstance(source, bytes) or not _is_in_folder(name, source):
            raise ValueError(f"its weights {name!r} are not in a regular file inside the folder of the model")
    return model


def _is_in_folder(name: str, path: str) -> bool:
    """Returns whether the file of weights of a model is a regular one inside its folder.

    That of a model that is a link, as in the cache of Hugging Face, may be where the link leads to.
    """
    if name.startswith("*"):  # onnxruntime takes "*/_ORT_MEM_ADDR_/*" for an address in memory
        return False
    weights = os.path.realpath(os.path.join(os.path.dirname(path), name))
    for folder in {os.path.dirname(path), os.path.dirname(os.path.realpath(path))}:
        with suppress(OSError, ValueError), open_regular(weights, folder):
            return True
    return False


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
