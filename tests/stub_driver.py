"""A stub of libcuda, for code that asks the driver for its GPUs."""

import subprocess
from pathlib import Path

SOURCE = """
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = DRIVER; return 0; }
int cuDeviceGetCount(int *count) { *count = GPUS; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 9 : 0; return 0; }
int cuDeviceGetName(char *name, int length, int device) { name[0] = 'G'; name[1] = 0; return 0; }
"""


def stub_driver(folder: Path, gpus: int, driver: int) -> str:
    """Compiles the stub; returns the folder for LD_LIBRARY_PATH. ``driver`` is its CUDA version, 12020 for 12.2."""
    (folder / "cuda.c").write_text(SOURCE)
    numbers = [f"-DGPUS={gpus}", f"-DDRIVER={driver}"]
    subprocess.run(["cc", "-shared", "-fPIC", *numbers, "-o", "libcuda.so.1", "cuda.c"], cwd=folder, check=True)
    return str(folder)
