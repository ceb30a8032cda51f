"""What suits a GPU, from facts about GPUs that are not there."""

import pytest

from partial_fc_torch.device_defaults import gpu_of_rank, require_different_gpus, require_enough_gpus


@pytest.mark.parametrize("visible, expected", [(1, [0, 0, 0, 0]), (4, [0, 1, 2, 3]), (8, [0, 1, 2, 3])])
def test_a_rank_has_the_gpu_of_its_number_or_the_only_one_it_sees(visible, expected):
    require_enough_gpus(4, visible)
    assert [gpu_of_rank(local_rank, visible) for local_rank in range(4)] == expected


def test_too_few_gpus_are_refused():
    with pytest.raises(ValueError, match="4 ranks on this host, but it has 3 GPUs: start one rank per GPU"):
        require_enough_gpus(4, 3)


def test_ranks_with_the_same_gpu_are_named():
    own = [("a", "GPU-1"), ("a", "GPU-2"), ("b", "GPU-3")]
    require_different_gpus(own)
    with pytest.raises(ValueError, match=r"ranks 1, 3 on a have the same GPU GPU-2 \(3 GPUs for 4 ranks\): start one"):
        require_different_gpus([*own, ("a", "GPU-2")])
