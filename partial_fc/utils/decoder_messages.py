"""Detects damaged JPEG images by the warnings of libjpeg.

Most damaged JPEGs decode without an error, and a warning on standard error is the only sign: of 300 faces with 16
overwritten bytes, all decoded, and half of them caused a warning. So standard error is captured during decoding.
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
    """Context manager that captures standard error while checked() decodes images."""

    def __enter__(self) -> DecoderMessages:
        sys.stderr.flush()
        self._file = tempfile.TemporaryFile()
        self._stderr = os.dup(STDERR)
        os.dup2(self._file.fileno(), STDERR)
        return self

    def checked(self, decode: Callable[[], Result]) -> Result:
        """Returns ``decode()``, or raises ValueError with the first warning about damage that it causes."""
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
