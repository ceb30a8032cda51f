"""Chooses the MXNet wheel that fits this machine's GPUs and CUDA libraries, for install.sh and check.py.

It needs only the standard library, because it runs before anything is installed. `python cuda.py` prints shell
assignments.
"""

import ctypes
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
from typing import NamedTuple


class Wheel(NamedTuple):
    """A CUDA build of MXNet 1.9.1."""

    name: str  # name of the package
    toolkit: str  # release of the CUDA toolkit that it was built with
    driver: int  # minimum CUDA version of the driver, as cuDriverGetVersion returns it (11020 is 11.2)
    lowest: tuple[int, int]  # supported compute capabilities; newer GPUs cannot run it, because it has no PTX
    highest: tuple[int, int]
    libraries: list[str]  # NEEDED entries of its libmxnet.so


CU112 = (
    "libcudart.so.11.0 libcublas.so.11 libcufft.so.10 libcusolver.so.11 libcurand.so.10 libnvrtc.so.11.2 "
    "libnvToolsExt.so.1 libcudnn.so.8 libnccl.so.2"
)
CU101 = (
    "libcudart.so.10.1 libcublas.so.10 libcufft.so.10 libcusolver.so.10 libcurand.so.10 libnvrtc.so.10.1 "
    "libnvToolsExt.so.1 libcudnn.so.7 libnccl.so.2"
)
# cu112 has code up to sm_86, which also runs on 8.9 (RTX 40xx).
WHEELS = (
    Wheel("mxnet-cu112", "11.2", 11020, (5, 0), (8, 9), CU112.split()),
    Wheel("mxnet-cu101", "10.1", 10010, (3, 0), (7, 5), CU101.split()),
)
CPU_WHEEL = "mxnet"


class Machine(NamedTuple):
    """The GPUs, driver and CUDA installation of a machine."""

    capabilities: list[tuple[int, int]]
    names: list[str]
    driver: int
    libraries: dict[str, str]  # file name -> folder
    toolkits: dict[str, str]  # release -> CUDA folder that holds bin/nvcc
    nccl_header: str | None  # folder above include/nccl.h


class Choice(NamedTuple):
    """The chosen wheel, which install.sh writes to .venv/.partial_fc/cuda.env for env.sh, as PFC_WHEEL and so on."""

    wheel: str
    reason: str
    cuda_home: str
    nccl_home: str
    cuda_library_path: str  # folders that the dynamic linker does not search


def probe_gpus() -> tuple[list[tuple[int, int]], list[str], int]:
    """Returns the GPUs' compute capabilities and names, and the driver's CUDA version.

    It asks the driver, because nvidia-smi does not print compute capabilities with old drivers.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return [], [], 0
    count, version, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return [], [], 0
    cuda.cuDriverGetVersion(ctypes.byref(version))
    capabilities, names = [], []
    for device in range(count.value):
        pair = []
        for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
            cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            pair.append(value.value)
        name = ctypes.create_string_buffer(128)
        cuda.cuDeviceGetName(name, 128, device)
        capabilities.append((pair[0], pair[1]))
        names.append(name.value.decode(errors="replace"))
    return capabilities, names, version.value


def library_folders() -> dict[str, str]:
    """Returns the folders of libraries by file name: LD_LIBRARY_PATH, the linker's cache, then the usual folders."""
    found: dict[str, str] = {}

    def collect(folder: str) -> None:
        for path in glob.glob(os.path.join(glob.escape(folder), "*.so.*")) if folder else ():
            found.setdefault(os.path.basename(path), folder)

    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        collect(folder)
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:" + os.environ.get("PATH", ""))
    if ldconfig:
        cache = subprocess.run([ldconfig, "-p"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        for name, path in re.findall(r"^\s*(\S+) \(.*x86-64.*\) => (\S+)", cache, re.MULTILINE):
            found.setdefault(name, os.path.dirname(path))
    for home in cuda_homes():
        for sub in ("lib64", "targets/x86_64-linux/lib"):
            collect(os.path.join(home, sub))
    return found


def cuda_homes() -> list[str]:
    """Returns the CUDA folders of this machine."""
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", "")]
    homes += ["/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-*"), reverse=True)]
    nvcc = shutil.which("nvcc")
    if nvcc:
        homes.append(os.path.dirname(os.path.dirname(os.path.realpath(nvcc))))
    return list(dict.fromkeys(home for home in homes if home and os.path.isdir(home)))


def toolkits() -> dict[str, str]:
    """Returns the CUDA folder of each nvcc by release ("11.2"). Horovod compiles CUDA code if MXNet has CUDA."""
    found: dict[str, str] = {}
    for home in cuda_homes():
        nvcc = os.path.join(home, "bin", "nvcc")
        if not os.access(nvcc, os.X_OK):
            continue
        text = subprocess.run([nvcc, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
        release = re.search(r"release (\d+\.\d+)", text)
        if release:
            found.setdefault(release.group(1), home)
    return found


def nccl_home() -> str | None:
    """Returns the folder above include/nccl.h."""
    folders = [os.environ.get("NCCL_HOME", ""), os.environ.get("HOROVOD_NCCL_HOME", ""), *cuda_homes(), "/usr"]
    return next((home for home in folders if home and os.path.isfile(f"{home}/include/nccl.h")), None)


def probe(requested: str = "") -> Machine:
    """Describes this machine. Without a GPU, it searches libraries only if a wheel is requested."""
    capabilities, names, driver = probe_gpus()
    if not capabilities and not requested:
        return Machine([], [], driver, {}, {}, None)
    return Machine(capabilities, names, driver, library_folders(), toolkits(), nccl_home())


def choose(machine: Machine) -> Choice:
    """Chooses the wheel for this machine; the CPU wheel if no CUDA wheel can work."""
    if not machine.capabilities:
        return Choice(CPU_WHEEL, "no NVIDIA GPU with a working driver was found", "", "", "")
    problems = []
    for wheel in WHEELS:
        problem = incompatibility(wheel, machine)
        if problem is None:
            return accept(wheel, machine, f"{machine.names[0]} with CUDA {wheel.toolkit} libraries")
        problems.append(f"{wheel.name} {problem}")
    gpus = ", ".join(f"{name} ({major}.{minor})" for name, (major, minor) in zip(machine.names, machine.capabilities))
    return Choice(CPU_WHEEL, f"{gpus}: " + "; ".join(problems), "", "", "")


def choose_requested(requested: str, machine: Machine) -> Choice:
    """Chooses the wheel that MXNET_WHEEL names. It needs no GPU: container images are built on machines without one.

    Raises:
        ValueError: There is no such wheel, or CUDA libraries that it needs are missing.
    """
    if requested == CPU_WHEEL:
        return Choice(CPU_WHEEL, "MXNET_WHEEL requests it", "", "", "")
    wheel = {wheel.name: wheel for wheel in WHEELS}.get(requested)
    if wheel is None:
        known = ", ".join([CPU_WHEEL, *(wheel.name for wheel in WHEELS)])
        raise ValueError(f"MXNET_WHEEL={requested} is not a supported wheel of MXNet 1.9.1, expected one of {known}.")
    missing = missing_parts(wheel, machine)
    if missing:
        raise ValueError(f"MXNET_WHEEL={requested} {missing}.")
    return accept(wheel, machine, "MXNET_WHEEL requests it")


def incompatibility(wheel: Wheel, machine: Machine) -> str | None:
    """Returns why a wheel cannot run on a machine; None if it can."""
    for major, minor in machine.capabilities:
        if not wheel.lowest <= (major, minor) <= wheel.highest:
            low, high = wheel.lowest, wheel.highest
            return f"has code for compute capability {low[0]}.{low[1]} to {high[0]}.{high[1]}, not {major}.{minor}"
    if machine.driver < wheel.driver:
        return f"needs a driver for CUDA {wheel.toolkit} or newer"
    return missing_parts(wheel, machine)


def missing_parts(wheel: Wheel, machine: Machine) -> str | None:
    """Returns what a wheel needs and the machine lacks; None if nothing is missing."""
    missing = [library for library in wheel.libraries if library not in machine.libraries]
    if missing:
        return f"needs {', '.join(missing)} (CUDA {wheel.toolkit}, cuDNN, NCCL 2)"
    if toolkit_for(wheel, machine) is None:
        return f"needs nvcc of CUDA {wheel.toolkit.split('.')[0]} to build Horovod (set CUDA_HOME)"
    return None


def toolkit_for(wheel: Wheel, machine: Machine) -> str | None:
    """Returns the toolkit of the wheel's release, or the newest of the same major release, which is compatible."""
    major = wheel.toolkit.split(".")[0]
    fitting = {release: home for release, home in machine.toolkits.items() if release.split(".")[0] == major}
    if not fitting:
        return None
    newest = max(fitting, key=lambda release: tuple(int(part) for part in release.split(".")))
    return fitting.get(wheel.toolkit, fitting[newest])


def accept(wheel: Wheel, machine: Machine, reason: str) -> Choice:
    """Returns the choice of a wheel that fits the machine."""
    folders = dict.fromkeys(machine.libraries[library] for library in wheel.libraries)
    unsearched = [folder for folder in folders if not folder.startswith(("/lib/", "/usr/lib"))]
    home = toolkit_for(wheel, machine) or ""
    return Choice(wheel.name, reason, home, machine.nccl_header or "", ":".join(unsearched))


def main() -> None:
    requested = os.environ.get("MXNET_WHEEL", "")
    machine = probe(requested)
    try:
        choice = choose_requested(requested, machine) if requested else choose(machine)
    except ValueError as error:
        sys.exit(f"setup: {error}")
    for name, value in choice._asdict().items():
        print(f"PFC_{name.upper()}={shlex.quote(value)}")


if __name__ == "__main__":
    main()
