"""AdamW and Adagrad of the centers against optimizers in float64 that have a parameter for each row.

torch.optim.AdamW leaves a parameter without a gradient as it is, so that with a sample, too, each row has its own
number of updates.
"""

import numpy as np
import pytest
import torch
from test_torch_layer_oracle import record_samples
from torch.nn.functional import cross_entropy, linear, normalize
from torch_layer import FUSED, LOCAL, LR, RANK, all_ranks, build, random_batch

from oracle import MARGINS
from partial_fc_torch import CombinedMarginLoss
from partial_fc_torch.layer.optimizers import Adagrad, AdamW
from partial_fc_torch.layer.rounding import Rounding

STEPS, SCALE, DECAY = 6, 8.0, 0.3
# Where a gradient is nearly 0, its sign decides AdamW's first update: a larger eps keeps float32 near float64.
EPS = 0.01


class RowAdagrad:
    """Adagrad with one sum per row; ``state`` as in torch.optim."""

    def __init__(self, rows):
        self.state = {row: {"sum": torch.zeros(1, dtype=torch.float64)} for row in rows}

    @torch.no_grad()
    def step(self):
        for row, state in self.state.items():
            if row.grad is not None:
                gradient = row.grad + DECAY * row
                state["sum"] += sum(gradient**2) / len(gradient)
                row -= LR * gradient / (state["sum"] ** 0.5 + EPS)


CASES = {
    "adamw": (
        AdamW((0.8, 0.95), EPS, DECAY),
        lambda rows: torch.optim.AdamW(rows, lr=LR, betas=(0.8, 0.95), eps=EPS, weight_decay=DECAY),
        {"weight_exp_avg": "exp_avg", "weight_exp_avg_sq": "exp_avg_sq", "weight_updates": "step"},
    ),
    "adagrad": (Adagrad(EPS, DECAY), RowAdagrad, {"weight_sum": "sum"}),
}


def train(layer):
    """Trains STEPS steps; returns features, labels and the sampled classes of each."""
    samples, batches = record_samples(layer), []
    for seed in range(STEPS):
        batches.append(random_batch(layer.num_classes, seed))
        features, labels = batches[-1]
        layer.step(torch.from_numpy(features[LOCAL]), torch.from_numpy(labels[LOCAL]))
    return [(*batch, sample) for batch, sample in zip(batches, samples)]


def expected_rows(centers, make, steps):
    """The rows after these steps, one parameter each, and their optimizer."""
    rows = [torch.from_numpy(row).double().requires_grad_() for row in centers]
    optimizer, margin = make(rows), CombinedMarginLoss(SCALE, *MARGINS["cosface"])
    for features, labels, sample in steps:
        for row in rows:
            row.grad = None
        cosines = linear(
            normalize(torch.from_numpy(features).double()), normalize(torch.stack([rows[c] for c in sample]))
        )
        columns = torch.from_numpy(np.searchsorted(sample, labels))
        cross_entropy(margin(cosines, columns), columns).backward()
        optimizer.step()
    return rows, optimizer


@pytest.mark.parametrize(
    "classes, ratio, tiling",
    [*((*shard, {"tile_classes": 5}) for shard in [(12, 1.0), (2, 1.0), (31, 0.3)]), (31, 0.3, FUSED)],
)
@pytest.mark.parametrize("name", CASES)
def test_a_training_equals_the_optimizer_of_each_row(name, classes, ratio, tiling):
    own, make, states = CASES[name]
    layer = build(classes, ratio, MARGINS["cosface"], SCALE, optimizer=own, **tiling)
    # Larger than those of a new layer, whose gradients are as large as their norms are small.
    layer.copy_rows("weight", [(0, 100 * layer.rows("weight").numpy())] if layer.num_local else [])
    before = all_ranks(layer.weight)
    steps = train(layer)
    found = {field: all_ranks(layer.rows(field)) for field in layer.widths}
    if RANK != 0:
        return
    rows, optimizer = expected_rows(before, make, steps)
    assert found.keys() == {"weight", *states}
    np.testing.assert_allclose(found["weight"], torch.stack(rows).detach(), rtol=1e-4, atol=1e-4)
    updates = np.bincount(np.concatenate([sample for *_, sample in steps]), minlength=classes)
    assert ratio == 1 or len(set(updates)) > 2
    for row in range(classes):
        state = optimizer.state[rows[row]]
        for field, key in states.items():
            np.testing.assert_allclose(found[field][row], state.get(key, 0), rtol=1e-3, atol=1e-4)
    unmoved = updates == 0
    np.testing.assert_array_equal(found["weight"][unmoved], before[unmoved])


@pytest.mark.parametrize("place", ["memory", "host", "files"])
@pytest.mark.parametrize("classes, ratio", [(12, 1.0), (2, 1.0), (31, 0.3)])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_16_bit_centers_are_those_of_float32_rounded_by_seed_update_and_row(optimizer, classes, ratio, place, folder):
    """Each step of a layer, on any number of ranks, rounds the result of a float32 layer with the same rows."""
    where = {"folder": folder} if place == "files" else {"on_host": place == "host"}
    of_both = {"optimizer": optimizer, "sub_centers": 2, "tile_classes": 5, "seed": 3}
    wide = build(classes, ratio, **of_both)
    narrow = build(classes, ratio, center_dtype="bfloat16", **of_both, **where)
    for update in range(3):
        for field in wide.widths if wide.num_local else ():
            wide.copy_rows(field, [(0, narrow.rows(field).float().numpy())])
        wide.sampler.restore(narrow.sampler.state())
        features, labels = random_batch(classes, update)
        for layer in (wide, narrow):
            layer.step(torch.from_numpy(features[LOCAL]), torch.from_numpy(labels[LOCAL]))
        every = torch.arange(2 * classes)
        for number, field in enumerate(wide.widths):
            exact, found = torch.from_numpy(all_ranks(wide.rows(field))), all_ranks(narrow.rows(field).float())
            expected = Rounding(3, update, 0)(exact, every, number) if exact.shape[1] > 1 else exact
            # The order of rows on the host changes float32 sums, which few roundings notice.
            assert (expected.float().numpy() == found).mean() > (0.98 if place == "host" else 0.9999)
