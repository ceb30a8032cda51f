"""The content of a disk that survives a power failure: everything that fsync has waited for."""

import os
from pathlib import Path


class SyncedDisk:
    """Observes calls of os.fsync, os.replace and os.rename.

    Attributes:
        synced: inode -> content at the last fsync: a file's bytes, or a folder's names with their inodes.
        early: new names of files and folders that were renamed before all of their content was synced.
    """

    def __init__(self, monkeypatch):
        self.synced, self.early = {}, []
        fsync, replace, rename = os.fsync, os.replace, os.rename

        def observed_fsync(descriptor):
            fsync(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").resolve()
            self.synced[os.fstat(descriptor).st_ino] = content(path)

        def observed_rename(call, old, new):
            if not self.has(old):
                self.early.append(os.fspath(new))
            call(old, new)

        monkeypatch.setattr(os, "fsync", observed_fsync)
        monkeypatch.setattr(os, "replace", lambda old, new: observed_rename(replace, old, new))
        monkeypatch.setattr(os, "rename", lambda old, new: observed_rename(rename, old, new))

    def has(self, path):
        """Returns whether a file, or a folder with all its files, is on the disk."""
        path = Path(path)
        inside = path.iterdir() if path.is_dir() else ()
        return self.synced.get(path.stat().st_ino) == content(path) and all(map(self.has, inside))


def content(path):
    """Returns the bytes of a file, or name -> inode of a folder."""
    return {entry.name: entry.stat().st_ino for entry in path.iterdir()} if path.is_dir() else path.read_bytes()
