"""Runs of labels against the plain array of one label an image."""

import numpy as np

from partial_fc.data.label_runs import LabelRuns

LABELS = np.array([4, 4, 0, 2, 2, 2, 4, 1])


def test_runs_are_equivalent_to_the_array():
    runs = LabelRuns.of_labels(LABELS)
    assert runs.starts.tolist() == [0, 2, 3, 6, 7] and runs.labels.tolist() == [4, 0, 2, 4, 1]
    assert runs.labels_at(np.arange(8)).tolist() == LABELS.tolist()
    assert int(runs.labels_at(5)) == 2
    assert runs.lengths().tolist() == [2, 1, 3, 1, 1]
    assert runs.images_per_label(6).tolist() == np.bincount(LABELS, minlength=6).tolist()


def test_kept_images_are_numbered_consecutively():
    runs = LabelRuns.of_labels(LABELS)
    kept = runs.keep(np.array([True, False, True, False, True]))
    expected = [0, 1, 3, 4, 5, 7]
    assert len(kept) == 6 and kept.positions(np.arange(6)).tolist() == expected
    assert kept.positions(np.array([5, 0])).tolist() == [7, 0]
    assert [kept.after(position) for position in expected] == expected[1:] + expected[:1]
    assert len(runs.keep(np.zeros(5, bool))) == 0
