import struct

import numpy as np
import pytest

from partial_fc.saved_arrays import saved_arrays


def content(array, magic=0x112, kind=0):
    """As tests/mx/test_file_bank.py sees MXNet write one array."""
    shape = struct.pack(f"<Iii{array.ndim}q3i", 0xF993FAC9, 0, array.ndim, *array.shape, 1, 0, kind)
    return struct.pack("<3Q", magic, 0, 1) + shape + array.tobytes() + bytes(8)


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_an_array(tmp_path):
    (tmp_path / "a").write_bytes(content(ARRAY))
    (read,) = saved_arrays(tmp_path / "a")
    np.testing.assert_array_equal(read, ARRAY)


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "empty"),
        (content(ARRAY)[:20], "cut short"),
        (content(ARRAY)[:50], "cut short"),
        (content(ARRAY)[:87], "cut short"),
        (content(ARRAY, magic=0x113), "does not start as those of MXNet's nd.save do, with 0x112"),
        (content(ARRAY)[:24] + bytes(100), "no array at byte 24"),
        (content(ARRAY, kind=2), "the array at byte 24 is not of float32"),
    ],
)
def test_what_is_no_such_file(data, message, tmp_path):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        saved_arrays(tmp_path / "a")
