"""Time of a training step of the demo, and the share of it spent waiting for data, with faces and dummy images.

. setup-utils/env.sh
mpirun -q -np 2 python benchmarks/step.py
OMPI_MCA_mpi_yield_when_idle=0 mpirun -q -np 2 python benchmarks/step.py    # ranks busy-wait
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import default  # noqa: E402
from partial_fc.distributed.env import share_cores  # noqa: E402
from partial_fc.training.building import build_training  # noqa: E402

STEPS = 60


def measure(module, data) -> tuple[float, float]:
    """Seconds of a step, and the part of them spent waiting for its batch, after a few warm-up steps."""
    import mxnet as mx

    for step in range(10 + STEPS):
        if step == 10:
            mx.nd.waitall()
            start, waited = time.perf_counter(), 0.0
        requested = time.perf_counter()
        batch = data.next()
        if step >= 10:
            waited += time.perf_counter() - requested
        module.forward_backward(batch)
        module.update()
    mx.nd.waitall()
    return (time.perf_counter() - start) / STEPS, waited / STEPS


def main() -> None:
    settings = default.generate_config(dataset_name="demo")
    threads = share_cores(os.environ)
    import horovod.mxnet as hvd

    from partial_fc_mxnet.build import MXNetFramework

    hvd.init()
    framework = MXNetFramework()
    faces = framework.build_data(settings)
    module = build_training(settings, framework, faces, settings.models_root).engine
    dummies = framework.build_dummies(settings)
    for name, data in (("faces", faces), ("dummy images", dummies)):
        seconds, waited = measure(module, data)
        if hvd.rank() == 0:
            speed, share = settings.batch_size * hvd.size() / seconds, 100 * waited / seconds
            print(
                f"{name}: {1000 * seconds:.1f} ms per step, {share:.2f} % waiting for data, {speed:.0f} images/s, "
                f"{hvd.size()} x {threads} threads"
            )


if __name__ == "__main__":
    main()
