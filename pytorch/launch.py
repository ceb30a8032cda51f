"""Runs torchrun on one host without open ports.

For example, python pytorch/launch.py --nproc_per_node=8 train.py. It calls partial_fc_torch/launch.py, as
`partial-fc train` and pytorch/run.sh do.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # where the clone is not installed

from partial_fc_torch.launch import launch  # noqa: E402

if __name__ == "__main__":
    sys.exit(launch(sys.argv[1:]))
