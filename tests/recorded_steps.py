"""Twenty steps of the layer for both trainers: the inputs, and the recorded results of the MXNet layer.

tests/mx/test_recorded_steps.py compares the MXNet layer with the record, tests/parallel/torch/test_mxnet_steps.py the
PyTorch layer. In MXNet's environment, `PYTHONPATH=.:mxnet:tests python tests/mx/test_recorded_steps.py` writes the
record.

Shapes: G global batch, E embedding, S sampled classes.
"""

import numpy as np

from paths import ROOT

RECORD = ROOT / "tests" / "assets" / "mxnet_steps.npz"
STEPS, CLASSES, G, E, LR, SCALE = 20, 300, 24, 16, 0.1, 16.0
# Name -> (margins, sample ratio).
CASES = {"arcface": ((1.0, 0.5, 0.0), 1.0), "combined": ((0.9, 0.4, 0.15), 0.3)}
# The results of a case: mean losses (STEPS,), feature gradients of the summed loss (STEPS, G, E), local indices of the
# centers (STEPS, S), centers and momentum after the last step (C, E).
RESULTS = ("losses", "gradients", "indices", "centers", "momentum")
# Another order of float32 additions differs by 6e-8 a step; 20 large steps magnify the difference.
TOLERANCE = dict(rtol=1e-4, atol=1e-5)


def batches():
    """Yields the features (G, E) float32 and labels (G,) int64 of each step."""
    rng = np.random.default_rng(3)
    for _ in range(STEPS):
        yield rng.standard_normal((G, E)).astype(np.float32), rng.integers(0, CLASSES, G)


def recorded(case):
    """Returns the recorded results of a case by name."""
    with np.load(RECORD) as record:
        return {name: record[f"{case}.{name}"] for name in RESULTS}
