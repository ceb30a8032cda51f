"""Checks .venv-torch for check.py: the build of PyTorch, the packages, and two processes that communicate."""

import os

from environment import CLONE, TORCH, last_line, run

from partial_fc.utils.check_rows import Row

# Prints release, CUDA version, transports, number of GPUs and of threads, separated by spaces.
FACTS = """
import torch, torch.distributed as dist
on = [name for name in ("gloo", "nccl") if getattr(dist, f"is_{name}_available")()]
print(torch.__version__, torch.version.cuda or "none", "+".join(on), torch.cuda.device_count(), torch.get_num_threads())
"""


def check_build(gpus: int) -> Row:
    """Checks whether PyTorch imports, has Gloo, and sees this machine's ``gpus`` GPUs."""
    code, text = TORCH.python(FACTS)
    if code:
        return Row("bad", "PyTorch", f"does not import: {last_line(text)}", TORCH.rebuild)
    release, cuda, transports, seen, threads = last_line(text).split()
    found = f"{release} | CUDA {cuda} | {transports} | GPUs seen: {seen} | {threads} threads"
    if "gloo" not in transports:
        return Row("bad", "PyTorch", found, f"a build without Gloo: TORCH=torch {TORCH.install}")
    if gpus and seen == "0" and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        driver = 'an older driver needs TORCH="torch --index-url https://download.pytorch.org/whl/cu126"'
        return Row("warn", "PyTorch", found, f"trains on the CPU; for the GPUs: TORCH=torch {TORCH.install}; {driver}")
    return Row("ok", "PyTorch", found)


# Prints a line for each GPU that PyTorch sees, with the layer's default type.
GPUS = """
import torch
from partial_fc_torch.device_defaults import gpu_facts, layer_type
from partial_fc_torch.device_report import device_line
for number in range(torch.cuda.device_count()):
    device = torch.device("cuda", number)
    print(f"{device_line(device)}, layer in {layer_type('auto', gpu_facts(device))} by default")
"""


def check_gpus() -> list[Row]:
    """Checks the GPUs that PyTorch can use."""
    code, text = TORCH.python(GPUS)
    if code:
        return [Row("bad", "PyTorch's GPUs", last_line(text), f"another build: TORCH=torch {TORCH.install}")]
    return [Row("ok", f"cuda:{number}", line) for number, line in enumerate(text.splitlines())]


# Prints what Triton's compiler of kernels needs and does not find, see triton/runtime/build.py.
MISSING = """
import os, shutil, sysconfig
compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
print(" and ".join(["a C compiler"] * (not compiler) + [header] * (not os.path.exists(header))) or "nothing")
"""


def check_compiler() -> Row:
    """Checks whether kernels can be compiled at run time."""
    _, text = TORCH.python(MISSING)
    if last_line(text) != "nothing":
        lacking = f"not found: {last_line(text)}; the layer computes with PyTorch's operators, which take longer"
        return Row("warn", "the layer's kernels", lacking, "Debian and Ubuntu: apt-get install gcc python3-dev")
    return Row("ok", "the layer's kernels", "a C compiler and Python.h were found, with which Triton starts kernels")


def check_two_processes() -> Row:
    programs = [os.path.join(CLONE, *path) for path in (("pytorch", "launch.py"), ("setup-utils", "two_processes.py"))]
    command = [TORCH.interpreter, programs[0], "--nproc_per_node=2", programs[1]]
    code, text = run("env", "OMP_NUM_THREADS=1", *command, seconds=90)
    if code:
        errors = [line for line in text.splitlines() if "Error" in line] or [last_line(text)]
        fix = f"see: {' '.join(command)}"
        return Row("bad", "torchrun", f"two processes over Gloo failed: {errors[0]}", fix)
    return Row("ok", "torchrun", "allreduce and allgather between two processes over Gloo give correct results")


def collect(gpus: int) -> list[Row]:
    build = check_build(gpus)
    if build.mark == "bad":
        return [build]
    packages = TORCH.check_packages("its packages", "psutil, torch.utils.tensorboard", "tensorboard")
    return [build, *([*check_gpus(), check_compiler()] if gpus else ()), packages, check_two_processes()]
