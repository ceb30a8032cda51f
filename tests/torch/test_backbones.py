"""The backbones: names and shapes of the published state_dicts, precision, initial values."""

import hashlib
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from partial_fc.settings import presets
from partial_fc_torch.backbones import NETWORKS, get_model
from partial_fc_torch.backbones.backbone import BATCH_NORMS
from paths import ROOT

# SHA-256 of names and shapes in the published files, in order, so that lists of tensors without names fit, too.
PUBLISHED = {
    "r18": "ea0fb9f9f143f0a2",
    "r34": "cd1b7d65dd13d8cf",
    "r50": "9bb71860a7bb9e18",
    "r100": "56eda461718b204f",
    "r124": "9e1e08d052fe366e",
    "r200": "e1c6f77cdf87e5d1",
    "mobilefacenet": "c26b152b4641a9e2",
    "mbf": "2a61d8ac975668da",
    "mbf_large": "1a2acdac86d60428",
    "vit_mini": "3d0dad9bf2e00054",
    "vit_t": "4e2c9ef4d9971881",
    "vit_t_dp005_mask0": "4e2c9ef4d9971881",
    "vit_s": "84ed16e136f3be71",
    "vit_s_dp005_mask_0": "84ed16e136f3be71",
    "vit_b": "468802ed74d757b5",
    "vit_b_dp005_mask_005": "468802ed74d757b5",
    "vit_l_dp005_mask_005": "d6259cf28daf2b51",
    "vit_h": "0a266bc7c3dfcf13",
}
FAST = ["r18", "mobilefacenet", "small", "vit_t"]
# Layers of the head; the last one is the batch norm of the embedding.
HEAD = {
    "mobilefacenet": ["features.layers.0.layers.0", "features.layers.2", "features.layers.3"],
    "vit_t": ["feature.0", "feature.1", "feature.2", "feature.3"],
}
FROZEN = {
    "r18": {"features.weight"},
    "mobilefacenet": {"features.layers.3.weight"},
    "small": {"features.weight", "features.bias"},
}


def images(batch=2, side=112, seed=0):
    return 2 * torch.rand(batch, 3, side, side, generator=torch.Generator().manual_seed(seed)) - 1


def test_the_settings_know_every_network_without_importing_it():
    assert list(presets.NETWORKS["torch"]) == list(NETWORKS)


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_and_shapes_are_those_of_published_files(name):
    with torch.device("meta"):
        state = get_model(name).state_dict()
    listed = str([(key, tuple(value.shape)) for key, value in state.items()])
    assert hashlib.sha256(listed.encode()).hexdigest()[:16] == PUBLISHED[name]


@pytest.mark.parametrize("name", [*FAST, "mbf"])
def test_gradients_reach_all_parameters_except_frozen_ones(name):
    torch.manual_seed(0)  # vit_t drops branches
    model = get_model(name, num_features=16)
    model(images(4)).backward(torch.randn(4, 16, generator=torch.Generator().manual_seed(1)))
    frozen = FROZEN.get(name, set())
    assert {key for key, value in model.named_parameters() if not value.requires_grad} == frozen
    for key, value in model.named_parameters():
        if key not in frozen:
            assert torch.isfinite(value.grad).all() and value.grad.abs().max() > 0, key
        elif key.endswith("weight"):
            assert (value == 1).all()


@pytest.mark.parametrize("name", FAST)
def test_dropout_acts_only_in_training(name):
    data = images()
    model = get_model(name, dropout=0.4, num_features=16).eval()
    assert torch.equal(model(data), model(data))
    (dropout,) = (module for module in model.modules() if isinstance(module, nn.Dropout))
    counts = []
    dropout.register_forward_hook(lambda _, inputs, out: counts.extend(map(torch.count_nonzero, (inputs[0], out))))
    torch.manual_seed(0)
    dropout.train()
    model(data)
    assert abs(counts[1] / counts[0] - 0.6) < 0.06  # 4 standard deviations of the 1024 draws of mobilefacenet


@pytest.mark.parametrize("name", FAST)
def test_the_head_computes_in_float32_under_autocast(name):
    data = images()
    model = get_model(name, num_features=16).eval()
    dtypes = {}
    for key, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear, nn.BatchNorm1d)):
            module.register_forward_hook(
                lambda _, inputs, out, key=key: dtypes.update({key: (inputs[0].dtype, out.dtype)})
            )
    full = model(data)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(data)
    assert half.dtype == torch.float32 and not torch.equal(full, half)
    head = HEAD.get(name, ["fc", "features"])
    for key, (input_type, output_type) in dtypes.items():
        assert output_type == (torch.float32 if key in head else torch.bfloat16), key
        assert input_type == torch.float32 or key not in head, key
    assert nn.functional.cosine_similarity(full, half).min() > 0.99


@pytest.mark.parametrize("name", FAST)
def test_epsilon_of_the_batch_norms(name):
    """1e-5 as published; MXNet's MobileFaceNet and the head of a ViT have constants."""
    for options, expected in (({}, 1e-5), ({"eps": 2e-5}, 2e-5)):
        model = get_model(name, **options)
        norms = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
        *body, last = (module.eps for module in norms)
        assert model.eps == expected and last == (2e-5 if name == "vit_t" else expected)
        assert set(body) == {{"mobilefacenet": 1e-3, "vit_t": 2e-5}.get(name, expected)}
        assert {module.momentum for module in norms} == {0.1}


def test_initial_values():
    """As published: standard deviation 0.1 in residual networks, 0.02 in ViTs; others as MXNet, (2 / fan-out)^0.5."""
    torch.manual_seed(0)
    for key, value in get_model("r18").state_dict().items():
        if value.ndim == 4:
            assert abs(value.std() - 0.1) < 0.004, key
    for key, value in get_model("vit_t").state_dict().items():
        if key.endswith(("pos_embed", "mask_token")) or (value.ndim == 2):
            assert abs(value.std() / 0.02 - 1) < 0.15, key
        elif key.endswith("bias") and "patch_embed" not in key:
            assert (value == 0).all(), key
    for name in ("mobilefacenet", "mbf", "small"):
        for key, value in get_model(name).state_dict().items():
            if value.ndim > 1:
                fan_out = value.shape[0] * value.shape[2:].numel()
                assert abs(value.std() / (2 / fan_out) ** 0.5 - 1) < 0.1 or value.numel() < 5000, key
            elif key.endswith(("running_var", "bn1.weight", "bn2.weight", "features.weight")):
                assert (value == 1).all(), key
            elif key.endswith(("bias", "running_mean")):
                assert (value == 0).all(), key


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("r51", {}, r"'r51': did you mean 'r50'\? \(known: .*\), or timm:NAME for a network of timm$"),
        ("r18", {"image_size": 113}, "image_size is 113"),
        ("r18", {"image_size": 0}, "image_size is 0"),
        ("r18", {"dropout": 1.0}, "dropout is 1.0"),
        ("r18", {"num_features": 0}, "num_features is 0"),
    ],
)
def test_invalid_arguments_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        get_model(name, **options)


def test_a_users_function_gets_all_sizes_of_its_task(monkeypatch):
    arguments = {}
    module = ModuleType("networks_of_mine")
    module.make = lambda **sizes: arguments.update(sizes) or nn.Linear(2, 2)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    get_model("networks_of_mine:make", num_features=8, depth=0, cyclic=False, channels=3)
    assert arguments.items() >= {"num_features": 8, "depth": 0, "cyclic": False, "channels": 3}.items()
    assert "dropout" not in arguments


@pytest.mark.parametrize("shape", [(2, 3, 96, 112), (2, 1, 112, 112), (3, 112, 112)])
def test_images_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"expected \(B, 3, 112, 112\)"):
        get_model("small")(torch.zeros(shape))


@pytest.mark.parametrize(
    "name, example",
    [
        ("words.network:small_words", torch.ones(2, 32, dtype=torch.int64)),
        ("glyphs.network:small_glyphs", images(side=64)),
    ],
)
def test_a_student_has_the_weights_that_the_page_names(name, example):
    network = get_model(f"examples.{name}", num_features=128, image_size=64)
    assert network(example).shape == (2, 128)
    weights = sum(parameter.numel() for parameter in network.parameters())
    assert f"| {weights:,} |" in (ROOT / "docs" / "finetuning.md").read_text()
