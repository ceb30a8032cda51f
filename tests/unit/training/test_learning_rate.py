import pytest

from partial_fc.training.learning_rate import scaled_rate


@pytest.mark.parametrize("images, rate", [(512, 0.1), (64, 0.0125), (1024, 0.2), (1, 0.1 / 512)])
def test_the_rate_follows_the_global_batch(images, rate):
    assert scaled_rate(0.1, images) == pytest.approx(rate)
