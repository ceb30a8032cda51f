import gc

import pytest

from partial_fc.utils.garbage import THRESHOLD, few_collections


def test_collections_are_rare_meanwhile_and_as_before_afterwards_also_after_an_error():
    before, during = gc.get_threshold(), []

    @few_collections()
    def fail():
        during.append(gc.get_threshold())
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):
            fail()
        assert gc.get_threshold() == before
    assert during == [(THRESHOLD, *before[1:])] * 2
