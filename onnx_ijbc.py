"""Evaluates an ONNX model on IJB-B or IJB-C, as `partial-fc ijb` does: see --help.

python onnx_ijbc.py --model-root DIR --image-path IJBC --result-dir OUT
"""

import sys
from pathlib import Path

from partial_fc.utils.cli import run_module, start

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent / "tools"))  # where it is not installed
    start(lambda: run_module("partial_fc_tools.ijb.command", "python onnx_ijbc.py"))
