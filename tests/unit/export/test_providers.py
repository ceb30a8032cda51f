"""Why a model runs on the CPU although the user has selected a GPU."""

import pytest

from partial_fc.export import providers
from partial_fc.export.model import FaceModel
from partial_fc.export.providers import CPU, CUDA, why_on_cpu
from tiny_onnx import TinyModel


@pytest.mark.parametrize(
    "visible, gpus, available, used, reason",
    [
        ("0", [], [CPU], [CPU], "is a build without CUDA"),
        ("0", [], [CUDA, CPU], [CPU], "its libraries of CUDA and cuDNN are missing"),
        ("0", [], [CUDA, CPU], [CUDA, CPU], None),
        ("", ["/dev/nvidia0"], [CPU], [CPU], None),
        ("-1", ["/dev/nvidia0"], [CUDA, CPU], [CPU], None),
        (None, [], [CPU], [CPU], None),
        (None, ["/dev/nvidia0"], [CPU], [CPU], "is a build without CUDA"),
    ],
)
def test_the_reason_is_named_unless_there_is_no_gpu_or_it_is_hidden(
    visible, gpus, available, used, reason, monkeypatch
):
    monkeypatch.setattr(providers.glob, "glob", lambda pattern: gpus)
    message = why_on_cpu({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, available, used)
    assert message is None if reason is None else reason in message


def test_opening_a_model_prints_the_reason(tmp_path, monkeypatch, capsys):
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
