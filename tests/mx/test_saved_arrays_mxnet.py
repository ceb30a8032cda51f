"""partial_fc/checkpoint/mxnet_params.py compared with MXNet."""

import mxnet as mx
import numpy as np
import pytest

from partial_fc.checkpoint import SavedClasses, write_file
from partial_fc.checkpoint.mxnet_params import array_file_chunks, named_arrays, saved_arrays
from partial_fc_mxnet import MemoryBank

RNG = np.random.default_rng(0)
NAMED = {
    "arg:stage1_unit1_bn1_gamma": RNG.standard_normal(7).astype(np.float32),
    "arg:conv0_weight": RNG.standard_normal((4, 3, 2, 2)).astype(np.float32),
    "arg:half ä": RNG.standard_normal((3, 5)).astype(np.float16),
}


def same(read, expected):
    assert list(read) == list(expected)
    for name, array in expected.items():
        values = read[name].asnumpy() if isinstance(read[name], mx.nd.NDArray) else read[name]
        assert values.dtype == array.dtype
        np.testing.assert_array_equal(values, array)


@pytest.mark.parametrize("names", [True, False])
def test_the_files_are_mxnets_byte_for_byte(names, tmp_path):
    arrays = NAMED if names else list(NAMED.values())
    array_of = {name: mx.nd.array(array, dtype=array.dtype) for name, array in NAMED.items()}
    write_file(str(tmp_path / "ours"), array_file_chunks(arrays))
    mx.nd.save(str(tmp_path / "theirs"), array_of if names else list(array_of.values()))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("shape", [(0, 3), ()])
def test_arrays_without_rows_or_dimensions_beside_others(shape, tmp_path):
    """MXNet reads and writes them under np_shape; otherwise it refuses the whole file."""
    arrays = {"other": np.ones(shape, np.float32), "rows": np.ones((2, 3), np.float32)}
    path = str(tmp_path / "a")
    write_file(path, array_file_chunks(arrays))
    with pytest.raises(mx.base.MXNetError):
        mx.nd.load(path)
    with mx.util.np_shape(True):
        same(mx.nd.load(path), arrays)
        mx.nd.save(path, mx.nd.load(path))
    same(named_arrays(path), arrays)


def test_the_files_of_banks_are_the_classes_of_another_training(tmp_path):
    """The second rank has no classes."""
    banks = [MemoryBank(1, rows, rank, 0, 4, str(tmp_path), class_start=5 * rank) for rank, rows in enumerate((1, 0))]
    banks[0].set(np.arange(1), banks[0].weight, banks[0].weight_mom + 2)
    for bank in banks:
        bank.save()
    assert [array.shape for array in saved_arrays(tmp_path / "1_centers.param")] == [(0, 4)]
    saved = SavedClasses.of_original(str(tmp_path))
    assert saved.num_classes == 1
    np.testing.assert_array_equal(saved.rows("weight", np.arange(1)), banks[0].weight.asnumpy())
    np.testing.assert_array_equal(saved.rows("weight_mom", np.arange(1)), np.full((1, 4), 2))
