"""The calls of the masked-face challenge's tutorial, and the files of its centers.

Shapes: B local batch, R ranks, L classes of this rank, E embedding.
"""

import os

import torch

from .layer.center_files import center_file, load_rows, save_rows
from .layer.module import ClassCenters
from .layer.optimizers import SGD


class TutorialCalls(ClassCenters):
    """Methods of the tutorial's PartialFC that no module of PyTorch has; ``prefix`` is the folder of its files."""

    def __init__(self, *arguments, prefix: str = "./", **options):
        super().__init__(*arguments, **options)
        self._prefix = prefix

    def forward_backward(
        self, label, features: torch.Tensor, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `step`, with learning rate, momentum and weight decay of an optimizer.

        The optimizer has nothing to update itself: its ``step()`` leaves the centers as they are.

        Args:
            label: as ``labels`` of step.
            features: as of step.
            optimizer: torch.optim.SGD of the layer's parameters; its last parameter group is read.

        Raises:
            ValueError: the optimizer is another one, or has options that the update of the centers has not.
        """
        group, own = optimizer.param_groups[-1], self.row_optimizer
        unsupported = [key for key in ("nesterov", "dampening", "maximize") if group.get(key)]
        if unsupported or not isinstance(optimizer, torch.optim.SGD) or not isinstance(own, SGD):
            raise ValueError(
                f"the optimizer is {type(optimizer).__name__} with the options {unsupported}: PartialFC updates its "
                "centers as torch.optim.SGD without such options; use PartialFC_V2 for other optimizers"
            )
        self.learning_rate, own.momentum, own.weight_decay = group["lr"], group["momentum"], group["weight_decay"]
        return self.step(features, label)

    def update(self) -> None:
        """Returns: `forward_backward` has already updated the centers. A call of the original trainer."""

    def save_params(self) -> None:
        """Writes ``rank_<rank>_softmax_weight.pt``, a tensor (L, E) float32, and a file of each state of the optimizer.

        With SGD that is ``rank_<rank>_softmax_weight_mom.pt``; with the convention "steps" only the first is written,
        as the second means a sum of gradients. The state of a margin such as AdaFace is in state_dict alone. Raises
        OSError if a file cannot be written; the previous file is unchanged.
        """
        os.makedirs(self._prefix, exist_ok=True)
        with self.sequential_access():
            for path, field in self._files().items():
                save_rows(path, self.rows(field), self.collectives.report_progress)

    def load_params(self) -> None:
        """Reads the files that `save_params` wrote on this rank with the same number of ranks, see load_rows."""
        loaded = {field: load_rows(path, getattr(self, field).shape) for path, field in self._files().items()}
        self._store.invalidate()
        for field, saved in loaded.items():
            self.rows(field).copy_(saved)

    def _files(self) -> dict[str, str]:
        """The path of each file -> what it holds."""
        optimizer, rank = self.row_optimizer, self.collectives.rank
        of_steps = isinstance(optimizer, SGD) and optimizer.momentum_convention == "steps"
        fields = ["weight"] if of_steps else self.widths
        return {os.path.join(self._prefix, center_file(field).format(rank)): field for field in fields}
