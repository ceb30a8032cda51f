"""Centers in files: the same numbers as in memory, rows that are read ahead, and refused devices."""

import os
import time

import numpy as np
import pytest
import torch

from page_cache import in_memory, require_disk
from partial_fc_torch import CosFace, PartialFC, PartialFC_V2

E = 512  # two rows a page
CLASSES = 3000


def build(folder=None, ratio=0.1, **arguments):
    sizes = {"num_classes": CLASSES, "sample_rate": ratio, "embedding_size": E}
    layer = PartialFC(margin_softmax=CosFace(), folder=folder and str(folder), device="cpu", **sizes, **arguments)
    layer.learning_rate = 0.1
    return layer


@pytest.mark.parametrize("ratio", [0.1, 1.0])
def test_training_equals_memory(ratio, tmp_path):
    rng = np.random.default_rng(0)
    layers = [build(folder, ratio, prefix=str(tmp_path / "saved")) for folder in (None, tmp_path / "bank")]
    for _ in range(4):
        features, labels = torch.from_numpy(rng.standard_normal((8, E), np.float32)), rng.integers(0, CLASSES, 8)
        (first, first_loss), (second, second_loss) = [layer.step(features, labels) for layer in layers]
        assert torch.equal(first, second) and first_loss == second_loss
    assert torch.equal(layers[0].weight, layers[1].weight)
    assert torch.equal(layers[0].weight_mom, layers[1].weight_mom)
    layers[1].save_params()
    loaded = build(tmp_path / "bank", ratio, prefix=str(tmp_path / "saved"), resume=True)
    assert torch.equal(loaded.weight, layers[0].weight) and torch.equal(loaded.weight_mom, layers[0].weight_mom)
    assert os.listdir(tmp_path / "bank") == []  # the files have no names


def test_sampled_rows_are_read_ahead(tmp_path):
    require_disk(tmp_path)
    layer = build(tmp_path)
    files = layer.files.pieces[0]
    for file in files:
        file.drop_pages()
    index = layer._select(torch.arange(0, CLASSES, 500)).rows.numpy()
    expected = set((index // 2).tolist())
    deadline = time.monotonic() + 10
    while [in_memory(file) for file in files] != [expected] * 2 and time.monotonic() < deadline:
        time.sleep(1e-3)
    assert [in_memory(file) for file in files] == [expected] * 2


def test_files_are_for_updates_in_place(tmp_path):
    for arguments in ({"folder": str(tmp_path)}, {"on_host": True}):
        with pytest.raises(ValueError, match="use PartialFC for centers on the host or in files"):
            PartialFC_V2(CosFace(), E, 5, **arguments)
