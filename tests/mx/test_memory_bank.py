import os

import mxnet as mx
import numpy as np
import pytest

from partial_fc_mxnet import MemoryBank
from partial_fc_mxnet.memory_bank import check_shard_size


def bank(folder, num_local=10, num_sample=4, **more):
    return MemoryBank(num_sample, num_local, 0, 0, 3, str(folder), class_start=0, **more)


@pytest.mark.parametrize("as_array", [np.asarray, lambda index: mx.nd.array(index, dtype="int64")])
def test_rows_come_and_go(as_array, tmp_path):
    b = bank(tmp_path)
    index = as_array([1, 4, 9])
    weight, mom = b.get(index)
    assert weight.shape == mom.shape == (3, 3)
    before = b.weight.asnumpy()
    b.set(index, weight + 1, mom + 2)
    after = b.weight.asnumpy()
    np.testing.assert_allclose(after[[1, 4, 9]], before[[1, 4, 9]] + 1)
    others = [0, 2, 3, 5, 6, 7, 8]
    np.testing.assert_array_equal(after[others], before[others])
    assert b.weight_mom.asnumpy()[[1, 4, 9]].tolist() == [[2.0] * 3] * 3
    assert not b.weight_mom.asnumpy()[others].any()


def test_every_row_is_not_copied(tmp_path):
    b = bank(tmp_path)
    assert b.get(np.arange(10))[0] is b.weight


def test_a_shard_too_large_for_one_array_is_refused_before_it_is_allocated(tmp_path):
    with pytest.raises(ValueError, match="start more ranks, at most 4194303 classes fit on each"):
        MemoryBank(1, 4_194_304, 0, 0, 512, str(tmp_path))
    check_shard_size(4_194_303, 512)


def test_loading_what_is_missing_broken_or_of_another_size(tmp_path):
    b = bank(tmp_path)
    with pytest.raises(OSError, match="0_centers.param: this rank has not saved there"):
        b.load()
    b.save()
    with pytest.raises(ValueError, match=r"0_centers.param holds centers of shape \(10, 3\), this rank's are \(9, 3\)"):
        bank(tmp_path, num_local=9).load()
    (tmp_path / "0_centers_mom.param").write_bytes(b"not an array")
    before = b.weight.asnumpy()
    with pytest.raises(OSError, match="cannot read the centers in .*0_centers_mom.param"):
        b.load()
    np.testing.assert_array_equal(b.weight.asnumpy(), before)


def test_a_save_that_fails_leaves_the_files_from_before(tmp_path):
    b = bank(tmp_path)
    b.save()
    content = (tmp_path / "0_centers.param").read_bytes()
    os.mkdir(tmp_path / "0_centers.param.writing")
    b.weight[:] = 0
    with pytest.raises(OSError, match="cannot write the centers to .*0_centers.param"):
        b.save()
    assert (tmp_path / "0_centers.param").read_bytes() == content


def test_the_seed_and_the_class_decide_the_centers(tmp_path):
    first, again, other = (bank(tmp_path, seed=seed).weight.asnumpy() for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any(axis=1).all()
