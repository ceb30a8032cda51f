"""What a disk is sure to have after a power failure: what fsync has waited for."""

import os
from pathlib import Path


class SyncedDisk:
    """Observes os.fsync, os.replace and os.rename, which do their work as ever.

    Attributes:
        synced: of each file its bytes at its last fsync, of each folder the inode of each name in it.
        early: new names of files and folders whose content, or one of whose files, was not on the disk yet.
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
        """Whether the content of a file, or of a folder and all that is in it, is on the disk."""
        path = Path(path)
        inside = path.iterdir() if path.is_dir() else ()
        return self.synced.get(path.stat().st_ino) == content(path) and all(map(self.has, inside))


def content(path):
    """The bytes of a file, or the inode of each name in a folder."""
    return {entry.name: entry.stat().st_ino for entry in path.iterdir()} if path.is_dir() else path.read_bytes()
