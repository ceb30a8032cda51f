"""Opens an ONNX file of SCRFD or YuNet, which the names of its outputs tell apart."""

import os

from partial_fc.export.model_file import first_line, read_model

from .detector import Detector

YUNET_OUTPUTS = {"cls_8", "loc"}  # of its versions of 2023, and of 2021 and 2022


def open_onnx_detector(path: str) -> Detector:
    """Returns the detector of an ONNX file. Raises OSError or ValueError, which names the file."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} does not exist: name the ONNX file of SCRFD or YuNet")
    try:
        outputs = {each.name for each in read_model(path).graph.output}
    except OSError:
        raise
    except Exception as error:  # errors of protobuf have no common base class
        raise ValueError(f"{path} is not an ONNX file: {first_line(error)}") from None
    if outputs & YUNET_OUTPUTS:
        from .yunet import YuNet

        return YuNet(path)
    from .scrfd import Scrfd

    return Scrfd(path)
