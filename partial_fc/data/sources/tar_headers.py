"""Checks the headers of untrusted .tar files before tarfile parses them."""

import re
import tarfile
from typing import Any

HEADER_BYTES = 1 << 14  # extended headers and long names of a member
GLOBAL_RECORDS = 100  # tarfile copies all of them for each member
RECORD = re.compile(rb"([1-9]\d{0,5}) ([^=\n]{1,512})=")  # of an extended header: its length and its key
DIGITS = re.compile(rb"\d{100}")  # from each digit, tarfile searches to the end of the digits: quadratic time
LONG_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


class BoundedMember(tarfile.TarInfo):
    """A member of an archive, for ``tarfile.open(tarinfo=BoundedMember)``.

    Time and memory for reading its headers are proportional to their length. Invalid headers raise ReadError.
    """

    # tarfile calls this method for each header, and documents it for subclasses.
    def _proc_member(self, tar: Any) -> tarfile.TarInfo:
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _sparse(self.name)
        file = tar.fileobj
        if self.type in LONG_NAMES + EXTENDED:
            # tar.offset is the start of the first header in the chain.
            if self.size < 0 or file.tell() - tar.offset + self.size > HEADER_BYTES:
                raise tarfile.ReadError(f"a member has more than {HEADER_BYTES:,} bytes of headers")
            if self.type in EXTENDED:
                start = file.tell()
                _check_records(file.read(self.size).rstrip(b"\0"), self.name)
                file.seek(start)
        try:
            member = super()._proc_member(tar)  # type: ignore[misc]
        except ValueError as error:  # from invalid UTF-8
            raise tarfile.ReadError(str(error)) from None
        if len(tar.pax_headers) > GLOBAL_RECORDS:
            raise tarfile.ReadError(f"it has more than {GLOBAL_RECORDS} global records")
        return member


def _check_records(data: bytes, name: str) -> None:
    """Raises ReadError unless each record begins where the previous one ends: tarfile would read overlapping ones."""
    start = 0
    while start < len(data):
        record = RECORD.match(data, start)
        end = start + int(record[1]) if record else 0
        if record is None or not record.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise tarfile.ReadError(f"the extended header {name} has no record at byte {start}")
        if record[2].startswith(b"GNU.sparse."):
            raise _sparse(name)
        start = end
    if DIGITS.search(data):
        raise tarfile.ReadError(f"the extended header {name} has more than 100 digits in a row")


def _sparse(name: str) -> tarfile.ReadError:
    return tarfile.ReadError(f"{name} is a sparse file, which only tar can read")
