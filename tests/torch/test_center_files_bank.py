"""Centers in files: training equals memory, rows are read in advance, PartialFC_V2 refuses them."""

import os
from functools import partial

import numpy as np
import pytest
import torch

from page_cache import require_disk, require_in_memory
from partial_fc_torch import CosFace, PartialFC, PartialFC_V2

E = 512  # two rows per page
CLASSES = 3000


def build(folder=None, ratio=0.1, **arguments):
    sizes = {"num_classes": CLASSES, "sample_rate": ratio, "embedding_size": E}
    layer = PartialFC(margin_softmax=CosFace(), folder=folder and str(folder), device="cpu", **sizes, **arguments)
    layer.learning_rate = 0.1
    return layer


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adagrad"])
@pytest.mark.parametrize("ratio", [0.1, 1.0])
def test_training_equals_memory(ratio, optimizer, tmp_path):
    rng = np.random.default_rng(0)
    make = partial(build, ratio=ratio, optimizer=optimizer, prefix=str(tmp_path / "saved"))
    layers = [make(folder) for folder in (None, tmp_path / "bank")]
    for _ in range(4):
        features, labels = torch.from_numpy(rng.standard_normal((8, E), np.float32)), rng.integers(0, CLASSES, 8)
        (first, first_loss), (second, second_loss) = [layer.step(features, labels) for layer in layers]
        assert torch.equal(first, second) and first_loss == second_loss
    layers[1].save_params()
    layers.append(make(tmp_path / "bank", resume=True))
    for field in layers[0].widths:
        assert layers[0].rows(field).any()
        for in_files in layers[1:]:
            assert torch.equal(layers[0].rows(field), in_files.rows(field))
    assert sorted(os.listdir(tmp_path / "saved")) == sorted(f"rank_0_softmax_{field}.pt" for field in layers[0].widths)
    assert os.listdir(tmp_path / "bank") == []  # the files have no names


def files(layer):
    """Returns the files of the centers and their momentum."""
    return list(layer._store._files.pieces[0].values())


def sample(layer, labels):
    """Draws and loads the rows of a step."""
    return layer._draw(labels).sampled.rows.numpy()


def drop_pages(layer):
    for file in files(layer):
        file.drop_pages()


def require_rows(layer, index):
    """Waits until exactly the pages of these rows are in memory."""
    require_in_memory(files(layer), [set((index // 2).tolist())] * 2)


def test_rows_of_a_step_are_read_while_the_backbone_computes(tmp_path):
    require_disk(tmp_path)
    layer = build(tmp_path)
    labels = torch.arange(0, CLASSES, 500)
    start = layer.sampler.state()
    drop_pages(layer)
    first = sample(layer, labels)  # nothing is drawn in advance of the first step
    require_rows(layer, first)
    layer.sampler.restore(start)
    layer.step(torch.ones(len(labels), E), labels)
    drawn = layer.sampler.prefetch()
    require_rows(layer, np.union1d(first, drawn))
    drop_pages(layer)
    require_rows(layer, np.setdiff1d(sample(layer, labels), drawn))


def test_files_are_for_updates_in_place(tmp_path):
    for arguments in ({"folder": str(tmp_path)}, {"on_host": True}):
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            PartialFC_V2(CosFace(), E, 5, **arguments)
