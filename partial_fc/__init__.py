"""Partial FC without a framework: what any trainer of it needs and NumPy can say.

Nothing here imports MXNet, Horovod or PyTorch, so that the trainers can share it.
"""

import os

# OpenCV reads this at its first import: the header of an image of some KB may name 2^30 pixels, 6 GB when decoded.
# 2^26 is a photo of 67 megapixels; `sets align` sets its own bound.
MAX_PIXELS_VARIABLE = "OPENCV_IO_MAX_IMAGE_PIXELS"
os.environ.setdefault(MAX_PIXELS_VARIABLE, str(2**26))

__version__ = "2.0.0"


def __getattr__(name: str):
    if name in ("PartialFC", "PartialFC_V2"):
        raise ImportError(f"partial_fc holds no framework's layer: write `from partial_fc_torch import {name}`")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
