"""Weights of images in a template by hand; test_ijb_command.py pools whole templates."""

import numpy as np

from partial_fc.evaluation.ijb.embedding import media_shares, normalized


def test_shares_by_hand():
    """Media 7 of template 0 has two images; media 7 of template 1 is another one."""
    templates, media = np.array([0, 0, 1, 0], np.int32), np.array([7, 7, 7, 8], np.int32)
    assert media_shares(templates, media).tolist() == [0.5, 0.5, 1, 1]
    largest = np.array([999_999_999, 999_999_999], np.int32)
    assert media_shares(largest, largest).tolist() == [0.5, 0.5]


def test_zeros_stay_zeros():
    assert normalized(np.array([[0.0, 0], [3, 4]])).tolist() == [[0, 0], [0.6, 0.8]]
