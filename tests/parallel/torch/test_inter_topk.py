"""The penalty on the hardest negatives of all ranks, against the dense form."""

import numpy as np
import pytest
import torch
from dense_objectives import CLASSES, LABELS, SCALE, TILES, arcface, check_step
from torch_layer import LOCAL, G, all_ranks, build, build_v2, random_batch

from partial_fc_torch import InterTopK


def hardest_turned(cosines, k=3, penalty=0.2):
    """The cosines of a row's negatives with the penalty of inter-top-k."""
    hard = torch.zeros_like(cosines).index_fill_(0, cosines.topk(min(k, len(cosines))).indices, 1.0)
    return torch.where(hard > 0, (cosines.acos() - penalty).clamp(min=0).cos(), cosines)


@pytest.mark.parametrize("name", ["softmax", "softmax_shared", "bce", "sphereface2"])
@pytest.mark.parametrize("ratio", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("tiling", [{}, TILES, {"tile_classes": 3}])
@pytest.mark.parametrize("labels", [LABELS, LABELS[:, :1]], ids=["several", "one"])
def test_the_hardest_negatives_of_all_ranks_are_penalized(name, ratio, tiling, labels, sub_centers=1):
    margin = InterTopK(SCALE, m=0.5, k=3, penalty=0.2)
    layer = build_v2(CLASSES, ratio, margin, SCALE, objective=name, sub_centers=sub_centers, **tiling)
    check_step(layer, labels, name, arcface, sub_centers, hardest_turned)


@pytest.mark.parametrize("tiling", [{}, TILES])
def test_the_hardest_negatives_with_sub_centers(tiling):
    test_the_hardest_negatives_of_all_ranks_are_penalized("softmax", 0.5, tiling, LABELS, sub_centers=3)


@pytest.mark.parametrize("center_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tile_classes", [0, 3])
def test_a_second_backward_pass_computes_the_hardest_negatives_again(center_dtype, tile_classes):
    arguments = {"center_dtype": center_dtype, "tile_classes": tile_classes, "update_in_backward": False}
    layer = build(CLASSES, 0.5, InterTopK(SCALE, k=3, penalty=0.2), SCALE, **arguments)
    features = torch.from_numpy(random_batch(CLASSES)[0][LOCAL]).requires_grad_()
    loss = layer(features, torch.from_numpy(LABELS[LOCAL]))
    first, second = (torch.autograd.grad(loss, features, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tiling", [{}, TILES])
@pytest.mark.parametrize("classes", [2, 4])
def test_all_of_few_negatives_are_penalized(classes, tiling):
    """With 3 ranks, one has none of 2 classes; rows with both as labels have no negatives."""
    layer = build_v2(classes, 1.0, InterTopK(SCALE, m=0.5, k=3, penalty=0.2), SCALE, **tiling)
    labels = np.array([[0, 1], [1, -1], [-1, -1], [0, -1], [1, 1], [1, 0]])
    check_step(layer, labels, "softmax", arcface, change=hardest_turned)


@pytest.mark.parametrize("tiling", [{}, TILES, {"layer_dtype": "bfloat16", **TILES}])
def test_equal_negatives_are_all_penalized_and_turned_to_the_center_at_most(tiling):
    """The second and third hardest have the same cosine; the angle of the hardest is below the penalty."""
    margin = InterTopK(SCALE, m=0.5, k=2, penalty=0.2)
    layer = build_v2(5, 1.0, margin, SCALE, embedding_size=2, **tiling)
    angles = torch.tensor([2.0, 0.125, 1.0, 1.0, 2.5])
    with torch.no_grad():
        mine = slice(layer.class_start, layer.class_start + layer.num_local)
        layer.weight.copy_(torch.stack([angles.cos(), angles.sin()], dim=1)[mine])
    features = torch.tensor([[1.0, 0.0]]).repeat(G, 1)[LOCAL].requires_grad_()
    loss = layer(features, torch.zeros(len(features), dtype=torch.int64))
    loss.backward()
    turned = torch.tensor([2.5, 0.0, 0.8, 0.8, 2.5]).cos() * SCALE
    tolerance = 3e-2 if "layer_dtype" in tiling else 1e-5
    assert loss.item() == pytest.approx((turned.logsumexp(0) - turned[0]).item(), rel=tolerance)
    by_centers = all_ranks(layer.weight.grad)
    assert np.abs(by_centers[1]).max() < 1e-6 < np.abs(by_centers[[0, 2, 3]]).min(axis=0).max()
    np.testing.assert_allclose(by_centers[2], by_centers[3])
