"""Partial FC: the layer of PyTorch by its names below, and everything that needs no framework in the packages.

The names import PyTorch when they are first used. Nothing else here imports MXNet, Horovod or PyTorch, so that the
trainers can share it.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partial_fc_torch import (
        AdaFace,
        ArcFace,
        CombinedMarginLoss,
        CosFace,
        CurricularFace,
        InterTopK,
        MagFace,
        PartialFC,
        PartialFC_V2,
        ShardedState,
        exclude_from_ddp,
        export_onnx,
        from_pretrained,
        get_model,
    )

# OpenCV reads this at its first import: the header of an image of some KB may name 2^30 pixels, 6 GB when decoded.
# 2^26 is a photo of 67 megapixels; `sets align` sets its own bound.
MAX_PIXELS_VARIABLE = "OPENCV_IO_MAX_IMAGE_PIXELS"
os.environ.setdefault(MAX_PIXELS_VARIABLE, str(2**26))

__version__ = "3.0.0"
__all__ = [
    "AdaFace",
    "ArcFace",
    "CombinedMarginLoss",
    "CosFace",
    "CurricularFace",
    "InterTopK",
    "MagFace",
    "PartialFC",
    "PartialFC_V2",
    "ShardedState",
    "exclude_from_ddp",
    "export_onnx",
    "from_pretrained",
    "get_model",
]

if not TYPE_CHECKING:  # with this function, type checkers would accept any name

    def __getattr__(name: str):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .utils.imports import import_trainer

        return getattr(import_trainer("partial_fc_torch"), name)
