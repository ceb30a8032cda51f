"""Twenty updates give the same numbers at any number of ranks and for a bank in host memory."""

import json
import os
from pathlib import Path

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import pytest
from layer import Batches, all_ranks, build_bank, build_module, fit, random_batches

from oracle import MARGINS
from partial_fc_mxnet import CallBackCenterSave, MarginLoss, data_parallel, memory_bank
from partial_fc_mxnet.collectives import default_collectives
from paths import ROOT

STEPS = 20
ASSET = ROOT / "tests" / "assets" / "one_rank.json"


def trajectory(classes, loss, folder, ratio=1.0, gpu=True):
    """Returns losses, backbone and all ranks' centers after STEPS updates."""
    bank = build_bank(classes, ratio, folder, gpu=gpu)
    module, params = build_module(bank, loss)
    losses = fit(module, params, Batches(*random_batches(classes, STEPS)), STEPS)
    backbone, _ = module.get_export_params()
    return {
        "losses": losses,
        "backbone": np.concatenate([backbone[name].asnumpy().ravel() for name in sorted(backbone)]).tolist(),
        "centers": all_ranks(bank.weight.asnumpy(), "centers").ravel().tolist(),
    }


def golden(key, result):
    """Returns the recorded result of one rank. With PARTIAL_FC_UPDATE_ASSETS, a run on one rank records its result."""
    if os.environ.get("PARTIAL_FC_UPDATE_ASSETS") and hvd.size() == 1:
        content = json.load(open(ASSET)) if os.path.exists(ASSET) else {}
        content[key] = result
        with open(ASSET, "w") as file:
            json.dump(content, file)
    with open(ASSET) as file:
        return json.load(file)[key]


@pytest.mark.parametrize("name", ["arcface", "cosface", "combined"])
@pytest.mark.parametrize("classes", [12, 7, 2])
def test_any_number_of_ranks_equals_one(name, classes, tmp_path):
    # At s = 16, twenty large steps magnify a float32 rounding error at most a hundredfold.
    result = trajectory(classes, MarginLoss(MARGINS[name], 16.0, 4), tmp_path)
    expected = golden(f"{name}-{classes}", result)
    for part in expected:
        np.testing.assert_allclose(result[part], expected[part], rtol=1e-3, atol=1e-4, err_msg=part)


def test_a_bank_in_host_memory_trains_the_same(tmp_path, monkeypatch):
    # A second CPU context stands in for a GPU: MXNet does not compute with arrays of two contexts.
    for module in (data_parallel, memory_bank):
        monkeypatch.setattr(module, "rank_context", lambda local_rank: mx.cpu(1))
    banks = [build_bank(31, 0.5, tmp_path, gpu=gpu) for gpu in (True, False)]
    assert [bank.weight.context for bank in banks] == [mx.cpu(1), mx.cpu(0)]
    results = [trajectory(31, MarginLoss(embedding_size=4), tmp_path, ratio=0.5, gpu=gpu) for gpu in (True, False)]
    np.testing.assert_allclose(results[0]["losses"], results[1]["losses"], rtol=1e-4)


@pytest.mark.parametrize("with_momentum", [False, True])
def test_a_save_removes_the_files_of_ranks_of_a_larger_job(with_momentum, folder):
    default_collectives.on_rank_zero("earlier", Path(folder, f"{hvd.size()}_centers.param").touch)
    CallBackCenterSave(build_bank(7, 1.0, folder), with_momentum=with_momentum).save(1)
    assert sorted(os.listdir(folder)) == sorted(
        f"{rank}_centers{kind}.param" for rank in range(hvd.size()) for kind in ("", "_mom")[: 1 + with_momentum]
    )
