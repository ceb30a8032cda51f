"""What suits a GPU, from facts about GPUs that are not there."""

import importlib
from types import SimpleNamespace

import pytest
import torch

import default
from partial_fc_torch import ArcFace, PartialFC_V2, device_defaults, device_report
from partial_fc_torch.device_defaults import (
    GpuFacts,
    LogitsCache,
    gpu_facts,
    gpu_of_rank,
    gpu_tile_classes,
    layer_type,
    require_different_gpus,
    require_enough_gpus,
)
from partial_fc_torch.device_report import device_line, precision_line
from partial_fc_torch.optimizers import build_optimizer
from paths import ROOT

GIB = 1 << 30
# Data sheets: L2 cache, bandwidth of the memory, multiprocessors.
H100 = GpuFacts("H100", (9, 0), 80 * GIB, 50 << 20, 3.35e12, 132)
RTX_4090 = GpuFacts("RTX 4090", (8, 9), 24 * GIB, 72 << 20, 1.008e12, 128)
A100 = GpuFacts("NVIDIA A100-SXM4-40GB", (8, 0), 40 * GIB, 40 << 20, 1.5552e12, 108)
V100 = GpuFacts("V100", (7, 0), 16 * GIB, 6 << 20, 0.9e12, 80)


@pytest.mark.parametrize("visible, expected", [(1, [0, 0, 0, 0]), (4, [0, 1, 2, 3]), (8, [0, 1, 2, 3])])
def test_a_rank_has_the_gpu_of_its_number_or_the_only_one_it_sees(visible, expected):
    require_enough_gpus(4, visible)
    assert [gpu_of_rank(local_rank, visible) for local_rank in range(4)] == expected


def test_too_few_gpus_are_refused():
    with pytest.raises(ValueError, match="4 ranks on this host, but it has 3 GPUs: start one rank per GPU"):
        require_enough_gpus(4, 3)


def test_ranks_with_the_same_gpu_are_named():
    own = [("a", "GPU-1"), ("a", "GPU-2"), ("b", "GPU-3")]
    require_different_gpus(own)
    with pytest.raises(ValueError, match=r"ranks 1, 3 on a have the same GPU GPU-2 \(3 GPUs for 4 ranks\): start one"):
        require_different_gpus([*own, ("a", "GPU-2")])


@pytest.mark.parametrize(
    "asked, gpu, expected",
    [
        ("auto", None, "float32"),
        ("auto", V100, "float32"),
        ("auto", RTX_4090, "tf32"),
        ("float32", H100, "float32"),
        (torch.bfloat16, H100, torch.bfloat16),
    ],
)
def test_products_are_in_tf32_on_gpus_that_have_it_unless_asked_otherwise(asked, gpu, expected):
    assert layer_type(asked, gpu) == expected


def test_an_unknown_type_is_refused():
    with pytest.raises(
        ValueError, match="layer_dtype is int8, expected auto or one of float32, tf32, bfloat16, float16"
    ):
        PartialFC_V2(ArcFace(), 4, 10, layer_dtype="int8")


@pytest.mark.parametrize("batch, in_cache", [(128, False), (512, True), (1024, True), (8192, True)])
def test_tiles_lie_in_a_large_cache_beside_a_slow_memory_and_occupy_the_card(batch, in_cache):
    of_class = 4 * (2 * 512 + batch)
    size = gpu_tile_classes(batch, 512, RTX_4090)
    assert size % 64 == 0 and (size * of_class <= RTX_4090.cache) == in_cache
    assert size * batch >= 2 * 128 * 128 * RTX_4090.processors
    for gpu in (
        H100,
        A100,
        V100,
        RTX_4090._replace(bandwidth=0.0),
        None,
    ):  # the host would launch its kernels too slowly
        assert 0 <= 256 * 2**20 - gpu_tile_classes(batch, 512, gpu) * of_class < 64 * of_class


def test_the_cache_of_logits_takes_what_the_first_step_leaves_free(monkeypatch):
    free = 50 * GIB
    monkeypatch.setattr(device_defaults, "gpu_facts", lambda device: H100 if device.type == "cuda" else None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, H100.memory))

    def limits(cache, device):
        """Of two forward passes, and of two others after a step."""
        found = []
        for cache.stepped in (False, False, True, True):
            found.append(cache.limit(torch.device(device)))
        return found

    later = free - 8 * GIB + (256 << 20)  # a tenth stays free
    assert limits(LogitsCache(None), "cuda") == [256 << 20, 256 << 20, later, later]
    assert limits(LogitsCache(None), "cpu") == [256 << 20] * 4 and limits(LogitsCache(5), "cuda") == [5] * 4
    free = GIB
    assert limits(LogitsCache(None), "cuda") == [256 << 20] * 4


def test_some_tiles_may_be_cached_and_others_not(monkeypatch):
    """As on a GPU; the numbers are those of all and of none."""
    features, results = torch.randn(6, 4), []
    for cached in (0, 2, 5):
        monkeypatch.setattr("partial_fc_torch.layer.torch_passes.cached_tiles", lambda *_, cached=cached: cached)
        layer, local = PartialFC_V2(ArcFace(), 4, 14, tile_classes=3), features.clone().requires_grad_()
        loss = layer(local, torch.arange(6))
        loss.backward()
        results.append((loss.detach(), local.grad, layer.weight.grad))
    for others in results[1:]:
        torch.testing.assert_close(others, results[0], rtol=1e-3, atol=1e-3)


def test_there_are_no_facts_of_a_cpu_or_of_a_device_without_one():
    assert gpu_facts(torch.device("cpu")) is gpu_facts(torch.device("meta")) is None


def test_the_lines_of_a_start_say_what_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(device_report, "gpu_facts", lambda device: H100 if device.type == "cuda" else None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (79 * GIB, H100.memory))
    monkeypatch.setattr(device_report, "DRIVER", tmp_path / "version")
    assert ", driver unknown, PyTorch " in device_line(torch.device("cuda", 1))
    (tmp_path / "version").write_text("580.65.06\n")
    line = device_line(torch.device("cuda", 1))
    assert line.startswith("GPU H100, compute capability 9.0, 84.8 GB of 85.9 GB free, driver 580.65.06, PyTorch 2.")
    assert device_line(torch.device("cpu")).endswith(f"PyTorch {torch.__version__}")
    settings = default.generate_config(changes={"bf16": True, "num_classes": 10, "batch_size": 128}, trainer="torch")
    lines = [precision_line(settings, torch.device(device), 8) for device in ("cuda", "cpu")]
    assert lines[0].startswith("backbone in bfloat16, its gradients averaged in float32, layer in tf32, without ")
    assert lines[0].endswith(", logits cached as far as memory is free")
    assert "layer in float32" in lines[1] and lines[1].endswith(", logits cached up to 256 MiB")


@pytest.fixture
def four_gpus(monkeypatch):
    """GPUs as PyTorch describes them, in its own words and units."""
    found = SimpleNamespace(
        name="NVIDIA A100-SXM4-40GB",
        major=8,
        minor=0,
        total_memory=40 * GIB,
        L2_cache_size=40 << 20,
        memory_clock_rate=1_215_000,
        memory_bus_width=5120,
        multi_processor_count=108,
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (39 * GIB, 40 * GIB))
    gpu_facts.cache_clear()
    yield
    gpu_facts.cache_clear()


def test_the_bandwidth_follows_from_clock_and_bus(four_gpus):
    facts = gpu_facts(torch.device("cuda", 3))
    assert facts == GpuFacts(
        "NVIDIA A100-SXM4-40GB", (8, 0), 40 * GIB, 40 << 20, pytest.approx(1.555e12, rel=1e-3), 108
    )


def test_check_sh_has_a_line_for_each_gpu(four_gpus, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "setup-utils")
    exec(importlib.import_module("check_torch").GPUS, {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[0] == lines[3] and lines[0].endswith("layer in tf32 by default")
    assert lines[0].startswith("GPU NVIDIA A100-SXM4-40GB, compute capability 8.0, 41.9 GB of 42.9 GB free, driver ")


@pytest.mark.parametrize(
    "name, options, fused",
    [
        ("sgd", {}, True),
        ("adamw", {"eps": 1e-6}, True),
        ("sgd", {"foreach": True}, False),
        ("adamw", {"fused": False}, False),
    ],
)
def test_an_optimizer_is_fused_unless_its_options_say_how_it_computes(name, options, fused):
    optimizer = build_optimizer(torch.nn.Linear(2, 2), name, options=options, fused=True)
    assert optimizer.skips_overflows == fused


def test_a_step_of_the_layer_is_one():
    layer = PartialFC_V2(ArcFace(), 4, 14)
    cache, local = layer._softmax.passes.of_torch.logits_cache, torch.randn(6, 4, requires_grad=True)
    loss = layer(local, torch.arange(6))
    assert not cache.stepped
    loss.backward()
    assert cache.stepped
