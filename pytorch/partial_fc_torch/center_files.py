"""Reads files of torch.save, and writes and reads files of one rank's rows: bare tensors, as in arcface_torch.

Shapes: L classes of this rank.
"""

import os
import zipfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from partial_fc.utils.atomic_io import replace_file_by
from partial_fc.utils.mmap_rows import RowFile
from partial_fc.utils.regular_files import open_regular

from .errors import error_message
from .layer.rows import is_narrow
from .tensor_headers import StandIn, UnsupportedTensorError, check_header

ROWS = 1024  # 16-bit rows that are copied at a time
# Of the tensors in a file of safetensors, as in tensor_headers.py. A float8 means little without its scale.
DTYPES = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
DTYPES |= {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def center_file(field: str) -> str:
    """Returns the file name for centers ("weight") or an optimizer state, with {} in place of the rank."""
    return f"rank_{{}}_softmax_{field}.pt"


def save_rows(path: str, rows: torch.Tensor, alive: Callable[[], None]) -> None:
    """Writes rows from any device and calls ``alive`` every few MB; after an OSError an older file is unchanged.

    16-bit rows are written as float32.
    """
    rows = rows.detach().cpu()
    if is_narrow(rows) and len(rows):  # a copy in a file, because the memory may be too small for it
        count, width = rows.shape
        wide = torch.from_numpy(RowFile(os.path.dirname(path) or ".", count, width, reserve=True).rows)
        for part, copied in zip(rows.split(ROWS), wide.split(ROWS)):
            copied.copy_(part)
            alive()
        rows = wide
    try:
        replace_file_by(path, partial(torch.save, rows), alive)
    except RuntimeError as error:  # PyTorch raises it when it closes a file after a failed write
        raise OSError(f"cannot write {path}: {error.__context__ or error}") from error


def load_rows(path: str, shape: torch.Size) -> torch.Tensor:
    """Maps a file with a tensor into memory.

    Raises:
        OSError: The file is missing or cannot be read.
        ValueError: The file is damaged, or its content is not a tensor of this shape.
    """
    try:
        rows = load_tensors(path)
    except FileNotFoundError as error:
        raise OSError(
            f"no centers at {path}: this rank has not saved there; check prefix and the number of ranks"
        ) from error
    if not isinstance(rows, torch.Tensor) or rows.shape != shape:
        kind = f"a tensor of shape {tuple(rows.shape)}" if isinstance(rows, torch.Tensor) else type(rows).__name__
        raise ValueError(
            f"{path} holds {kind}, expected a tensor of shape {tuple(shape)}: load centers that the same number of "
            "ranks saved for the same classes and embedding_size"
        )
    return rows


def load_tensors(path: str) -> Any:
    """Returns the content of a file of torch.save, mapped into memory if the format allows it.

    Objects that are neither tensors nor plain values are replaced by a StandIn, so none of their code runs. A file
    that ends in ``.safetensors`` is one of that library, which has tensors only.

    Raises:
        OSError: The file is missing or cannot be read.
        ValueError: The file is damaged, or calls functions.
    """
    with open_regular(path) as file:
        # Opened by its descriptor, so that PyTorch reads the file that was checked even if another one takes its name.
        opened = f"/proc/self/fd/{file.fileno()}"
        try:
            if path.endswith(".safetensors"):
                import safetensors.torch

                tensors = safetensors.torch.load_file(opened)
                for name, tensor in tensors.items():
                    if tensor.dtype not in DTYPES:
                        raise UnsupportedTensorError(f"{name} of {tensor.dtype}")
                return tensors
            stand_ins = [(StandIn, name) for name in check_header(opened)]
            with torch.serialization.safe_globals(stand_ins):
                is_zip = zipfile.is_zipfile(opened)  # files of PyTorch before 1.6 cannot be mapped
                return torch.load(opened, map_location="cpu", weights_only=True, mmap=is_zip)
        except OSError as error:
            raise OSError(error.errno, f"cannot read {path}: {error.strerror or error}") from None
        except UnsupportedTensorError as error:
            raise ValueError(
                f"{path} holds {error}: save dense tensors of 8 to 64 bits per element with torch.save, none expanded"
            ) from None
        except Exception as error:  # pickle, zipfile and torch have no common base class
            message = error_message(error).splitlines()[0]
            if "weights" in message.lower():  # PyTorch's message advises running the code in the file
                message = "PyTorch refuses it"
            raise ValueError(f"{path} is damaged, or contains objects other than tensors: {message}") from None
