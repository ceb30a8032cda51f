import hashlib
import io
import pickle
import struct
import warnings
import zipfile

import numpy as np
import pytest

from partial_fc.checkpoint import SavedClasses, array_chunks, npz_chunks, open_rows, read_arrays, write_file

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def npy(path, pieces):
    return write_file(str(path), array_chunks(pieces))


def content(chunks):
    return b"".join(bytes(chunk) for chunk in chunks)


@pytest.mark.parametrize("cuts", [[], [1], [0, 2], [4], [1, 1, 3]])
@pytest.mark.parametrize("rows", [ROWS, ROWS[:0]])
def test_pieces_are_written_as_one_npy_file(rows, cuts, tmp_path):
    path = tmp_path / "a.npy"
    entry = npy(path, np.split(rows, cuts))
    np.save(tmp_path / "b.npy", rows)
    assert path.read_bytes() == (tmp_path / "b.npy").read_bytes()
    assert entry == (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    np.testing.assert_array_equal(open_rows(str(path), len(rows), 3), rows)


def test_arrays_larger_than_a_block_are_written_without_a_copy(tmp_path):
    big = np.arange(700_000, dtype=np.float32).reshape(-1, 7)  # 2.8 MB
    chunks = list(array_chunks([big[:40_000], big[40_000:]]))
    assert all(np.shares_memory(np.frombuffer(chunk, np.uint8), big) for chunk in chunks[1:])
    assert content(chunks)[-big.nbytes :] == big.tobytes()
    np.savez(tmp_path / "a.npz", a=np.asfortranarray(big))
    np.testing.assert_array_equal(read_arrays(str(tmp_path / "a.npz"))["a"], big)


ARRAYS = {
    "arg:stage1_unit1_bn1_gamma": ROWS,
    "state:fc1_weight:0": ROWS.astype(np.float16),
    "a/b ä": np.zeros((0, 5), np.float32),
    "scalar": np.array(2.5),
    "transposed": ROWS.T,
    "integers": np.array([-(2**40), 7]),
    "flags": np.array([True, False]),
}


@pytest.mark.parametrize("arrays", [ARRAYS, {}])
def test_named_arrays_are_read_by_numpy_and_written_as_the_same_bytes(arrays, tmp_path):
    path = tmp_path / "a.npz"
    write_file(str(path), npz_chunks(arrays))
    assert path.read_bytes() == content(npz_chunks(arrays))
    read = read_arrays(str(path))
    with np.load(path, allow_pickle=False) as loaded:
        assert set(loaded.files) == set(read) == set(arrays)
        for name, array in arrays.items():
            for found in (read[name], loaded[name]):
                assert (found.dtype, found.shape) == (array.dtype, array.shape), name
                np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("wrong, row", [(np.nan, 150_000), (np.inf, 0)])
def test_nonfinite_numbers_are_not_written(wrong, row):
    rows = np.zeros((200_000, 3), np.float32)  # three blocks
    rows[row, 1] = wrong
    with pytest.raises(FloatingPointError, match=f"row {row + 6} of 200006 holds a number that is not finite"):
        list(array_chunks([np.zeros((2, 3), np.float32), np.zeros((4, 3), np.float32), rows]))
    with pytest.raises(FloatingPointError, match="arg:w holds a number that is not finite"):
        list(npz_chunks({"fine": ROWS, "arg:w": rows}))


@pytest.mark.parametrize("rows, width", [(4, 4), (5, 3), (12, 1)])
def test_rows_of_another_shape_are_refused(rows, width, tmp_path):
    npy(tmp_path / "a.npy", [ROWS])
    with pytest.raises(ValueError, match=r"a.npy holds float32 of shape \(4, 3\)"):
        open_rows(str(tmp_path / "a.npy"), rows, width)


def header(text, body=bytes(48)):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + body


def described(descr="'<f4'", shape="(4, 3)"):
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


HOSTILE = {
    "empty": b"",
    "header cut short": header(described())[:40],
    "objects": header(described("'|O'")),
    "records": header(described("[('x', '<f4')]")),
    "big endian": header(described("'>f4'")),
    "float64": header(described("'<f8'"), bytes(96)),
    "negative": header(described(shape="(-4, -3)")),
    "huge": header(described(shape=f"({10**17}, {10**17})")),
    "huge without elements": header(described(shape=f"(0, {10**17}, {10**17})"), b""),
    "more dimensions than NumPy has": header(described(shape="(" + "1, " * 99 + "3)"), bytes(12)),
    "many digits": header(described(shape=f"({'9' * 60_000}, 3)")),
    "many dimensions": header(described(shape="(" + "1, " * 20_000 + ")")),
    "a program": header(described(shape="(exit(), 3)")),
    "deep": header("(" * 60_000),
    "open": header("{'descr': '<f4', 'shape': ("),
    "cut short": header(described(), bytes(47)),
    "too long": header(described(), bytes(49)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_npy_is_refused(name, tmp_path):
    (tmp_path / "centers.npy").write_bytes(HOSTILE[name])
    with pytest.raises(ValueError, match="centers.npy .*; use another checkpoint"):
        open_rows(str(tmp_path / "centers.npy"), 4, 3)


class Payload:
    """Is a program when a pickle of it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_pickles_never_run(tmp_path):
    ran = tmp_path / "ran"
    objects = np.array([Payload(ran)], dtype=object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "a.npz", objects, allow_pickle=True)
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Payload(ran)))
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Payload(ran)))
    for name in ("a", "b"):
        with pytest.raises(ValueError, match=f"{name}.npy"):
            open_rows(str(tmp_path / f"{name}.npy"), 1, 1)
        with pytest.raises(ValueError, match=f"{name}.npz"):
            read_arrays(str(tmp_path / f"{name}.npz"))
    assert not ran.exists()
    pickle.loads((tmp_path / "b.npy").read_bytes()).close()
    assert ran.exists()  # had it been loaded, this would have been seen


def archive(members, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    # zipfile warns of a name that occurs twice.
    with zipfile.ZipFile(file, "w", compression) as zipped, warnings.catch_warnings(action="ignore"):
        for name, data in members:
            zipped.writestr(name, data)
    return file.getvalue()


def with_false_size():
    """Returns an archive whose directory claims 4 GB for a member of 176 bytes."""
    data = archive([("a.npy", header(described()))])
    place = data.index(b"PK\x01\x02") + 20
    return data[:place] + struct.pack("<2I", 2**32 - 2, 2**32 - 2) + data[place + 8 :]


def one_member_many_times():
    """Returns an archive in which two names stand for the same bytes."""
    data = archive([("a.npy", header(described()))])
    start = data.index(b"PK\x01\x02")
    entry, end = data[start:-22], data[-22:]
    end = end[:8] + struct.pack("<HHII", 2, 2, 2 * len(entry), start) + end[20:]
    return data[:start] + entry + entry.replace(b"a.npy", b"b.npy") + end


GOOD = header(described())
BAD_ARCHIVES = {
    "empty": (b"", "not a zip file"),
    "cut short": (archive([("a.npy", GOOD)])[:-30], "not a zip file"),
    "other file": (archive([("a.txt", b"x")]), "'a.txt' is not an array of numbers"),
    "flipped": (archive([("a.npy", GOOD)]).replace(bytes(48), bytes(47) + b"\1"), "Bad CRC-32 for file 'a.npy'"),
    "claims more": (archive([("a.npy", header(described(shape="(4, 4)")))]), "'a.npy' is not an array of numbers"),
    "claims huge": (
        archive([("a.npy", header(described(shape=f"({10**17},)")))]),
        "'a.npy' is not an array of numbers",
    ),
    "objects": (archive([("x.npy", HOSTILE["objects"])]), "'x.npy' is not an array of numbers"),
    "false size": (with_false_size(), "its arrays are larger than the file"),
    "one name": (archive([("a.npy", GOOD), ("a.npy", GOOD)]), "two arrays have the same name"),
    "compressed": (archive([("a.npy", GOOD)], zipfile.ZIP_LZMA) + bytes(1000), "its arrays are compressed"),
    "many times": (one_member_many_times(), ""),
}


@pytest.mark.parametrize("name", BAD_ARCHIVES)
def test_a_hostile_npz_is_refused(name, tmp_path):
    data, message = BAD_ARCHIVES[name]
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(ValueError, match=f"a.npz is damaged: .*{message}"):
        read_arrays(str(tmp_path / "a.npz"))


def test_bits_of_bfloat16_are_checked_and_read_as_float32(tmp_path):
    numbers = np.array([[1.0, -2.5, 0.0], [2.0**-126, -(2.0**127), 3.140625]], np.float32)
    bits = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    npy(tmp_path / "centers.npy", [bits])
    rows = open_rows(str(tmp_path / "centers.npy"), 2, 3)
    np.testing.assert_array_equal(SavedClasses({"weight": [rows]}).rows("weight", np.array([1, 0])), numbers[::-1])
    for special in (0x7F80, 0xFF80, 0x7FC0):  # infinities and NaN
        bits[1, 2] = special
        with pytest.raises(FloatingPointError, match="row 1 of 2 holds a number that is not finite"):
            list(array_chunks([bits]))
