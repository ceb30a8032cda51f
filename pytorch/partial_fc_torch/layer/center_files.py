"""Files of tensors, and those with the rows of one rank: bare tensors, as arcface_torch writes them.

Shapes: L classes of this rank.
"""

import zipfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from partial_fc.utils.atomic_io import replace_file_by
from partial_fc.utils.regular_files import open_regular

from ..errors import error_message
from .tensor_headers import StandIn, UnsupportedTensorError, check_header


def center_file(field: str) -> str:
    """Returns the name of the files of centers, "weight", or of a state of their optimizer, with {} for the rank."""
    return f"rank_{{}}_softmax_{field}.pt"


def save_rows(path: str, rows: torch.Tensor, alive: Callable[[], None]) -> None:
    """Writes rows from any device and calls ``alive`` every few MB. An OSError leaves an older file as it is."""
    try:
        replace_file_by(path, partial(torch.save, rows.detach().cpu()), alive)
    except RuntimeError as error:  # when PyTorch ends a file of which a part could not be written
        raise OSError(f"cannot write {path}: {error.__context__ or error}") from error


def load_rows(path: str, shape: torch.Size) -> torch.Tensor:
    """Maps a file with a tensor of this shape into memory; others are an OSError or a ValueError."""
    try:
        rows = load_tensors(path)
    except FileNotFoundError as error:
        raise OSError(
            f"no centers at {path}: this rank has not saved there; check prefix and the number of ranks"
        ) from error
    found = f"a tensor of shape {tuple(rows.shape)}" if isinstance(rows, torch.Tensor) else type(rows).__name__
    if not isinstance(rows, torch.Tensor) or rows.shape != shape:
        raise ValueError(
            f"{path} holds {found}, expected a tensor of shape {tuple(shape)}: load centers that the same number of "
            "ranks saved for the same classes and embedding_size"
        )
    return rows


def load_tensors(path: str) -> Any:
    """Returns the content of a file of torch.save, mapped into memory where the file allows it.

    In place of objects of other classes than tensors and plain values it has a StandIn: their code is not run.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: it is damaged, or calls functions.
    """
    with open_regular(path) as file:
        # By the descriptor: PyTorch opens what was checked, not what is under the name by then.
        return _load(path, f"/proc/self/fd/{file.fileno()}")


def _load(path: str, opened: str) -> Any:
    try:
        stand_ins = [(StandIn, name) for name in check_header(opened)]
        # Files of PyTorch before 1.6 cannot be mapped.
        with torch.serialization.safe_globals(stand_ins):
            return torch.load(opened, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(opened))
    except OSError as error:
        raise OSError(error.errno, f"cannot read {path}: {error.strerror or error}") from None
    except UnsupportedTensorError as error:
        raise ValueError(
            f"{path} holds {error}: save dense tensors of 8 to 64 bits per number with torch.save, none repeated"
        ) from None
    except Exception as error:  # of pickle, zipfile and torch, without a common base class
        message = error_message(error).splitlines()[0]
        if "weights" in message.lower():  # PyTorch's advice to run the code in the file
            message = "PyTorch refuses it"
        raise ValueError(f"{path} is damaged, or contains other objects than tensors: {message}") from None
