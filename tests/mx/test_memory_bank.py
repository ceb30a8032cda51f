import resource

import mxnet as mx
import numpy as np
import pytest

from partial_fc_mxnet import MemoryBank
from partial_fc_mxnet.layer import center_storage


def bank(folder, num_local=10, num_sample=4, **more):
    return MemoryBank(num_sample, num_local, 0, 0, 3, str(folder), class_start=0, **more)


def test_get_of_all_rows_does_not_copy(tmp_path):
    b = bank(tmp_path)
    assert b.get(np.arange(10))[0] is b.weight


@pytest.mark.parametrize("field", [0, 1])
def test_one_of_the_two_own_arrays_may_be_set_to_another(field, tmp_path):
    b = bank(tmp_path)
    arrays = list(b.get(np.arange(10)))
    arrays[field] = arrays[field] + 1
    expected = [array.asnumpy() for array in arrays]
    b.set(np.arange(10), *arrays)
    np.testing.assert_array_equal([array.asnumpy() for array in b.get(np.arange(10))], expected)


@pytest.mark.parametrize("elements, pieces", [(2**31 - 1, [10]), (12, [4, 4, 2])])
@pytest.mark.parametrize("as_array", [np.asarray, lambda index: mx.nd.array(index, dtype="int64")])
def test_get_and_set_rows(elements, pieces, as_array, tmp_path, monkeypatch):
    monkeypatch.setattr(center_storage, "MAX_ELEMENTS", elements)
    b, rows = bank(tmp_path), [0, 3, 4, 9]
    assert [len(piece.weight) for piece in b.centers.pieces] == pieces
    expected, mom = (array.asnumpy() for array in b.get(np.arange(10)))
    assert not mom.any()
    weight, mom = b.get(as_array(rows))
    np.testing.assert_array_equal(weight.asnumpy(), expected[rows])
    b.set(as_array(rows), weight + 1, mom + 2)
    expected[rows] += 1
    after, mom = (array.asnumpy() for array in b.get(np.arange(10)))
    np.testing.assert_array_equal(after, expected)
    assert mom.sum(axis=1).tolist() == [6.0 * (row in rows) for row in range(10)]


def test_several_pieces_are_initialized_saved_and_loaded_as_one_array(tmp_path, monkeypatch):
    expected = bank(tmp_path).weight.asnumpy()
    monkeypatch.setattr(center_storage, "MAX_ELEMENTS", 12)
    b = bank(tmp_path)
    np.testing.assert_array_equal(b.get(np.arange(10))[0].asnumpy(), expected)
    with pytest.raises(ValueError, match="in 3 pieces"):
        _ = b.weight
    b.save()
    other = bank(tmp_path, seed=5)
    other.load()
    np.testing.assert_array_equal(other.get(np.arange(10))[0].asnumpy(), expected)


def test_load_of_missing_damaged_or_different_files_raises(tmp_path):
    b = bank(tmp_path)
    with pytest.raises(OSError, match="no centers at .*0_centers.param"):
        b.load()
    b.save()
    with pytest.raises(ValueError, match=r"0_centers.param .* \(10, 3\), expected \(9, 3\)"):
        bank(tmp_path, num_local=9).load()
    (tmp_path / "0_centers_mom.param").write_bytes(b"not an array")
    before = b.weight.asnumpy()
    with pytest.raises(OSError, match="0_centers_mom.param"):
        b.load()
    np.testing.assert_array_equal(b.weight.asnumpy(), before)


def test_failed_save_keeps_the_previous_files(tmp_path):
    b = bank(tmp_path)
    b.save()
    content = (tmp_path / "0_centers.param").read_bytes()
    b.weight[:] = 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="0_centers.param: File too large"):
            b.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "0_centers.param").read_bytes() == content


def test_initial_centers_depend_on_the_seed(tmp_path):
    first, again, other = (bank(tmp_path, seed=seed).weight.asnumpy() for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any(axis=1).all()
