"""The names users know, and the presets that name networks."""

import pytest

import default
import partial_fc_mxnet
from partial_fc_mxnet.symbol import NETWORKS, get_symbol


def test_every_network_preset_has_a_symbol_and_the_other_way_round():
    assert set(default.network) == set(NETWORKS)


def test_every_public_name_is_there():
    assert all(hasattr(partial_fc_mxnet, name) for name in partial_fc_mxnet.__all__)


@pytest.mark.parametrize("name", ["net_act", "net_output"])
def test_an_empty_setting_is_the_networks_own(name):
    assert default.defaults()[name] == ""
    assert get_symbol("small", 8, **{name: default.defaults()[name] or None}).list_outputs() == ["fc1_output"]
