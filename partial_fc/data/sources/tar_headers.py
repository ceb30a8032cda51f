"""Headers of .tar files that others have made, looked at before tarfile parses them."""

import re
import tarfile
from typing import Any

HEADER_BYTES = 1 << 14  # before the data of a member: extended headers and long names
GLOBAL_RECORDS = 100  # which tarfile copies for each member
RECORD = re.compile(rb"([1-9]\d{0,5}) ([^=\n]{1,512})=")  # of an extended header, with its length
DIGITS = re.compile(rb"\d{100}")  # for each of them tarfile reads on to the end of the digits
LONG_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


class BoundedMember(tarfile.TarInfo):
    """A member of an archive, for ``tarfile.open(tarinfo=BoundedMember)``.

    Its headers are read in time and memory that grow with their length alone. All that is wrong with them is a
    ReadError.
    """

    # What tarfile calls for each header, and leaves to subclasses.
    def _proc_member(self, tar: Any) -> tarfile.TarInfo:
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _sparse(self.name)
        file = tar.fileobj
        if self.type in LONG_NAMES + EXTENDED:
            # The offset is that of the first header of a chain.
            if self.size < 0 or file.tell() - tar.offset + self.size > HEADER_BYTES:
                raise tarfile.ReadError(f"a member has more than {HEADER_BYTES:,} bytes of headers")
            if self.type in EXTENDED:
                start = file.tell()
                _check_records(file.read(self.size).rstrip(b"\0"), self.name)
                file.seek(start)
        try:
            member = super()._proc_member(tar)  # type: ignore[misc]
        except ValueError as error:  # of bytes that are no UTF-8
            raise tarfile.ReadError(str(error)) from None
        if len(tar.pax_headers) > GLOBAL_RECORDS:
            raise tarfile.ReadError(f"it has more than {GLOBAL_RECORDS} global records")
        return member


def _check_records(data: bytes, name: str) -> None:
    """Raises ReadError unless each record follows the one before it: tarfile also reads those that overlap."""
    place = 0
    while place < len(data):
        record = RECORD.match(data, place)
        end = place + int(record[1]) if record else 0
        if record is None or not record.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise tarfile.ReadError(f"the extended header {name} has no record at byte {place}")
        if record[2].startswith(b"GNU.sparse."):
            raise _sparse(name)
        place = end
    if DIGITS.search(data):
        raise tarfile.ReadError(f"the extended header {name} has more than 100 digits in a row")


def _sparse(name: str) -> tarfile.ReadError:
    return tarfile.ReadError(f"{name} is a sparse file, which only tar can read")
