"""Runs train.py with a sampler that draws all centers of a step uniformly, positive or not.

    torchrun --nproc_per_node=2 benchmarks/random_positives.py --dataset glyphs sample_ratio=0.1

Images whose class is not drawn have no loss, but count in the mean over the batch. So with r = 0.1 the gradients are
about ten times smaller. See benchmarks/experiment.py.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "pytorch")]

import torch  # noqa: E402

import train  # noqa: E402
from partial_fc_torch import PartialFC  # noqa: E402


def sample(layer: PartialFC, global_label: torch.Tensor) -> torch.Tensor:
    layer.requires_positives = False
    drawn, _ = layer.sampler.draw(len(global_label))
    return torch.from_numpy(drawn).to(global_label.device)


if __name__ == "__main__":
    PartialFC.sample = sample
    train.main()
