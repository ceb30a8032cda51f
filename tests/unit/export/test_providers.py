"""Why a model computes on the CPU, where a GPU was asked for."""

import pytest

from partial_fc.export import providers
from partial_fc.export.model import FaceModel
from partial_fc.export.providers import CPU, CUDA, why_on_cpu
from tiny_onnx import TinyModel


@pytest.mark.parametrize(
    "asked, available, used, reason",
    [
        (
            "0",
            [CPU],
            [CPU],
            "is a build without CUDA and computes on the CPU; for the GPU: pip uninstall -y onnxruntime",
        ),
        ("0", [CUDA, CPU], [CPU], "cannot use the GPU and computes on the CPU: its libraries of CUDA and cuDNN"),
        ("0", [CUDA, CPU], [CUDA, CPU], None),
        ("", [CPU], [CPU], None),
        ("-1", [CUDA, CPU], [CPU], None),
    ],
)
def test_the_reason_is_named_if_a_gpu_was_asked_for(asked, available, used, reason):
    found = why_on_cpu({"CUDA_VISIBLE_DEVICES": asked}, available, used)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize("gpus", [[], ["/dev/nvidia0"]])
def test_a_gpu_of_the_host_is_asked_for_unless_it_is_hidden(gpus, monkeypatch):
    monkeypatch.setattr(providers.glob, "glob", lambda pattern: gpus)
    assert bool(why_on_cpu({}, [CPU], [CPU])) == bool(gpus)
    assert why_on_cpu({"CUDA_VISIBLE_DEVICES": ""}, [CPU], [CPU]) is None


def test_opening_a_model_says_so(tmp_path, monkeypatch, capsys):
    path = TinyModel().write(tmp_path / "model.onnx")
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: [CPU])
    for asked, lines in (("0", 1), ("", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", asked)
        FaceModel.open(path)
        assert capsys.readouterr().err.count("\n") == lines


def test_the_libraries_of_pip_are_loaded_for_a_build_with_cuda(monkeypatch, capsys):
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr("onnxruntime.preload_dlls", lambda: print("Failed to load libcudart"), raising=False)
    assert providers.wanted_providers() == [CUDA, CPU] and not capsys.readouterr().out
