"""Warnings of libjpeg about damage that it tolerates.

Garbage inside a JPEG mostly decodes, to an image with garbage in it, and the only sign is a line that the C library
prints: of 300 faces with 16 bytes overwritten none failed to decode, but half of them caused a warning. So standard
error is redirected while images are decoded.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable
from typing import TypeVar

STDERR = 2
Result = TypeVar("Result")
DAMAGE = re.compile(rb"(?:Corrupt JPEG data|Premature end of JPEG)[^\n]*")


class DecoderMessages:
    """Redirects standard error within a `with` block, in which `checked` decodes images."""

    def __enter__(self) -> DecoderMessages:
        sys.stderr.flush()
        self._file = tempfile.TemporaryFile()
        self._stderr = os.dup(STDERR)
        os.dup2(self._file.fileno(), STDERR)
        return self

    def checked(self, decode: Callable[[], Result]) -> Result:
        """Returns ``decode()``. Raises its errors, or ValueError with the first warning about a JPEG's content."""
        start = os.lseek(STDERR, 0, os.SEEK_CUR)
        result = decode()
        match = DAMAGE.search(os.pread(STDERR, os.lseek(STDERR, 0, os.SEEK_CUR) - start, start))
        if match is not None:
            raise ValueError(f"is damaged: {match[0].decode('ascii', 'replace')}")
        return result

    def __exit__(self, kind, value, traceback) -> None:
        os.dup2(self._stderr, STDERR)
        os.close(self._stderr)
        self._file.close()
