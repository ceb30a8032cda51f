"""Sizes of the backbones: parameters, and the activations that a training step keeps of each image.

Those of PyTorch are derived from the module (partial_fc_torch/sizes.py). The numbers of MXNet's follow from the
published architectures at 112 x 112 (arXiv 1801.07698 and 1804.07573; 1611.05431 for the grouped ones), and
tests/mx/test_planner_backbones.py compares them with the symbols in mxnet/partial_fc_mxnet/symbol.

MXNet keeps the output of every layer until the backward pass has used it, except those that it overwrites (additions,
ReLU). Gradients of maps reuse the memory of maps that are no longer needed, except the first, as large as the largest
map. For r18 to r200 that sum is within 0.3 % of MXNet's own memory plan, for the grouped backbones 2 % above it, and
steps of r18 on a CPU without oneDNN take 1 % more. With oneDNN, whose convolutions use another layout than PReLU, a CPU
holds maps in both layouts: steps of r18 and r50 then take what is planned, those of mbf 12 % more.

Shapes: B images, E embedding.
"""

from functools import cache
from typing import NamedTuple

from partial_fc.utils.imports import import_trainer

# Besides its weights the head has a bias, and scale and offset of the last batch norm.
_HEAD_VECTORS = 3
IMAGE_SIZE = 112
IMAGE_NUMBERS = 3 * IMAGE_SIZE**2


class Backbone(NamedTuple):
    """Counts of numbers in MXNet, not bytes."""

    half: int  # parameters that are float16 in float16 training: those of convolutions and PReLUs
    full: int  # the others, without the head's FullyConnected and what follows it
    head_inputs: int  # inputs of that FullyConnected
    running: int  # statistics of the batch norms, without the one after the head
    kept: int  # activations that a step keeps of an image
    largest: int  # the largest activation of an image
    convolved: int  # multiplications of the convolutions for an image
    prelu: bool = True  # the activation is PReLU, which oneDNN does not compute in its own layout

    def parameters(self, embedding: int) -> tuple[int, int]:
        """(parameters that are float16 in float16 training, parameters that stay float32)."""
        return self.half, self.full + embedding * (self.head_inputs + _HEAD_VECTORS)

    def statistics(self, embedding: int) -> int:
        """Number of running means and variances."""
        return self.running + 2 * embedding

    def multiplications(self, embedding: int) -> int:
        """Multiplications of a forward pass over one image, as the literature counts "FLOPs", without additions."""
        return self.convolved + embedding * self.head_inputs

    def activations(self, batch: int) -> int:
        """Activations that a step over B images keeps."""
        return batch * (self.kept + self.largest)


BACKBONES = {
    "r18": Backbone(11165312, 13696, 25088, 13696, 11942912, 802816, 2597109760),
    "r34": Backbone(21267904, 24832, 25088, 24832, 15706112, 802816, 4446797824),
    "r50": Backbone(30707136, 37120, 25088, 37120, 18114560, 802816, 6296485888),
    "r100": Backbone(52240960, 68608, 25088, 68608, 28350464, 802816, 12076761088),
    "r124": Backbone(73478208, 90112, 25088, 90112, 31662080, 802816, 14851293184),
    "r200": Backbone(105852288, 135040, 25088, 135040, 49273856, 802816, 23406100480),
    "rx50": Backbone(23968256, 96512, 25088, 96512, 46188032, 1605632, 4260544512),
    "rx101": Backbone(43064832, 200960, 25088, 200960, 66659840, 1605632, 8000061440),
    "mbf": Backbone(892928, 44416, 512, 19328, 9246976, 401408, 220899840),
    "small": Backbone(292656, 1184, 2048, 1184, 149248, 37632, 10801920, prelu=False),
}


class PlannedTask(NamedTuple):
    """A task of a user, whose items are the inputs of the network; with what it is made of."""

    name: str  # package.module:name
    options: str  # the setting task_options
    config: str  # path of a settings.json with the other settings that it reads; empty for none
    classes: int  # C


class TorchBackbone(NamedTuple):
    """Counts of numbers in PyTorch, not bytes; what is said of an image holds for an item of a user's task."""

    parameters: int  # of the network
    statistics: int  # running means and variances
    copied: int  # weights of which autocast makes copies of 16 bits
    largest_parameter: int  # numbers of the largest weight
    largest: int  # the largest activation of an image
    # what autograd saves of an image in float32, the image among it, and what it computes again at a time
    all_full: int
    # half, full: the same with autocast, in float16 or bfloat16 and in float32
    half: int
    full: int
    trained: int  # multiplications of a forward pass over one image in training
    recomputed: int  # those of them that the backward pass does again
    multiplications: int  # of one in inference, see Backbone; more where training leaves out a part of the image
    input_bytes: int  # of an image in a batch


@cache
def torch_backbone(
    network: str, embedding: int, recompute: bool = False, task: PlannedTask | None = None
) -> TorchBackbone:
    """Returns the sizes of a network of the PyTorch trainer; for the arguments see Case.

    Raises ValueError if there is no such network, it has no blocks, PyTorch is not installed here, or the task fails.
    """
    try:
        import_trainer("partial_fc_torch")
        from . import torch_sizes
    except ImportError as error:
        raise ValueError(
            f"the sizes of {network} are those of PyTorch's module, and it cannot be imported ({error}): install "
            "PyTorch here, or plan in the environment of the trainer, such as .venv-torch"
        ) from error
    return torch_sizes.sizes(network, embedding, recompute, task)
