"""Trains a recipe of arcface_torch with Partial FC on PyTorch, as `partial-fc train --recipe NAME` does.

One GPU:       python train_v2.py configs/ms1mv3_r50_onegpu
Eight GPUs:    torchrun --nproc_per_node=8 train_v2.py configs/ms1mv3_r50
Other values:  settings of train.py after the file: python train_v2.py configs/ms1mv3_r50_onegpu fp16=False bf16=True

The recipes of arcface_torch are known by name, and its configuration files can be used unchanged. A recipe is
translated into the settings of train.py, and the translation is printed.
"""

from train import TorchTraining

DESCRIPTION = __doc__


class RecipeTraining(TorchTraining):
    """The program of one process that trains a recipe."""

    file, description = "python train_v2.py", DESCRIPTION

    def load_settings(self, args):
        """Fills the settings; the first argument names the recipe."""
        if not args.settings or "=" in args.settings[0]:
            raise ValueError("name a configuration file first, such as configs/ms1mv3_r50")
        args.recipe = args.settings.pop(0)
        return super().load_settings(args)


if __name__ == "__main__":
    RecipeTraining().main()
