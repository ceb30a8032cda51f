"""The folder from which torch.compile imports code."""

import os
import stat
import tempfile
from collections.abc import MutableMapping

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def use_own_cache(environment: MutableMapping[str, str]) -> None:
    """Has torch.compile keep its code where no other user can write, unless the variable names a folder.

    PyTorch's own default is a folder of foreseeable name in /tmp, and it takes that of another user, too.

    Raises:
        ValueError: Another user has made the folder, or can write to it.
    """
    if environment.get(VARIABLE):
        return
    folder = os.path.join(tempfile.gettempdir(), f"torchinductor_{os.geteuid()}")
    os.makedirs(folder, 0o700, exist_ok=True)
    found = os.lstat(folder)
    others = stat.S_IWGRP | stat.S_IWOTH
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & others:
        raise ValueError(
            f"network_options=compile=True would run code from {folder}, which other users can write to: set "
            f"{VARIABLE} to a folder of your own"
        )
    environment[VARIABLE] = folder
