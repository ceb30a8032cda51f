"""The folder from which torch.compile imports code."""

import os
import stat
import tempfile
from collections.abc import MutableMapping

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def use_private_cache(environment: MutableMapping[str, str]) -> None:
    """Makes torch.compile keep its code where no other user can write, unless the variable already names a folder.

    PyTorch's default is a folder in /tmp whose name is predictable, and PyTorch uses it even if another user made it.

    Raises:
        ValueError: Another user owns the folder or can write to it.
    """
    if environment.get(VARIABLE):
        return
    folder = os.path.join(tempfile.gettempdir(), f"torchinductor_{os.geteuid()}")
    os.makedirs(folder, 0o700, exist_ok=True)
    status = os.lstat(folder)  # a link is refused, too
    is_shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or is_shared:
        raise ValueError(
            f"network_options=compile=True would run code from {folder}, which other users can write to: set "
            f"{VARIABLE} to a folder of your own"
        )
    environment[VARIABLE] = folder
