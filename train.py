"""Trains a face-recognition embedding with Partial FC on PyTorch.

One process:     python train.py
Two processes:   bash pytorch/run.sh, partial-fc train, or python pytorch/launch.py --nproc_per_node=2 train.py
Two hosts:       torchrun --nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=host0 --master_port=1234 train.py,
                 and with --node_rank=1 on the other
I/O profiling:   the same with --profile-io
Run it again:    the same with --config models/small-arcface-demo/settings.json
"""

from partial_fc.train import torch_training

DESCRIPTION = __doc__  # in the body of a class, __doc__ is the docstring of the class


class TorchTraining(torch_training.TorchTraining):
    """The program of one process of the PyTorch trainer, with the settings of config.py."""

    file, description = "python train.py", DESCRIPTION

    def import_default(self):
        """Imports default.py, which imports config.py."""
        import default

        return default


def main(argv=None):
    """Runs this process; returns, or exits with code 0, if all went well."""
    TorchTraining().main(argv)


if __name__ == "__main__":
    main()
