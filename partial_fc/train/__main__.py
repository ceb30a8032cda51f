"""The program of one process of the installed package; torchrun starts it as a file, or as ``-m partial_fc.train``."""

from partial_fc.utils.import_path import leave_current_folder

leave_current_folder()

from partial_fc.train.torch_training import TorchTraining  # noqa: E402

if __name__ == "__main__":
    TorchTraining().main()
