"""Face detectors with five landmarks: ours, one per file of this folder, and users' own by name."""

import os

from partial_fc.export.model_file import read_model
from partial_fc.utils.imports import import_object
from partial_fc.utils.user_code import make

from .detector import Detector, Face

__all__ = ["DETECTORS", "Detector", "Face", "open_detector"]

DETECTORS = {"mtcnn": "partial_fc_tools.sets.detection.mtcnn:Mtcnn"}  # detectors without an ONNX file
YUNET_OUTPUTS = {"cls_8", "loc"}  # names in the versions of 2023, and of 2021 and 2022


def open_detector(name: str) -> Detector:
    """Returns the detector for a name in DETECTORS, an ONNX file of SCRFD or YuNet, or package.module:name.

    Raises:
        ImportError: The detector's package is missing; the message names it.
        OSError: The file does not exist.
        ValueError: The file is no such detector, or there is no detector of that name.
    """
    if not name.endswith(".onnx"):
        maker = import_object(DETECTORS.get(name, name), "--detector", Detector)
        detector: Detector = maker() if name in DETECTORS else make("--detector", name, maker)
        return detector
    if not os.path.exists(name):
        raise FileNotFoundError(f"{name} does not exist: name the ONNX file of SCRFD or YuNet")
    if YUNET_OUTPUTS & {output.name for output in read_model(name).graph.output}:
        from .yunet import YuNet

        return YuNet(name)
    from .scrfd import Scrfd

    return Scrfd(name)
