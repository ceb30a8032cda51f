"""CPU time of the host for a bank that is not on the GPU (bank_on_gpu=False), and a model of a step.

    python benchmarks/host_bank.py                              # 10 million classes on 8 ranks, r = 0.1
    python benchmarks/host_bank.py --classes 100000000 --ratio 0.01 --cores 12

CPU times are of one core, so that other programs on the host have little effect. The model is not a measurement: it
divides the bytes by the cores and by the bandwidth of PCIe. Copies and transfers of different parts overlap.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "pytorch"), str(ROOT / "benchmarks")]

from host import cpu_name  # noqa: E402

from partial_fc.layer.sampling import WeightIndexSampler, draw_classes  # noqa: E402
from partial_fc.utils.memory import free_memory  # noqa: E402
from partial_fc.utils.tables import markdown_table  # noqa: E402
from partial_fc_torch.layer.rows import HostCopy  # noqa: E402
from partial_fc_torch.layer.stores.host import MAX_THREADS, _put, _take, replacements  # noqa: E402

REPEATS = 9
PCIE = {"PCIe 4": 25e9, "PCIe 5": 50e9}  # bytes/s in one direction, typical of x16 with pinned memory


def cpu_seconds(call: Callable[[], object]) -> float:
    """Returns the minimum CPU time of this thread for a call."""
    times = []
    for _ in range(REPEATS):
        start = time.thread_time()
        call()
        times.append(time.thread_time() - start)
    return min(times)


def by_sets(held: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes the results of `replacements` by NumPy's set functions."""
    missing = np.setdiff1d(wanted, held, assume_unique=True)
    unused = np.flatnonzero(~np.isin(held, wanted, assume_unique=True))
    replaced = held.copy()
    replaced[unused] = missing
    return missing, unused, np.argsort(replaced)


def indices(num_local: int, sampled: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the classes drawn for a step, and the sample after its labels are known."""
    sampler = WeightIndexSampler(sampled, num_local, rank=0)
    labels = np.random.default_rng(1).integers(0, num_local, batch)
    return sampler.prefetch(), sampler(labels)[0]


def rows_seconds(num_local: int, sampled: int, width: int) -> tuple[float, float]:
    """Returns the CPU time to gather the rows of a sample and to write them back, for as many as fit into memory."""
    fit = min(1.0, free_memory() / 4 / (4 * num_local * width))
    num_local, count = int(num_local * fit), int(sampled * fit)
    bank, staged = torch.zeros(num_local, width), torch.zeros(count, width)
    bank[:] = 1.0  # otherwise all rows share one page of zeros
    index = draw_classes(num_local, count, np.random.default_rng(0))
    copy = HostCopy(staged)
    gathering = cpu_seconds(lambda: _take(bank, index, staged))
    return gathering * sampled / count, cpu_seconds(lambda: _put(bank, index, copy)) * sampled / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=10_000_000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--ratio", type=float, default=0.1)
    parser.add_argument("--embedding", type=int, default=512)
    parser.add_argument("--arrays", type=int, default=2, help="arrays of E numbers per class, centers included")
    parser.add_argument("--batch", type=int, default=1024, help="global batch size")
    parser.add_argument("--cores", type=int, nargs="+", default=[4, 12], help="cores per rank in the model")
    args = parser.parse_args()
    num_local = args.classes // args.ranks
    sampled = int(num_local * args.ratio)
    held, wanted = indices(num_local, sampled, args.batch)
    for found, expected in zip(replacements(held, wanted), by_sets(held, wanted)):
        assert np.array_equal(found, expected)
    rng = np.random.default_rng(0)
    gathering, writing = (args.arrays * each for each in rows_seconds(num_local, sampled, args.embedding))
    measured = {
        "drawing negatives, in a thread": cpu_seconds(lambda: draw_classes(num_local, sampled, rng)),
        "comparing drawn and wanted rows": cpu_seconds(lambda: replacements(held, wanted)),
        "the same by functions of sets": cpu_seconds(lambda: by_sets(held, wanted)),
        f"gathering {sampled:,} rows of {args.arrays} arrays": gathering,
        "writing them back": writing,
    }
    print(f"{cpu_name()}, CPU time of one core\n")
    print("\n".join(markdown_table(("a step", "ms"), [[name, f"{1e3 * t:.1f}"] for name, t in measured.items()])))
    moved = 4 * sampled * args.embedding * args.arrays
    print(f"\nmodelled: {moved / 1e6:.0f} MB to the GPU and back, beside the rest of the step\n")
    cells = []
    for cores in args.cores:
        threads = min(cores, MAX_THREADS)
        for link, speed in PCIE.items():
            both = sum(max(each / threads, moved / speed) for each in (gathering, writing))
            cells.append([str(threads), link, f"{1e3 * both:.0f}"])
    print("\n".join(markdown_table(("threads", "link", "ms a step, modelled"), cells)))


if __name__ == "__main__":
    main()
