"""The planner's numbers of the backbones are those of PyTorch."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from partial_fc.planner.backbones import BACKBONES, TORCH_SAVED
from partial_fc_torch import get_model
from partial_fc_torch.backbones import NETWORKS


def saved_bytes(model, batch, autocast):
    """Bytes by type of what autograd saves in a forward pass, without parameters and running statistics."""
    own = {tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()]}
    saved = {}

    def pack(tensor):
        place = tensor.untyped_storage()
        if place._cdata not in own:
            saved[place._cdata] = tensor  # also keeps it, so that no other takes its place
        return tensor

    device = next(model.parameters()).device
    images = torch.zeros(batch, 3, 112, 112, device=device).contiguous(memory_format=torch.channels_last)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model(images)
    counted = dict.fromkeys((torch.float32, torch.bfloat16), 0)
    for tensor in saved.values():
        counted[tensor.dtype] += tensor.untyped_storage().nbytes()
    return counted


def saved_of_an_image(model, autocast):
    """Numbers by type; copies of the weights and statistics of a batch do not depend on its size."""
    two, three = (saved_bytes(model, batch, autocast) for batch in (2, 3))
    return {dtype: (three[dtype] - two[dtype]) // dtype.itemsize for dtype in two}


@pytest.mark.parametrize("network", NETWORKS)
def test_what_autograd_saves_of_an_image(network):
    saved = TORCH_SAVED[network]
    with FakeTensorMode():  # tensors without numbers, as they would be on a CPU
        model = get_model(network)
        assert saved_of_an_image(model, False) == {torch.float32: saved.all_full, torch.bfloat16: 0}
        assert saved_of_an_image(model, True) == {torch.float32: saved.full, torch.bfloat16: saved.half}


@pytest.mark.parametrize("network", NETWORKS)
def test_parameters_and_statistics_are_those_of_the_symbols(network):
    model, backbone = get_model(network), BACKBONES[network]
    assert sum(parameter.numel() for parameter in model.parameters()) == sum(backbone.parameters(512))
    statistics = sum(buffer.numel() for buffer in model.buffers() if buffer.is_floating_point())
    assert statistics == backbone.statistics(512)
