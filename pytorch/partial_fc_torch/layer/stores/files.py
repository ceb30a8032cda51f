"""Centers in files, for banks that do not fit into memory, see partial_fc/layer/bank_files.py.

Shapes: L classes of this rank, S centers of a step.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import numpy as np
import torch

from partial_fc.layer.bank_files import BankFiles

from ..rows import Centers, StepCenters
from .store import CenterStore


class FileStore(CenterStore):
    """Keeps the arrays in files, for a layer that computes on the CPU.

    Args:
        num_local: L, at least 1.
        folder: contains the files.
        widths, dtypes: number of columns and type of each array, by name.
        sharing: number of processes that create such files in the folder at the same time.

    Raises:
        OSError: The folder is not writable, or has too little space.
    """

    movable = False

    def __init__(
        self,
        num_local: int,
        folder: str,
        widths: Mapping[str, int],
        dtypes: Mapping[str, torch.dtype],
        sharing: int,
    ):
        super().__init__(num_local, torch.device("cpu"))
        narrow = {name for name, dtype in dtypes.items() if dtype == torch.bfloat16}
        self._files = BankFiles(folder, num_local, widths, num_local, sharing, narrow)

    def allocate(self, name: str, width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """See CenterStore.allocate."""
        return torch.from_numpy(self._files.file(0, name).rows).view(dtype)

    def prefetch(self, centers: Centers, drawn: Callable[[], np.ndarray]) -> None:
        """See CenterStore.prefetch."""
        self._read(drawn())

    def _read(self, index: np.ndarray) -> None:
        """Starts to read the rows from the disk; if they are all rows, reads ahead of the rows in use."""
        if len(index) == self.num_local:
            self._files.expect_all_rows()
        self._files.prefetch(index)

    def load(self, centers: Centers, index: torch.Tensor) -> StepCenters:
        """See CenterStore.load; also starts to read rows that were not announced."""
        self._read(index.numpy())
        return super().load(centers, index)

    def flush(self, name: str) -> None:
        """See CenterStore.flush."""
        self._files.file(0, name).flush()

    def sequential_access(self) -> AbstractContextManager[None]:
        """See CenterStore.sequential_access."""
        return self._files.sequential_access()
