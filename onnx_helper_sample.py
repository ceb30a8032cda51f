"""Checks a submission to the masked-face challenge, as `partial-fc submission` does: see --help.

python onnx_helper_sample.py --model_root DIR --track glint
"""

import sys
from pathlib import Path

from partial_fc.utils.cli import run_module, start

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent / "tools"))  # where it is not installed
    start(lambda: run_module("partial_fc_tools.submission.command", "python onnx_helper_sample.py"))
