import subprocess
import sys

from paths import with_root

CODE = """
import sys
import torch
from partial_fc_torch.layer.center_optimizer import CenterOptimizer
from partial_fc_torch.optimizers import build_optimizer

class Layer:
    def update(self, index, gradient):
        print(index.tolist(), gradient.tolist())

layer, backbone = Layer(), torch.nn.Linear(1, 1, bias=False)
centers = CenterOptimizer(layer.update)
centers.accumulate(torch.tensor([3]), torch.tensor([[2.0]]))
centers.step()
for convention in ("gradients", "steps"):
    optimizer = build_optimizer(backbone, weight_decay=0.0, momentum_convention=convention, momentum=0.9)
    torch.nn.init.ones_(backbone.weight)
    for _ in range(2):
        optimizer.optimizer.zero_grad()
        backbone(torch.ones(1, 1)).sum().backward()
        optimizer.update(0.1)
    print(f"{backbone.weight.item():.4f}", "torch._dynamo" in sys.modules)
"""


def test_no_update_imports_the_compiler():
    """1 - 0.1 - 0.1 * 1.9, with both optimizers."""
    done = subprocess.run([sys.executable, "-c", CODE], env=with_root(), capture_output=True, text=True, timeout=300)
    assert done.stdout == "[3] [[2.0]]\n0.7100 False\n0.7100 False\n", done.stderr
