"""Selects onnxruntime's GPU if possible, and explains why it is not used otherwise."""

import contextlib
import glob
import io
from collections.abc import Mapping, Sequence

import onnxruntime

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
INSTALL = "pip uninstall -y onnxruntime && pip install 'onnxruntime-gpu[cuda,cudnn]'"


def wanted_providers() -> list[str]:
    """Returns the providers for a session in order of preference, and loads CUDA libraries installed by pip."""
    if CUDA not in onnxruntime.get_available_providers():
        return [CPU]
    if hasattr(onnxruntime, "preload_dlls"):  # since 1.21
        with contextlib.redirect_stdout(io.StringIO()):  # it prints missing libraries, which why_on_cpu reports
            onnxruntime.preload_dlls()
    return [CUDA, CPU]


def why_on_cpu(environment: Mapping[str, str], available: Sequence[str], used: Sequence[str]) -> str | None:
    """Returns why a session runs on the CPU although there is a GPU or the user has selected one; None otherwise.

    Args:
        environment: environment variables, with the user's CUDA_VISIBLE_DEVICES.
        available: providers of this build of onnxruntime.
        used: providers of the session.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if CUDA in used or visible in ("", "-1") or (visible is None and not glob.glob("/dev/nvidia[0-9]*")):
        return None
    version = f"onnxruntime {onnxruntime.__version__}"
    if CUDA not in available:
        return f"{version} is a build without CUDA and computes on the CPU; for the GPU: {INSTALL}"
    return (
        f"{version} cannot use the GPU and computes on the CPU: its libraries of CUDA and cuDNN are missing, or the "
        f"driver is older than they are, see nvidia-smi; both libraries come with: {INSTALL}"
    )
