"""What it takes to put a data set into the host's memory: how large it is, and the lines for a shell."""

from __future__ import annotations

import os
from shlex import quote
from typing import NamedTuple

from partial_fc.data.synthetic.dataset import META
from partial_fc.data.tools.names import FILE as IDENTITIES

GIB = 2**30
RAM_DISK = "/mnt/faces_in_memory"


class SetFiles(NamedTuple):
    """A data set's files, which are in one folder.

    ``rec``: path of its train.rec; ``names`` of all files, and their ``bytes`` in sum; ``data_name``: the folder's name
    under ``data_root``, empty where the training is told of the set by ``rec``.
    """

    rec: str
    names: tuple[str, ...]
    bytes: int
    data_name: str

    @property
    def ram_disk_gib(self) -> int:
        """Whole GiB of a RAM disk that holds the files: a twentieth more than they are, for its own tables."""
        return max(1, -(-self.bytes * 21 // (20 * GIB)))


def find_set_files(rec: str, data_name: str = "") -> SetFiles:
    """The images of a set and what lies beside them: index, property, names, validation sets, the demo's description.

    Args:
        rec, data_name: as in SetFiles.

    Raises:
        OSError: the folder or one of the files cannot be read.
    """
    folder, name = os.path.split(os.path.abspath(rec))
    own = {name, os.path.splitext(name)[0] + ".idx", "property", IDENTITIES, META}
    with os.scandir(folder) as entries:
        # Links that lead nowhere and folders may have such names too.
        found = [e for e in entries if (e.name in own or e.name.endswith(".bin")) and e.is_file()]
        sizes = {e.name: e.stat().st_size for e in found}
    return SetFiles(os.path.join(folder, name), tuple(sorted(sizes)), sum(sizes.values()), data_name)


def ram_disk_lines(files: SetFiles, root: str = RAM_DISK) -> list[str]:
    """The lines that mount a RAM disk at ``root`` and copy the set there, for bash."""
    source = os.path.dirname(files.rec)
    target = os.path.join(root, files.data_name or os.path.basename(source))
    names = ",".join(quote(name) for name in files.names)
    names = "{" + names + "}" if len(files.names) > 1 else names
    return [
        f"sudo mkdir -p {quote(root)} && sudo mount -t tmpfs -o size={files.ram_disk_gib}G tmpfs {quote(root)}",
        f"mkdir -p {quote(target)} && cp {quote(source)}/{names} {quote(target)}/",
    ]


def ram_disk_setting(files: SetFiles, root: str = RAM_DISK) -> str:
    """The word for the command line that trains on the copy."""
    if files.data_name:
        return f"data_root={quote(root)}"
    folder, name = os.path.split(files.rec)
    return "rec=" + quote(os.path.join(root, os.path.basename(folder), name))
