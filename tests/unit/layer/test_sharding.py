import numpy as np
import pytest

from partial_fc.layer.sharding import num_sampled, shard_of


@pytest.mark.parametrize("classes, ranks", [(12, 3), (13, 3), (14, 3), (2, 5), (1, 1), (360232, 8)])
def test_shards_are_consecutive_and_cover_every_class_once(classes, ranks):
    shards = [shard_of(classes, rank, ranks) for rank in range(ranks)]
    assert np.concatenate([np.arange(*shard) for shard in shards]).tolist() == list(range(classes))
    assert max(s.size for s in shards) - min(s.size for s in shards) <= 1
    assert [s.size for s in shards] == sorted((s.size for s in shards), reverse=True)


@pytest.mark.parametrize(
    "classes, ratio, expected", [(100, 0.29, 29), (100, 1.0, 100), (3, 0.1, 1), (0, 0.5, 0), (99, 0.5, 49), (9, 0, 0)]
)
def test_number_of_sampled_classes(classes, ratio, expected):
    assert num_sampled(classes, ratio) == expected


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: shard_of(0, 0, 2), "cannot split 0 classes"),
        (lambda: shard_of(10, 2, 2), "rank 2 is not one of the 2 ranks"),
        (lambda: num_sampled(10, -0.1), "sample_ratio"),
        (lambda: num_sampled(10, 1.01), "sample_ratio"),
    ],
)
def test_values_out_of_range_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
