"""Checks the installation on this machine, and prints problems and how to fix them. check.sh runs it.

It needs only the standard library, so it runs even if nothing is installed. Checks that could crash, such as importing
MXNet with the wrong CUDA or starting MPI, run in a child process.
"""

import glob
import os
import platform
import re
import shutil
import sys

import check_torch
import cuda
from environment import CLONE, MXNET, TORCH, last_line, run

from partial_fc.utils.check_rows import Row, failed_checks, print_rows
from partial_fc.utils.cli import run_module
from partial_fc.utils.cores import usable_cores


def check_python() -> Row:
    version = platform.python_version()
    if not (3, 10) <= sys.version_info[:2] <= (3, 13):
        return Row("bad", "Python", version, f"MXNet runs on 3.10 to 3.13: PYTHON=/path/to/one {MXNET.install}")
    return Row("ok", "Python", f"{version} ({sys.executable})")


def check_compiler() -> Row:
    missing = [tool for tool in (os.environ.get("CXX", "g++"), "make") if not shutil.which(tool)]
    if missing:
        fix = "apt-get install build-essential   or   dnf install gcc gcc-c++ make"
        # A Horovod that is already built runs without them.
        mark = "warn" if MXNET.recorded("horovod") else "bad"
        return Row(mark, "compiler", f"{' and '.join(missing)} missing: Horovod cannot be built", fix)
    return Row("ok", "compiler", run(os.environ.get("CXX", "g++"), "--version")[1].splitlines()[0])


def check_mxnet() -> Row:
    code, text = MXNET.python(
        "import mxnet as mx; on = mx.runtime.Features();"
        "print(mx.__version__, '|', ' '.join(f for f in ('CUDA', 'CUDNN', 'NCCL', 'MKLDNN', 'OPENCV', 'OPENMP')"
        " if on.is_enabled(f)), '| GPUs seen:', mx.context.num_gpus())"
    )
    if code:
        # A CUDA wheel cannot be imported without the driver's library.
        fix = "containers: docker run --gpus all" if "libcuda.so.1" in text else MXNET.rebuild
        return Row("bad", "MXNet", f"does not import: {last_line(text)}", fix)
    return Row("ok", "MXNet", last_line(text))


def check_horovod() -> Row:
    code, text = MXNET.python("import horovod, horovod.mxnet; print(horovod.__version__)")
    if code:
        return Row("bad", "Horovod", f"does not import: {last_line(text)}", MXNET.rebuild)
    build = run(os.path.join(MXNET.path, "bin", "horovodrun"), "--check-build")[1]
    parts = {name: mark == "X" for mark, name in re.findall(r"\[(.)\] (\w+)", build)}
    missing = [name for name in ("MXNet", "MPI", "Gloo") if not parts.get(name)]
    # --check-build always reports PyTorch, even if Horovod was built without it.
    shown = "  ".join(f"[{'X' if parts.get(name) else ' '}] {name}" for name in ("MXNet", "MPI", "Gloo", "NCCL"))
    row = Row("ok", "Horovod", f"{last_line(text)}  {shown}  (horovodrun always prints [X] PyTorch)")
    if missing:
        row = row._replace(mark="bad", fix=f"built without {', '.join(missing)}: {MXNET.rebuild}")
    elif "mxnet-cu" in MXNET.recorded("cuda.env") and not parts.get("NCCL"):
        row = row._replace(mark="warn", fix=f"GPUs are faster with NCCL: install it with headers, then {MXNET.rebuild}")
    return row


def check_mpi() -> list[Row]:
    mpirun = shutil.which("mpirun")
    if not mpirun:
        return [Row("bad", "MPI", "no mpirun", "bash setup-utils/install-mpi.sh")]
    text = run(mpirun, "--version")[1].splitlines()
    origin = "from the wheel" if mpirun.startswith(MXNET.path) else "installed on the system"
    first = text[0] if text else "no output"
    if not re.search(r"Open MPI\) 4\.", first):
        return [Row("bad", "MPI", f"{first}: {mpirun}", f"Open MPI 4.x is needed: {MXNET.rebuild}")]
    return [Row("ok", "MPI", f"{first}, {origin}: {mpirun}"), check_one_libmpi()]


def check_one_libmpi() -> Row:
    code, text = MXNET.python(
        "import re, horovod.mxnet, mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI;"
        "print(*sorted(set(re.findall(r'/\\S*/libmpi\\.so\\S*', open('/proc/self/maps').read()))))"
    )
    libraries = sorted({os.path.realpath(path) for path in last_line(text).split()})
    if code or len(libraries) != 1:
        found = last_line(text) if code else f"two at once: {' '.join(libraries)}"
        return Row("bad", "libmpi", found, f"Horovod and mpi4py must load the same libmpi: {MXNET.rebuild}")
    return Row("ok", "libmpi", f"{libraries[0]} (Horovod and mpi4py)")


def check_two_ranks() -> Row:
    program = os.path.join(CLONE, "setup-utils", "two_ranks.py")
    code, text = run("mpirun", "-np", "2", "-x", "OMP_NUM_THREADS=1", MXNET.interpreter, program, seconds=90)
    if code:
        return Row("bad", "two ranks", f"mpirun -np 2 failed: {last_line(text)}", f"see: mpirun -np 2 python {program}")
    return Row("ok", "two ranks", "allreduce and allgather between two ranks of this host give correct results")


def check_gpus(machine: cuda.Machine) -> Row:
    if not machine.capabilities:
        if glob.glob("/proc/driver/nvidia/version"):
            return Row("warn", "GPU", "there is a driver but no usable GPU", "containers: docker run --gpus all")
        return Row("ok", "GPU", "none: training runs on the CPU")
    gpus = ", ".join(f"{n} ({major}.{minor})" for n, (major, minor) in zip(machine.names, machine.capabilities))
    driver = f"driver for CUDA {machine.driver // 1000}.{machine.driver % 1000 // 10}"
    return Row("ok", "GPU", f"{gpus}; {driver}; nvcc {', '.join(machine.toolkits) or 'not found'}")


def check_wheel(machine: cuda.Machine) -> list[Row]:
    """Checks NCCL, and whether the installed wheel of MXNet fits this machine's GPUs."""
    library, header = machine.libraries.get("libnccl.so.2", "not found"), machine.nccl_header
    nccl = Row("ok" if header else "warn", "NCCL", f"{library}; nccl.h under {header or 'no known folder'}")
    choice = cuda.choose(machine)
    installed = re.search(r"PFC_WHEEL='?([\w-]+)", MXNET.recorded("cuda.env"))
    wheel = installed.group(1) if installed else "none"
    row = Row("ok", "MXNet wheel", f"{wheel} fits ({choice.reason})")
    if choice.wheel == cuda.CPU_WHEEL:
        fix = "training runs on the CPU until this is fixed"
        row = row._replace(mark="warn", found=f"{wheel}: {choice.reason}", fix=fix)
    elif wheel != choice.wheel:
        found = f"{wheel} is installed, {choice.wheel} fits this machine"
        row = row._replace(mark="bad", found=found, fix=MXNET.rebuild)
    return [nccl, row]


def check_host() -> list[Row]:
    cores = usable_cores()
    threads = os.environ.get("OMP_NUM_THREADS", "not set: the ranks of a host share its cores")
    gigabytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    rows = [Row("ok", "host", f"{cores} cores, {gigabytes:.0f} GiB memory, OMP_NUM_THREADS {threads}")]
    if os.path.isdir("/dev/shm"):
        free = shutil.disk_usage("/dev/shm").free / 2**30
        small = free < 0.25  # Docker's default of 64 MB is too little for NCCL and Open MPI (4 MiB per rank)
        fix = "containers: docker run --shm-size=8g" if small else ""
        rows.append(Row("warn" if small else "ok", "/dev/shm", f"{free:.1f} GiB free", fix))
    return rows


def check_mxnet_environment(machine: cuda.Machine) -> list[Row]:
    rows = [
        check_mxnet(),
        MXNET.check_packages("packages", "mxboard", "mxboard"),
        check_horovod(),
        *check_mpi(),
        check_two_ranks(),
    ]
    return rows + (check_wheel(machine) if machine.capabilities else [])


def collect() -> list[Row]:
    """Checks both environments. If only one trainer is installed, the other one is optional."""
    machine = cuda.probe()
    rows, processor = [], platform.machine()
    environments = [
        (MXNET, TORCH, "MXNet", lambda: check_mxnet_environment(machine)),
        (TORCH, MXNET, "PyTorch", lambda: check_torch.collect(len(machine.capabilities))),
    ]
    if processor != "x86_64":
        rows.append(Row("ok", "processor", f"{processor}: only for the PyTorch trainer, as MXNet's wheels are x86-64"))
        del environments[0]
    elif MXNET.exists() or not TORCH.exists():
        rows += [check_python(), check_compiler()]
    for environment, other, trainer, checks in environments:
        row = environment.check()
        if not environment.exists() and other.exists():
            row = row._replace(mark="warn", found=f"missing: only for training with {trainer}")
        rows += [row, *(checks() if row.mark == "ok" else [])]
    return [*rows, check_gpus(machine), *check_host()]


def main() -> int:
    if sys.argv[1:]:
        return run_module("partial_fc_tools.hosts.command", "bash setup-utils/check.sh")
    rows = collect()
    print_rows(rows)
    bad = failed_checks(rows)
    print(f"\nNeeds fixing: {', '.join(bad)}" if bad else "\nAll required components are installed.")
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
