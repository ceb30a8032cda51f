"""SGD with momentum on rows, against the formula in float64."""

import numpy as np
import pytest

from partial_fc.layer.sgd import BLOCK_ROWS, SGDParams, sgd_momentum


@pytest.mark.parametrize("rows", [1, BLOCK_ROWS, 2 * BLOCK_ROWS + 3])
@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("convention", ["gradients", "steps"])
def test_update_equals_the_formula(rows, projected, gathered, convention):
    params = SGDParams(learning_rate=0.2, momentum=0.9, wd=0.05, rescale_grad=0.25, momentum_convention=convention)
    rng = np.random.default_rng(0)
    weight, grad = rng.standard_normal((2, rows, 8)).astype(np.float32)
    bank = rng.standard_normal((3 * rows, 8)).astype(np.float32)
    mom_rows = np.sort(rng.choice(3 * rows, rows, replace=False)) if gathered else np.arange(rows)
    w, g, m = (array.astype(np.float64) for array in (weight, grad, bank[mom_rows]))
    if projected:
        unit = w / np.linalg.norm(w, axis=1, keepdims=True)
        g -= (g * unit).sum(axis=1, keepdims=True) * unit
    step = 0.25 * g + 0.05 * w
    m = 0.9 * m + (step if convention == "gradients" else -0.2 * step)
    w += -0.2 * m if convention == "gradients" else m
    others = np.delete(bank, mom_rows, axis=0)

    inverse_norm = (1 / np.linalg.norm(weight, axis=1)).astype(np.float32) if projected else None
    mom = bank if gathered else bank[:rows]
    sgd_momentum(weight, grad, mom, params, inverse_norm, mom_rows if gathered else None)

    # A few float32 roundings of numbers of order 1, 6e-8 each.
    np.testing.assert_allclose(bank[mom_rows], m, rtol=0, atol=1e-6)
    np.testing.assert_allclose(weight, w, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(np.delete(bank, mom_rows, axis=0), others)
