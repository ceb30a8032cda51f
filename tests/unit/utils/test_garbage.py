import gc

import pytest

from partial_fc.utils.garbage import THRESHOLD, infrequent_gc


def test_the_threshold_is_high_within_the_block_and_restored_after_an_error():
    before, during = gc.get_threshold(), []

    @infrequent_gc()
    def fail():
        during.append(gc.get_threshold())
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):
            fail()
        assert gc.get_threshold() == before
    assert during == [(THRESHOLD, *before[1:])] * 2
