"""Trains a face-recognition embedding with Partial FC on PyTorch.

One process:     python train.py
Two processes:   bash pytorch/run.sh, or python pytorch/launch.py --nproc_per_node=2 train.py
Two hosts:       torchrun --nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=host0 --master_port=1234 train.py,
                 and with --node_rank=1 on the other
I/O profiling:   the same with --profile-io
Run it again:    the same with --config models/small-arcface-demo/settings.json
"""

import os
import sys

from partial_fc.distributed.env import rank_info
from partial_fc.distributed.interfaces import set_interface_to, set_loopback_interface
from partial_fc.training.program import TrainingProgram

DESCRIPTION = __doc__  # in the body of a class, __doc__ is the docstring of the class
RESUME = {"resume=0": "resume=", "resume=1": "resume=auto"}  # values of the tutorial's trainer


class TorchTraining(TrainingProgram):
    """The program of one process of the PyTorch trainer."""

    file, trainer, package, description = "train.py", "torch", "partial_fc_torch", DESCRIPTION
    install = "pip install -r requirement.txt"

    def import_default(self):
        """Imports default.py, which imports config.py."""
        import default

        return default

    def add_arguments(self, parser):
        """Adds the option that torch.distributed.launch appends to the command."""
        parser.add_argument(
            "--local_rank", "--local-rank", type=int, metavar="N", help="accepted; the variable LOCAL_RANK decides"
        )

    def load_settings(self, args):
        """Fills ``default.config``; ``resume`` may be 0 or 1."""
        args.settings = [RESUME.get(word, word) for word in args.settings]
        return super().load_settings(args)

    def prepare_host(self, settings):
        """Chooses the network interface between the ranks: between the hosts, or within a single host."""
        ranks = rank_info(os.environ)
        if ranks.size > ranks.local_size and "MASTER_ADDR" in os.environ:
            set_interface_to(os.environ, os.environ["MASTER_ADDR"])
        elif 1 < ranks.size == ranks.local_size:
            set_loopback_interface(os.environ)

    def load_framework(self, settings):
        """Imports PyTorch, and checks the margins and the optimizer of the settings."""
        from partial_fc_torch.build import TorchFramework, check_margin, check_optimizer

        # Reports an error in a user's own margin or optimizer before the data are read.
        for head in self.import_default().heads_of(settings):
            check_margin(head.settings)
        check_optimizer(settings)
        return TorchFramework(backend=settings.backend)

    def connect(self, settings):
        """Starts the process group, if a launcher started several processes."""
        from partial_fc_torch.process_group import start_process_group

        if rank_info(os.environ).size > 1:
            start_process_group(settings.backend, settings.step_timeout)

    def disconnect(self):
        """Ends this process if it is one of several.

        PyTorch 2.13 with Gloo sometimes aborts at exit, even after the process group has ended.
        """
        from partial_fc_torch.process_group import end_process_group

        if rank_info(os.environ).size > 1:
            end_process_group()
            sys.stdout.flush()
            os._exit(0)


def main(argv=None):
    """Runs this process; returns, or exits with code 0, if all went well."""
    TorchTraining().main(argv)


if __name__ == "__main__":
    main()
