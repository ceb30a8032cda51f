"""Trains a face-recognition embedding with Partial FC on MXNet and Horovod.

One rank:        python train_memory.py
Two ranks:       bash run.sh, or horovodrun -np 2 -H localhost:2 bash config.sh
I/O profiling:   the same with --profile-io
Run it again:    the same with --config models/small-arcface-demo/settings.json
"""

import os

from partial_fc.distributed.env import deterministic_allreduce, use_shared_memory
from partial_fc.distributed.interfaces import set_launcher_interfaces
from partial_fc.distributed.watchdog import CONNECT_TIMEOUT
from partial_fc.training.program import TrainingProgram

DESCRIPTION = __doc__  # in the body of a class, __doc__ is the docstring of the class


class MemoryTraining(TrainingProgram):
    """The program of one rank of the MXNet trainer."""

    file, trainer, package, description = "python train_memory.py", "mxnet", "partial_fc_mxnet", DESCRIPTION
    install = "bash setup-utils/install.sh"

    def import_default(self):
        """Imports default.py, which imports config.py."""
        import default

        return default

    def prepare_host(self, settings):
        """Sets the environment variables that MXNet and Horovod read once."""
        set_launcher_interfaces(os.environ)
        use_shared_memory(os.environ)
        os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")  # MXNet would print a line about oneDNN on every rank
        from partial_fc_mxnet.ops.memory import rank_context

        if rank_context(0).device_type == "cpu":
            deterministic_allreduce(os.environ)
        # One rank of a host may draw or download a set while the others wait in hvd.init(), which over Gloo times out
        # after 30 s by default. The watchdog, which names the missing rank, has to time out first.
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", f"{CONNECT_TIMEOUT:.0f}")

    def load_framework(self, settings):
        """Imports MXNet and Horovod."""
        from partial_fc_mxnet.build import MXNetFramework

        return MXNetFramework()

    def connect(self, settings):
        """Starts Horovod."""
        import horovod.mxnet as hvd

        hvd.init()
        if hvd.size() == hvd.local_size():  # on several hosts the launcher's daemons end the job
            from partial_fc_mxnet.collectives import delay_abort

            delay_abort(600)


def main(argv=None):
    """Runs this rank; returns if all went well."""
    MemoryTraining().main(argv)


if __name__ == "__main__":
    main()
