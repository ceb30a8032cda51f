import struct

import numpy as np
import pytest

from partial_fc.checkpoint.mxnet_params import array_file_chunks, named_arrays, saved_arrays


def content(array, magic=0x112, kind=0):
    """As MXNet writes one array, see tests/mx/test_saved_arrays_mxnet.py."""
    shape = struct.pack(f"<Iii{array.ndim}q3i", 0xF993FAC9, 0, array.ndim, *array.shape, 1, 0, kind)
    return struct.pack("<3Q", magic, 0, 1) + shape + array.tobytes() + bytes(8)


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


NAMED = {
    "arg:fc1_weight": ARRAY,
    "aux:bn_moving_mean": np.arange(3, dtype=np.float32),
    "arg:ä/b:0": ARRAY.astype(np.float16),
}


def written(path, arrays):
    path.write_bytes(b"".join(map(bytes, array_file_chunks(arrays))))
    return path


def test_named_arrays_round_trip(tmp_path):
    read = named_arrays(written(tmp_path / "a", NAMED))
    assert list(read) == list(NAMED)
    for name, array in NAMED.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)
    assert named_arrays(written(tmp_path / "a", {})) == {}


@pytest.mark.parametrize("shapes", [[(2, 3)], [(0, 3)], [()], [(2, 3), (0, 3), ()], []])
def test_a_list_of_arrays_round_trips(shapes, tmp_path):
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    read = saved_arrays(written(tmp_path / "a", arrays))
    assert [array.shape for array in read] == shapes
    assert all((array == 1).all() for array in read)
    if shapes:
        with pytest.raises(ValueError, match="arrays have 0 names"):
            named_arrays(tmp_path / "a")


def test_writing_and_reading_copy_no_array(tmp_path):
    big = np.zeros((1000, 700), np.float32)
    assert any(np.shares_memory(np.frombuffer(chunk, np.uint8), big) for chunk in array_file_chunks([big]))
    (read,) = saved_arrays(written(tmp_path / "a", [big]))
    assert not read.flags.owndata and not read.flags.writeable  # it is the file's


def test_other_dtypes_are_refused_in_both_directions(tmp_path):
    for dtype in (np.float64, np.int32, ">f4"):
        with pytest.raises(ValueError, match="array 1 is .*, expected float32 or float16"):
            list(array_file_chunks([ARRAY, ARRAY.astype(dtype)]))
    (tmp_path / "a").write_bytes(content(ARRAY))
    np.testing.assert_array_equal(saved_arrays(tmp_path / "a"), [ARRAY])
    for read, kind in ((named_arrays, 4), (saved_arrays, 2)):
        (tmp_path / "a").write_bytes(content(ARRAY, kind=kind))
        with pytest.raises(ValueError, match="the array at byte 24 is not float32"):
            read(tmp_path / "a")


def array_header(*shape, magic=0xF993FACA, dimensions=None, storage=0, kind=0):
    dimensions = len(shape) if dimensions is None else dimensions
    return struct.pack(f"<Iii{len(shape)}q3i", magic, storage, dimensions, *shape, 1, 0, kind)


def a_file(*arrays, count=None, names=b"\0" * 8):
    return struct.pack("<3Q", 0x112, 0, len(arrays) if count is None else count) + b"".join(arrays) + names


HOSTILE = {
    "empty": (b"", "empty"),
    "another magic number": (content(ARRAY, magic=0x113), "does not start with 0x112"),
    "no array": (content(ARRAY)[:24] + bytes(100), "no dense array at byte 24"),
    "many arrays": (a_file(count=2**63), "truncated"),
    "huge": (a_file(array_header(2**40, 2**40)), "truncated"),
    "huge without rows": (a_file(array_header(0, 2**62, 2**62)), "too big|dimension"),
    "product beyond 64 bits": (a_file(array_header(*[2**62] * 32)), "truncated"),
    "negative": (a_file(array_header(-1, -4), bytes(16)), r"has the shape \(-1, -4\)"),
    "many dimensions": (a_file(array_header(1, dimensions=2**30)), "no dense array at byte 24"),
    "unknown shape": (a_file(array_header(dimensions=-1)), "no dense array at byte 24"),
    "none in the old form": (a_file(array_header(magic=0xF993FAC9), bytes(4)), "no dense array at byte 24"),
    "sparse": (a_file(array_header(2, storage=1), bytes(8)), "no dense array at byte 24"),
    "many names": (a_file(names=struct.pack("<Q", 2**62)), "truncated"),
    "long name": (a_file(names=struct.pack("<2Q", 1, 2**62)), "truncated"),
    "no trailer": (a_file(names=b""), "truncated"),
    "one name too many": (a_file(names=struct.pack("<2Q", 1, 0)), "0 arrays have 1 names"),
    "no text": (a_file(array_header(0), names=struct.pack("<2Q", 1, 1) + b"\xff"), "utf-8"),
    "pickle": (b"\x80\x04\x95" + bytes(30), "not a file of MXNet's nd.save"),
    "name twice": (a_file(array_header(0), array_header(0), names=struct.pack("<3Q", 2, 0, 0)), "2 names, 1 of them"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(name, tmp_path):
    data, message = HOSTILE[name]
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        named_arrays(tmp_path / "a")


def test_truncation_at_any_byte_is_detected(tmp_path):
    data = written(tmp_path / "a", NAMED).read_bytes()
    for size in range(1, len(data)):
        (tmp_path / "a").write_bytes(data[:size])
        with pytest.raises(ValueError, match="truncated"):
            named_arrays(tmp_path / "a")
