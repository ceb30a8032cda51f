"""Sizes of the backbones: parameters, multiplications, and the activations that a training step keeps per image.

For PyTorch, torch_sizes.py measures the module. For MXNet, the sizes follow from the published architectures at
112 x 112 (arXiv 1801.07698 and 1804.07573; 1611.05431 for the grouped ones); tests/mx/test_planner_backbones.py
compares them with the symbols.

MXNet keeps the output of every layer until the backward pass has used it, except outputs that are overwritten in place
(additions, ReLU). Gradients of activations reuse the memory of activations that are no longer needed, except for the
first gradient, which takes the size of the largest activation. The total is within 0.3 % of MXNet's own memory plan for
r18 to r200, and 2 % above it for the grouped backbones.
"""

from typing import NamedTuple

from partial_fc.utils.config import choose
from partial_fc.utils.imports import import_trainer

from .case import FLOAT, Case

IMAGE_SIZE = 112
IMAGE_NUMBERS = 3 * IMAGE_SIZE**2
_HEAD_VECTORS = 3  # vectors of length E in the head: its bias, and the scale and shift of the last batch norm


class BackboneSizes(NamedTuple):
    """Sizes of a backbone in a training, as numbers of elements unless the name says bytes."""

    parameters: int
    statistics: int  # running means and variances
    multiplications: int  # per item, in the forward pass of inference; the literature calls them FLOPs
    saved_bytes: int  # activations that a training step keeps per item (an image, or an item of a task)
    item_bytes: int  # size of an item when it is copied to the device
    training_products: (
        int  # multiplications per item in training, fewer than in inference if the network masks parts of an image
    )
    recomputed: int = 0  # multiplications per item that the backward pass repeats
    half_parameters: int = 0  # parameters that are stored and sent in float16
    relaid_activations: int = 0  # activations per item that oneDNN copies to a second layout on a CPU
    copied_bytes: int = 0  # 16-bit copies of the weights
    largest_parameter: int = 0
    largest: int = 0  # size of the largest activation per item


class Symbol(NamedTuple):
    """Sizes of an MXNet backbone, as numbers of elements."""

    half_parameters: int  # parameters of convolutions and PReLUs, which fp16 trains in float16
    full: int  # other parameters, without the head's FullyConnected and the batch norm after it
    head_inputs: int  # inputs of the head's FullyConnected
    running: int  # statistics of the batch norms, without the one after the head
    kept: int  # activations that a step keeps per image
    largest: int  # size of the largest activation per image
    convolved: int  # multiplications of the convolutions per image
    prelu: bool = True  # whether it has PReLUs, which oneDNN does not compute in its own layout

    def sizes(self, embedding: int, fp16: bool) -> BackboneSizes:
        """Returns the sizes for an embedding size."""
        head = embedding * (self.head_inputs + _HEAD_VECTORS)
        multiplications = self.convolved + embedding * self.head_inputs
        return BackboneSizes(
            parameters=self.half_parameters + self.full + head,
            statistics=self.running + 2 * embedding,
            multiplications=multiplications,
            saved_bytes=(2 if fp16 else FLOAT) * (self.kept + self.largest),
            item_bytes=FLOAT * IMAGE_NUMBERS,
            training_products=multiplications,
            half_parameters=self.half_parameters * fp16,
            relaid_activations=self.kept * self.prelu,
        )


SYMBOLS = {
    "r18": Symbol(11165312, 13696, 25088, 13696, 11942912, 802816, 2597109760),
    "r34": Symbol(21267904, 24832, 25088, 24832, 15706112, 802816, 4446797824),
    "r50": Symbol(30707136, 37120, 25088, 37120, 18114560, 802816, 6296485888),
    "r100": Symbol(52240960, 68608, 25088, 68608, 28350464, 802816, 12076761088),
    "r124": Symbol(73478208, 90112, 25088, 90112, 31662080, 802816, 14851293184),
    "r200": Symbol(105852288, 135040, 25088, 135040, 49273856, 802816, 23406100480),
    "rx50": Symbol(23968256, 96512, 25088, 96512, 46188032, 1605632, 4260544512),
    "rx101": Symbol(43064832, 200960, 25088, 200960, 66659840, 1605632, 8000061440),
    "mbf": Symbol(892928, 44416, 512, 19328, 9246976, 401408, 220899840),
    "small": Symbol(292656, 1184, 2048, 1184, 149248, 37632, 10801920, prelu=False),
}


def backbone_sizes(case: Case) -> BackboneSizes | None:
    """Returns the sizes of the backbone; None if the case has no network.

    Raises:
        ValueError: The network is unknown, PyTorch is not installed here, or the network or its task fails.
    """
    if not case.network:
        return None
    if case.trainer == "mxnet":
        choose("network of the mxnet trainer", case.network, SYMBOLS)
        return SYMBOLS[case.network].sizes(case.embedding, case.fp16)
    try:
        import_trainer("partial_fc_torch")
        from . import torch_sizes
    except ImportError as error:
        raise ValueError(
            f"the sizes of {case.network} are measured with PyTorch; plan in the PyTorch trainer's environment, such "
            f"as .venv-torch: {error}"
        ) from error
    task = (case.task, case.task_options, case.config, case.classes) if case.task else None
    return torch_sizes.measure(case.network, case.embedding, case.fp16, case.activation_checkpointing, task)
