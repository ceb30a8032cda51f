"""The demo's faces, drawn once before the first training on them."""

from __future__ import annotations

import os
from typing import Any


def draw_demo(settings: Any) -> None:
    """Draws the faces of the demo if they are trained on and missing.

    Raises:
        OSError: They cannot be written.
    """
    if settings.dataset == "demo" and not settings.debug and not settings.rec:
        from partial_fc.data.synthetic import ensure_demo

        def announce(done, total):
            if done == 1:
                print(f"Drawing {total} faces into {folder}, once; this takes about a minute.", flush=True)

        folder = os.path.join(settings.data_root, settings.data_name)
        ensure_demo(folder, progress=announce)
