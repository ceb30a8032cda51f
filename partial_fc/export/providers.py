"""Where onnxruntime computes: on a GPU, if its build has CUDA and finds the libraries, and why not otherwise."""

import contextlib
import glob
import io
from collections.abc import Mapping, Sequence

import onnxruntime

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
INSTALL = "pip uninstall -y onnxruntime && pip install 'onnxruntime-gpu[cuda,cudnn]'"


def wanted_providers() -> list[str]:
    """Returns the providers for a session, the best first; loads the libraries of CUDA that pip has installed."""
    if CUDA not in onnxruntime.get_available_providers():
        return [CPU]
    if hasattr(onnxruntime, "preload_dlls"):  # since 1.21
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what is missing: see why_on_cpu
            onnxruntime.preload_dlls()
    return [CUDA, CPU]


def why_on_cpu(environment: Mapping[str, str], available: Sequence[str], used: Sequence[str]) -> str | None:
    """Returns why a session computes on the CPU although there is a GPU, or one was asked for; None if all is well.

    Args:
        environment: its CUDA_VISIBLE_DEVICES asks for GPUs, or for none if it is empty.
        available: the providers of this build of onnxruntime.
        used: those of the session.
    """
    asked = environment.get("CUDA_VISIBLE_DEVICES")
    if CUDA in used or asked in ("", "-1") or (asked is None and not glob.glob("/dev/nvidia[0-9]*")):
        return None
    version = f"onnxruntime {onnxruntime.__version__}"
    if CUDA not in available:
        return f"{version} is a build without CUDA and computes on the CPU; for the GPU: {INSTALL}"
    return (
        f"{version} cannot use the GPU and computes on the CPU: its libraries of CUDA and cuDNN are missing, or the "
        f"driver is older than they are, see nvidia-smi; both libraries come with: {INSTALL}"
    )
