"""python -m partial_fc.face_sets COMMAND ...: see command.py."""

from __future__ import annotations

import io
import sys

if __name__ == "__main__":
    try:
        # Here, so that Ctrl-C while it loads is no traceback either, and so that workers, which import this file,
        # load no more than they need.
        from partial_fc.face_sets.command import main

        for stream in (sys.stdout, sys.stderr):  # names of files that the terminal cannot show are no reason to fail
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
