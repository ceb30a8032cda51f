"""What libjpeg says about damage that it reads over.

Garbage inside a JPEG mostly decodes, to a picture with garbage in it, and the only sign is a line that the C library
prints: of 300 faces with 16 bytes overwritten none failed to decode, but half made it print one. So standard error is
turned aside while images are decoded.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile

STDERR = 2
DAMAGE = re.compile(rb"(?:Corrupt JPEG data|Premature end of JPEG)[^\n]*")


class DecoderMessages:
    """`with DecoderMessages() as messages`: standard error goes aside, and `damage()` looks at it."""

    def __enter__(self) -> DecoderMessages:
        sys.stderr.flush()
        self._aside = tempfile.TemporaryFile()
        self._stderr = os.dup(STDERR)
        os.dup2(self._aside.fileno(), STDERR)
        self._seen = 0
        return self

    def damage(self) -> str | None:
        """The first complaint about a JPEG's content since the last call, None if there was none."""
        end = os.lseek(STDERR, 0, os.SEEK_CUR)
        text = os.pread(STDERR, end - self._seen, self._seen)
        self._seen = end
        found = DAMAGE.search(text)
        return None if found is None else found[0].decode("ascii", "replace")

    def __exit__(self, kind, value, traceback) -> None:
        os.dup2(self._stderr, STDERR)
        os.close(self._stderr)
        self._aside.close()
