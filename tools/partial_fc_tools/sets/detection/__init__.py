"""Face detectors with five landmarks: those of this folder, one per file, and those of users by name."""

from partial_fc.utils.imports import import_object
from partial_fc.utils.user_code import make

from .detector import Detector, Face
from .onnx_file import open_onnx_detector

__all__ = ["DETECTORS", "Detector", "Face", "open_detector"]

DETECTORS = {"mtcnn": "partial_fc_tools.sets.detection.mtcnn:Mtcnn"}  # those without a file of their own
ONNX = ".onnx"


def open_detector(name: str) -> Detector:
    """Returns the detector that a name of DETECTORS, an ONNX file of SCRFD or YuNet, or package.module:name stands for.

    Raises:
        ImportError: Its package is missing; the message names it.
        OSError: There is no such file.
        ValueError: The file is not such a detector, or the name stands for nothing.
    """
    if name.endswith(ONNX):
        return open_onnx_detector(name)
    maker = import_object(DETECTORS.get(name, name), "--detector", Detector)
    detector: Detector = maker() if name in DETECTORS else make("--detector", name, maker)
    return detector
