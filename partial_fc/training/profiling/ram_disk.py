"""The files of a data set, and the shell commands that copy them into the host's memory."""

import os
from shlex import quote
from typing import NamedTuple

from partial_fc.data.names import FILE as IDENTITIES
from partial_fc.data.synthetic.dataset import META

GIB = 2**30
RAM_DISK = "/mnt/faces_in_memory"


class SetFiles(NamedTuple):
    """Files of a data set, all in the folder of train.rec."""

    rec: str  # path of train.rec
    names: tuple[str, ...]
    bytes: int  # of all files
    data_name: str  # name of the folder in ``data_root``; empty if the setting ``rec`` names the set

    @property
    def ram_disk_gib(self) -> int:
        """Size in GiB of a RAM disk for the files, with 5 % for the tables of the file system."""
        return max(1, -(-self.bytes * 21 // (20 * GIB)))


def find_set_files(rec: str, data_name: str = "") -> SetFiles | None:
    """Finds train.rec and its companions: index, property, names, validation sets, metadata of the demo.

    Returns None for a set in another form.

    Raises:
        OSError: The folder or one of the files cannot be read.
    """
    if not rec.endswith(".rec"):
        return None
    folder, name = os.path.split(os.path.abspath(rec))
    expected = {name, os.path.splitext(name)[0] + ".idx", "property", IDENTITIES, META}
    with os.scandir(folder) as entries:
        # is_file excludes broken links and folders of such names.
        files = [e for e in entries if (e.name in expected or e.name.endswith(".bin")) and e.is_file()]
        sizes = {e.name: e.stat().st_size for e in files}
    return SetFiles(os.path.join(folder, name), tuple(sorted(sizes)), sum(sizes.values()), data_name)


def ram_disk_copy(files: SetFiles, root: str = RAM_DISK) -> tuple[str, list[str]]:
    """Returns the setting that trains on a copy of the set in RAM, and the bash commands that make the copy."""
    source, rec = os.path.split(files.rec)
    target = os.path.join(root, files.data_name or os.path.basename(source))
    setting = f"data_root={quote(root)}" if files.data_name else "rec=" + quote(os.path.join(target, rec))
    names = ",".join(map(quote, files.names))
    names = "{" + names + "}" if len(files.names) > 1 else names
    return setting, [
        f"sudo mkdir -p {quote(root)} && sudo mount -t tmpfs -o size={files.ram_disk_gib}G tmpfs {quote(root)}",
        f"mkdir -p {quote(target)} && cp {quote(source)}/{names} {quote(target)}/",
    ]
