"""Names of arrays in MXNet and PyTorch; tests/torch and tests/mx compare them with the networks."""

import numpy as np
import pytest

from partial_fc.checkpoint.backbone_layers import MXNET_TO_TORCH, SHARED
from partial_fc.checkpoint.torch_names import prefix_of, torch_names, with_mxnet_names, with_torch_names

# MXNet name -> PyTorch name.
NETWORKS = {**{name: name for name in SHARED if name not in MXNET_TO_TORCH.values()}, **MXNET_TO_TORCH}


def arrays_of(network, momentum=True):
    """An array of 5 numbers for every name of MXNet."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(5, np.float32) for name in torch_names(network)}
    if momentum:
        parameters = [name[4:] for name in arrays if name.startswith("arg:")]
        arrays.update({f"state:{name}:": rng.standard_normal(5, np.float32) for name in parameters})
    return {**arrays, "arg:fc1_gamma": np.ones(5, np.float32)}


@pytest.mark.parametrize("momentum", [True, False])
@pytest.mark.parametrize("mxnet, torch", NETWORKS.items())
def test_renaming_there_and_back_changes_nothing(mxnet, torch, momentum):
    arrays = arrays_of(torch, momentum)
    renamed = with_torch_names(torch, arrays)
    assert len(renamed) == len(arrays) and not renamed.keys() & arrays.keys()
    back = with_mxnet_names(mxnet, {**renamed, "arg:bn1.num_batches_tracked": np.int64(3)})
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("rename", [with_torch_names, with_mxnet_names])
def test_arrays_with_the_right_names_stay(rename):
    arrays = arrays_of("small")
    own = with_torch_names("small", arrays) if rename is with_torch_names else arrays
    assert rename("small", own) == own
    assert rename("r50", {"arg:weight": arrays["arg:fc1_gamma"]}).keys() == {"arg:weight"}  # a user's own network


@pytest.mark.parametrize(
    "names, prefix",
    [
        (("a.w", "b"), ""),
        (("module.a.w", "module.b"), "module."),
        (("model.backbone.a.w", "model.backbone.b", "head"), "model.backbone."),
        (("a.w", "b", "c"), None),
        (("module.a.w", "other"), None),
        (("mine.a.w", "mine.b"), None),
        (("model.a.w", "model.b", "net.a.w", "net.b"), None),
    ],
)
def test_the_prefix_of_one_module_with_all_keys(names, prefix):
    assert prefix_of(("a.w", "b"), names) == prefix


def test_untrained_parameters_get_zero_momentum_in_mxnet():
    own = with_torch_names("small", arrays_of("small"))
    del own["state:features.weight:"], own["state:features.bias:"]
    back = with_mxnet_names("small", own)
    assert not back["state:fc1_gamma:"].any() and not back["state:fc1_beta:"].any()


def test_states_of_another_optimizer_of_pytorch_keep_their_names():
    own = {name: array for name, array in with_torch_names("small", arrays_of("small")).items() if name[:6] != "state:"}
    state = {"state:conv1.weight:exp_avg": np.float32([1])}
    back = with_mxnet_names("small", {**own, **state})
    assert {name for name in back if name.startswith("state:")} == state.keys()


def test_float16_weights_come_from_their_master_copies():
    arrays = arrays_of("small")
    momentum, master = arrays.pop("state:conv0_weight:"), np.float32([1 / 3] * 5)
    arrays.update({"state:conv0_weight:0": momentum, "state:conv0_weight:1": master})
    arrays["arg:conv0_weight"] = master.astype(np.float16).astype(np.float32)
    renamed = with_torch_names("small", arrays)
    assert renamed["arg:conv1.weight"] is master and renamed["state:conv1.weight:"] is momentum
    with pytest.raises(ValueError, match="the state of another optimizer than SGD"):
        with_torch_names("small", {**arrays, "state:conv0_weight:1": momentum})


def test_the_scale_of_the_embedding_is_1():
    half = np.full(5, 0.5, np.float32)
    renamed = with_torch_names("small", {**arrays_of("small"), "arg:fc1_gamma": half})  # MXNet does not use it
    assert (renamed["arg:features.weight"] == 1).all()
    with pytest.raises(ValueError, match="features.weight is not 1 everywhere, but MXNet's small has no such scale"):
        with_mxnet_names("small", {**renamed, "arg:features.weight": half})


def test_arrays_of_another_network_are_refused_with_the_first_names():
    for network, arrays, message in (
        ("r34", arrays_of("r18"), "lacks arg:stage1_unit3_bn1_gamma, .* and 117 others: .* of r18: set network=r18"),
        ("r18", arrays_of("r34"), "unexpected arg:stage1_unit3_bn1_gamma, .* of r34: set network=r34"),
        ("mbf", arrays_of("mobilefacenet"), "unexpected arg:.* of mobilefacenet: set network"),
        ("mbf", {**arrays_of("small"), "arg:more": np.zeros(1)}, "of another network"),
    ):
        with pytest.raises(ValueError, match=message):
            with_torch_names(network, arrays)
    with pytest.raises(ValueError, match="lacks arg:layer1.2.bn1.weight, .* of another network"):
        with_mxnet_names("r34", with_torch_names("r18", arrays_of("r18")))
    with pytest.raises(ValueError, match="rx50 is not a network of both trainers"):
        torch_names("rx50")
