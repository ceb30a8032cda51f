"""The lower bound for the time of a step: sums by hand."""

import math

import pytest

from partial_fc_tools.planner import Case, plan
from partial_fc_tools.planner.roofline import Rates, least_times

RATES = Rates(backbone_flops=1e12, layer_flops=1e8, memory_bandwidth=1e12, bus_bandwidth=1e5, network_bandwidth=1e6)


def part(case, name, **rates):
    """Returns seconds and limit of the part of a step whose name starts with `name`."""
    times = least_times(plan(case), RATES._replace(**rates))
    (time,) = [time for time in times if time.name.startswith(name)]
    return pytest.approx(time.seconds), time.limit


def test_the_layer():
    """G = 8, S = 50, E = 8: three products of 2 G S E, or 13 passes over G S logits and the bank's rows."""
    case = Case(1000, ranks=2, batch=4, embedding=8, ratio=0.1)
    assert part(case, "layer") == (3 * 2 * 8 * 50 * 8 / 1e8, "products")
    # Rows are read once to be copied, 4 target rows; written; momentum read and written.
    nbytes = 13 * 8 * 50 * 4 + (4 * 50 + 4) * 8 * 4
    assert part(case, "layer", memory_bandwidth=1e6) == (nbytes / 1e6, "memory")
    assert part(case._replace(trainer="torch"), "layer", memory_bandwidth=1e6) == ((nbytes + 2 * 1600) / 1e6, "memory")


def test_the_backbone():
    """r50 has 6.296 G multiplications in convolutions and 512 x 25088 in the head, per image and in three passes."""
    case = Case(1000, batch=4, network="r50")
    assert part(case, "backbone") == (3 * 2 * 4 * (6_296_485_888 + 512 * 25_088) / 1e12, "products")
    # Parameters with statistics, gradients, momentum and activations are written and read.
    parameters, activations = 43_590_848, 4 * (18_114_560 + 802_816)
    nbytes = 2 * 4 * (3 * parameters + 37_120 + 1024 + activations)
    assert part(case, "backbone", backbone_flops=math.inf) == (nbytes / 1e12, "memory")


def test_collectives_take_their_bytes_and_the_backward_pass_hides_the_all_reduce():
    """small at E = 8: 310,248 gradients, which two ranks send once."""
    case = Case(1000, ranks=2, batch=4, embedding=8, network="small")
    assert part(case, "all-gather of features") == (4 * (8 + 2) * 4 / 1e6, "network")
    assert part(case, "all-gather of statistics") == (3 * 8 * 4 / 1e6, "network")
    assert part(case, "reduce-scatter") == (4 * 8 * 4 / 1e6, "network")
    backward = 2 * 2 * 4 * (10_801_920 + 8 * 2048) / 1e9
    sent = 4 * (292_656 + 1184 + 8 * (2048 + 3)) / 1e6
    assert part(case, "all-reduce", backbone_flops=1e9) == (sent - backward, "network")
    names = [time.name for time in least_times(plan(case), RATES._replace(backbone_flops=1e8))]
    assert not any(name.startswith("all-reduce") for name in names)


@pytest.mark.parametrize("trainer", ["mxnet", "torch"])
def test_a_bank_on_the_host_takes_time_on_the_bus_beyond_computing(trainer):
    case = Case(1000, batch=4, embedding=8, bank="host", trainer=trainer)
    layer = 3 * 2 * 4 * 1000 * 8 / 1e8
    rows = (2 if trainer == "torch" else 1) * 1000 * 8 * 4  # of centers and, in PyTorch, momentum
    assert part(case, "copies") == (rows / 1e5 - layer, "bus")
