"""Labels and rank flags packed into float32."""

import numpy as np
import pytest

from partial_fc.layer.label_encoding import RankFlags, check_labels, decode_labels, encode_labels

LARGEST = 2**45 - 1


@pytest.mark.parametrize("flags", range(8))
def test_labels_and_flags_survive_float32(flags):
    labels = np.array([0, 1, 2**24 - 1, 2**24, 2**24 + 1, 2**40 + 1, LARGEST])
    digits = encode_labels(labels, flags).astype(np.float32)
    assert digits.shape == (7, 2)
    decoded, rank_flags = decode_labels(digits.astype(np.int64), ranks=1)
    assert decoded.dtype == np.int64 and rank_flags.tolist() == [flags]
    np.testing.assert_array_equal(decoded, labels)


def test_each_rank_has_its_own_flags():
    flags = [RankFlags(0), RankFlags.STOP_REQUESTED, RankFlags.CHECKPOINT_WRITTEN | RankFlags.STOP_REQUESTED]
    digits = np.concatenate([encode_labels(np.array([rank, 9]), flags[rank]) for rank in range(3)])
    labels, gathered = decode_labels(digits, ranks=3)
    assert labels.tolist() == [0, 9, 1, 9, 2, 9]
    assert (gathered & RankFlags.STOP_REQUESTED).tolist() == [0, 2, 2]
    assert (gathered & RankFlags.CHECKPOINT_WRITTEN).tolist() == [0, 0, 1]


@pytest.mark.parametrize("label", [-1, 7])
def test_a_label_outside_the_classes_is_refused(label):
    with pytest.raises(ValueError, match=rf"label {label} is not one of the 7 classes 0\.\.6"):
        check_labels(np.array([0, label]), 7)
