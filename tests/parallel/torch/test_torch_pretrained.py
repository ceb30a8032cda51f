"""``--pretrained``: the weights of a file reach the engine of every rank, and the centers stay."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch_training import build_engine

from drawn_weights import mxnet_weights
from partial_fc.checkpoint.mxnet_params import array_file_chunks
from partial_fc.distributed.errors import JobError
from partial_fc.export.parity import random_faces
from partial_fc.training.saved_training import NEW_WEIGHTS, read_pretrained, take_pretrained
from partial_fc.utils.atomic_io import replace_file
from partial_fc_torch import published_files
from partial_fc_torch.backbones import get_model
from partial_fc_torch.collectives import default_collectives
from paths import ROOT

FACES = random_faces((112, 112), 2)
RECORDED = json.loads((ROOT / "tests" / "assets" / "mxnet_embeddings.json").read_text())["small"]
E = len(RECORDED[0])


def small(seed=0, width=E):
    torch.manual_seed(seed)
    model = get_model("small", num_features=width)
    model(torch.randn(4, 3, 112, 112))  # running statistics
    return model


def start_from(path, adapts=True):
    """Returns an engine with the weights of the file; ``adapts`` it to their conventions as the trainer does."""
    pretrained = read_pretrained(path, False, default_collectives, published_files.read_pretrained)
    engine = build_engine(small(), width=E, network="small")
    if adapts:
        model_format = NEW_WEIGHTS.model_format(pretrained, engine.model_format)
        engine.backbone.eps, engine.backbone.pixel_scale, engine.momentum_convention = model_format
        engine.layer.row_optimizer.momentum_convention = engine.momentum_convention
    centers = engine.layer.weight.clone()
    take_pretrained(pretrained, SimpleNamespace(class_map="", num_classes=engine.num_classes), engine)
    assert torch.equal(engine.layer.weight, centers) and engine.num_update == 0
    return engine


def save(path, model):
    default_collectives.on_rank_zero("save", torch.save, model.state_dict(), path)


def test_a_state_dict(folder):
    saved = small(seed=1)
    save(f"{folder}/backbone.pth", saved)
    found = start_from(folder).backbone.state_dict()
    assert all(torch.equal(found[key], value) for key, value in saved.state_dict().items())


def test_params_of_mxnet(folder):
    chunks = array_file_chunks(mxnet_weights("small", small().state_dict()))
    default_collectives.on_rank_zero("save", replace_file, f"{folder}/model-0000.params", chunks)
    embeddings = start_from(folder).embed(FACES.transpose(0, 3, 1, 2))
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    np.testing.assert_allclose(embeddings, RECORDED, rtol=0, atol=1e-5)
    with pytest.raises(JobError, match="pixel_scale=128.0, .* but this backbone "):
        start_from(folder, adapts=False)


def test_weights_of_another_shape_are_refused_on_all_ranks(folder):
    save(f"{folder}/backbone.pth", small(width=E + 8))
    with pytest.raises(JobError, match=f"{folder}/backbone.pth: fc.weight has the shape"):
        start_from(folder)
