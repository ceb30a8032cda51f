"""Partial FC on PyTorch: the distributed classification layer, backbones and the trainer around them."""

from .errors import INSTALL, NOT_INSTALLED

try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError(NOT_INSTALLED if error.name == "torch" else f"{error}: {INSTALL}") from error
except (ImportError, OSError) as error:  # for instance, a library of CUDA is missing
    raise ImportError(f"PyTorch cannot be loaded ({error}): {INSTALL}") from error
if not hasattr(torch, "Tensor"):  # a folder named torch on the path poses as an empty package
    raise ImportError(NOT_INSTALLED)
if not torch.distributed.is_available():
    raise ImportError(f"PyTorch {torch.__version__} is built without torch.distributed: install another build")

from .backbones import get_model
from .layer.margins import AdaFace, ArcFace, CombinedMarginLoss, CosFace, CurricularFace, InterTopK, MagFace
from .onnx_export import export_onnx
from .partial_fc import PartialFC, PartialFC_V2, exclude_from_ddp
from .pretrained import from_pretrained
from .sharded_state import ShardedState

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
