"""Partial FC on MXNet and Horovod: the distributed classification layer, its memory bank, iterators and callbacks."""

# Import Pillow first: Horovod makes the symbols of MXNet's libjpeg global, and a Pillow imported later would call that
# libjpeg, whose version differs, and fail to decode JPEG and TIFF.
import PIL.Image  # noqa: F401, I001
import mxnet

# This repository has a folder named mxnet. If the package itself is missing, `import mxnet` imports that folder as an
# empty namespace package.
if not hasattr(mxnet, "base"):
    raise ImportError("MXNet is not installed: run `bash setup-utils/install.sh`, then use .venv/bin/python")
try:
    import horovod.mxnet  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"Horovod is not installed with MXNet support ({error}): run `bash setup-utils/install.sh`, "
        "then `bash setup-utils/check.sh` to see what was built"
    ) from error

from partial_fc.layer.sampling import WeightIndexSampler
from partial_fc.training.callbacks import CallBackFinite, CallBackLogging
from partial_fc.training.checkpointing import CallBackCheckpoint
from partial_fc.training.saved_training import SavedTraining
from partial_fc.training.tasks.faces import FacePairs
from partial_fc.training.verifying import CallBackVerification

from .image_iter import DummyIter, FaceImageIter
from .memory_bank import MemoryBank
from .memory_module import SampleDistributeModule
from .memory_scheduler import get_scheduler
from .memory_softmax import MarginLoss
from .onnx_export import OnnxExport
from .optimizer import DistributedOptimizer, MemoryBankSGDOptimizer
from .saving import CallBackCenterSave, CallBackModelSave

__all__ = [
    "CallBackCenterSave",
    "CallBackCheckpoint",
    "CallBackFinite",
    "CallBackLogging",
    "CallBackModelSave",
    "CallBackVerification",
    "DummyIter",
    "FaceImageIter",
    "FacePairs",
    "WeightIndexSampler",
    "DistributedOptimizer",
    "MarginLoss",
    "MemoryBank",
    "MemoryBankSGDOptimizer",
    "OnnxExport",
    "SampleDistributeModule",
    "SavedTraining",
    "get_scheduler",
]
