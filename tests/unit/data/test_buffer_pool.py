"""Memory is reused when an array and all its views are deleted, and not before."""

import gc

import numpy as np

from partial_fc.data.buffer_pool import RecyclingPool


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_reused_when_its_array_is_gone():
    pool = RecyclingPool((3, 4), np.float32)
    first = pool.take()
    assert first.shape == (3, 4) and first.dtype == np.float32 and first.flags.writeable and first.flags.c_contiguous
    place = address(first)
    assert address(pool.take()) != place  # still in use
    del first
    others = [np.empty((3, 4), np.float32) for _ in range(100)]  # would get the memory if it were released
    taken = [pool.take() for _ in range(2)]
    assert place in map(address, taken) and place not in map(address, others)


def test_views_keep_their_memory():
    pool = RecyclingPool((6,), np.int64)
    array = pool.take()
    array[:] = range(6)
    row, deep = array[2:], array.reshape(2, 3)[1][1:]
    del array
    taken = [pool.take() for _ in range(4)]
    for other in taken:
        other[:] = -1
    assert row.tolist() == [2, 3, 4, 5] and deep.tolist() == [4, 5]
    del row, deep
    gc.collect()
    again = pool.take()
    assert address(again) not in {address(other) for other in taken}
