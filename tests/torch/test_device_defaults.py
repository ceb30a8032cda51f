"""Defaults for GPUs, from the properties of GPUs that this machine does not have."""

import importlib
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import default
from partial_fc_torch import ArcFace, PartialFC_V2, device_report
from partial_fc_torch.device_defaults import (
    GpuFacts,
    gpu_facts,
    gpu_of_rank,
    gpu_tile_classes,
    layer_type,
    require_different_gpus,
    require_enough_gpus,
)
from partial_fc_torch.device_report import device_line, precision_line
from partial_fc_torch.layer import torch_passes
from partial_fc_torch.layer.torch_passes import LogitsCache
from partial_fc_torch.optimizers import build_optimizer
from paths import ROOT

GIB = 1 << 30
# Data sheets: L2 cache, bandwidth of the memory, multiprocessors.
H100 = GpuFacts("H100", (9, 0), 80 * GIB, 50 << 20, 3.35e12, 132)
RTX_4090 = GpuFacts("RTX 4090", (8, 9), 24 * GIB, 72 << 20, 1.008e12, 128)
V100 = GpuFacts("V100", (7, 0), 16 * GIB, 6 << 20, 0.9e12, 80)


@pytest.mark.parametrize("visible, expected", [(1, [0, 0, 0, 0]), (4, [0, 1, 2, 3]), (8, [0, 1, 2, 3])])
def test_a_rank_uses_the_gpu_of_its_local_rank_or_the_only_visible_one(visible, expected):
    require_enough_gpus(4, visible)
    assert [gpu_of_rank(local_rank, visible) for local_rank in range(4)] == expected


def test_too_few_gpus_and_shared_gpus_are_refused():
    with pytest.raises(ValueError, match="4 ranks .* 3 GPUs"):
        require_enough_gpus(4, 3)
    different = [("a", "GPU-1"), ("a", "GPU-2"), ("b", "GPU-2")]
    require_different_gpus(different)
    with pytest.raises(ValueError, match=r"ranks 1, 3 on a .* GPU-2"):
        require_different_gpus([*different, ("a", "GPU-2")])


@pytest.mark.parametrize(
    "requested, gpu, expected",
    [
        ("auto", None, "float32"),
        ("auto", V100, "float32"),
        ("auto", RTX_4090, "float16"),
        ("float32", H100, "float32"),
        (torch.bfloat16, H100, torch.bfloat16),
    ],
)
def test_products_use_float16_on_gpus_with_tf32_unless_set_otherwise(requested, gpu, expected):
    assert layer_type(requested, gpu) == expected


def test_an_unknown_type_is_refused():
    with pytest.raises(ValueError, match="layer_dtype is int8"):
        PartialFC_V2(ArcFace(), 4, 10, layer_dtype="int8")


@pytest.mark.parametrize("batch, in_cache", [(128, False), (512, True), (8192, True)])
def test_tiles_fit_into_a_large_cache_beside_a_slow_memory(batch, in_cache):
    class_bytes = 4 * (2 * 512 + batch)
    size = gpu_tile_classes(batch, 512, RTX_4090)
    assert size % 64 == 0 and (size * class_bytes <= RTX_4090.cache) == in_cache
    assert size * batch >= 2 * 128 * 128 * RTX_4090.processors
    for gpu in (H100, V100, RTX_4090._replace(bandwidth=0.0), None):  # its kernels would be too short
        assert 0 <= 256 * 2**20 - gpu_tile_classes(batch, 512, gpu) * class_bytes < 64 * class_bytes


def test_the_logits_cache_takes_what_the_first_step_leaves_free(monkeypatch):
    free = 50 * GIB
    monkeypatch.setattr(torch_passes, "gpu_facts", lambda device: H100 if device.type == "cuda" else None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, H100.memory))

    def limits(cache, device):
        """Limits of two forward passes before the end of the first step, and of two after it."""
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
    """As on a GPU; a CPU caches all tiles or none."""
    features, results = torch.randn(6, 4), []
    for cached in (0, 2, 5):
        monkeypatch.setattr(
            "partial_fc_torch.layer.torch_passes.TorchPasses._cached_tiles", lambda *_, cached=cached: cached
        )
        layer, local = PartialFC_V2(ArcFace(), 4, 14, tile_classes=3), features.clone().requires_grad_()
        loss = layer(local, torch.arange(6))
        loss.backward()
        results.append((loss.detach(), local.grad, layer.weight.grad))
    for others in results[1:]:
        torch.testing.assert_close(others, results[0], rtol=1e-3, atol=1e-3)


def test_the_log_describes_device_and_precision(tmp_path, monkeypatch):
    monkeypatch.setattr(device_report, "gpu_facts", lambda device: H100 if device.type == "cuda" else None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (79 * GIB, H100.memory))
    monkeypatch.setattr(device_report, "DRIVER", tmp_path / "version")
    assert ", driver unknown, PyTorch " in device_line(torch.device("cuda", 1))
    (tmp_path / "version").write_text("580.65.06\n")
    line = device_line(torch.device("cuda", 1))
    assert line.startswith("GPU H100, compute capability 9.0, 84.8 GB of 85.9 GB free, driver 580.65.06, PyTorch 2.")
    assert device_line(torch.device("cpu")).endswith(f"PyTorch {torch.__version__}")
    settings = default.generate_config(changes={"bf16": True, "num_classes": 10, "batch_size": 128}, trainer="torch")
    on_gpu, on_cpu = (precision_line(settings, torch.device(device), 8) for device in ("cuda", "cpu"))
    assert "backbone in bfloat16" in on_gpu and "layer in float16" in on_gpu and "as far as memory is free" in on_gpu
    assert "kernels if they can be used" in on_gpu and "kernels" not in on_cpu
    assert "layer in float32" in on_cpu and on_cpu.endswith("up to 256 MiB")


def test_check_sh_says_what_compiling_kernels_lacks(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "setup-utils")
    check = importlib.import_module("check_torch")

    def row(header, **variables):
        code = f"import sysconfig; sysconfig.get_paths = lambda: {{'include': {str(header.parent)!r}}}{check.MISSING}"
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PATH": "", **variables}, stdout=-1, text=True, check=True
        )
        monkeypatch.setattr(check, "TORCH", SimpleNamespace(python=lambda _: (0, done.stdout.strip())))
        return check.check_compiler()

    header = tmp_path / "Python.h"
    assert f"not found: a C compiler and {header};" in row(header).found
    header.touch()
    lacking = row(header)
    assert lacking.mark == "warn" and "not found: a C compiler;" in lacking.found and "gcc python3-dev" in lacking.fix
    assert row(header, CC="cc").mark == "ok"


def test_check_sh_has_a_line_for_each_gpu(monkeypatch, capsys):
    """With the GPUs' properties under PyTorch's names and in its units."""
    properties = SimpleNamespace(
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
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (39 * GIB, 40 * GIB))
    monkeypatch.syspath_prepend(ROOT / "setup-utils")
    gpu_facts.cache_clear()
    exec(importlib.import_module("check_torch").GPUS, {})
    facts = gpu_facts(torch.device("cuda", 3))
    gpu_facts.cache_clear()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[0] == lines[3] and lines[0].endswith("layer in float16 by default")
    assert lines[0].startswith("GPU NVIDIA A100-SXM4-40GB, compute capability 8.0, 41.9 GB of 42.9 GB free, driver ")
    assert facts[1:] == ((8, 0), 40 * GIB, 40 << 20, pytest.approx(1.555e12, rel=1e-3), 108)


@pytest.mark.parametrize(
    "name, options, fused", [("sgd", {}, True), ("sgd", {"foreach": True}, False), ("adamw", {"fused": False}, False)]
)
def test_an_optimizer_is_fused_unless_its_options_say_otherwise(name, options, fused):
    optimizer = build_optimizer(torch.nn.Linear(2, 2), name, options=options, fused=True)
    assert optimizer.skips_overflows == fused
