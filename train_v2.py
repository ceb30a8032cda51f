"""Trains a recipe of arcface_torch with Partial FC on PyTorch.

One GPU:       python train_v2.py configs/ms1mv3_r50_onegpu
Eight GPUs:    torchrun --nproc_per_node=8 train_v2.py configs/ms1mv3_r50
Other values:  settings of train.py after the file: python train_v2.py configs/ms1mv3_r50_onegpu fp16=False bf16=True

The recipes of arcface_torch are known by name, and its configuration files can be used unchanged. A recipe is
translated into the settings of train.py, and the translation is printed.
"""

import os

from partial_fc.distributed.env import rank_info
from partial_fc.training.recipes.config_file import read_recipe
from partial_fc.training.recipes.translate import translate
from partial_fc.utils.text import say
from train import TorchTraining

DESCRIPTION = __doc__


class RecipeTraining(TorchTraining):
    """The program of one process that trains a recipe."""

    file, description = "train_v2.py", DESCRIPTION

    def read_recipe(self, args):
        """Returns the settings of the recipe that the first argument names."""
        if not args.settings or "=" in args.settings[0]:
            raise ValueError("name a configuration file first, such as configs/ms1mv3_r50")
        ranks = rank_info(os.environ)
        translation = translate(read_recipe(args.settings.pop(0)), ranks.size)
        os.environ.update(translation.environment)
        if ranks.rank == 0 and not args.print_config:
            for line in translation.lines():
                say(line)
        return translation.settings


if __name__ == "__main__":
    RecipeTraining().main()
