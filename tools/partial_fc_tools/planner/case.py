"""A training to be planned, the sizes of its classification layer, and a part of its memory.

Shapes: B local batch, R ranks, G = B*R global batch, E embedding, C classes, L classes of a rank, S of them in a step,
T classes of a tile.
"""

from typing import NamedTuple

from partial_fc.layer.center_states import CENTER_STATES, center_widths
from partial_fc.layer.margins import MARGINS
from partial_fc.layer.sharding import num_sampled, shard_of
from partial_fc.layer.tiling import LOGITS_CACHE_MB, tile_classes
from partial_fc.utils.config import choose

from .backbones import BACKBONES, IMAGE_NUMBERS, PlannedTask, TorchBackbone, torch_backbone

FLOAT = 4  # bytes of a float32
MIB = 1 << 20
TRAINERS = ("mxnet", "torch")
DEVICES = ("gpu", "cpu")
BANKS = ("gpu", "host", "file")
BACKBONE_STATES = {"sgd": 1, "adamw": 2}  # numbers that the optimizer of the backbone keeps for each parameter
GRADIENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
SLOPED = ("curricularface",)  # margins that change negatives: each logit has a slope, and a step gathers all targets


class Case(NamedTuple):
    """The sizes of a training."""

    classes: int  # C
    ranks: int = 1  # R
    batch: int = 64  # B
    embedding: int = 512  # E
    ratio: float = 1.0  # r, the share of a rank's centers that is sampled in a step
    fp16: bool = False  # the backbone computes in float16, with float32 head and master weights
    device: str = "gpu"  # gpu or cpu, the device that the ranks compute on
    bank: str = "gpu"  # where centers and states are stored: gpu (the device that computes), host, or file
    network: str = ""  # name of a backbone; empty leaves the backbone out
    tile_classes: int = 0  # T; 0 chooses it for the device
    # most that the forward pass keeps of logits and centers for the backward pass, in MiB
    logits_cache_mb: int = LOGITS_CACHE_MB
    trainer: str = "mxnet"  # mxnet or torch
    optimizer: str = "sgd"  # of the centers, a key of CENTER_STATES
    margin: str = MARGINS[0]  # a name in MARGINS
    backbone_optimizer: str = "sgd"  # a key of BACKBONE_STATES
    ema: bool = False  # there is a moving average of the backbone's weights
    # the blocks of the backbone keep their input alone, and compute the rest again
    activation_checkpointing: bool = False
    gradient_dtype: str = "float32"  # in which the ranks average the backbone's gradients, a key of GRADIENT_BYTES
    gradient_acc: int = 1  # micro-batches of B images in an update. What a step is to the planner is an update then.
    task: str = ""  # package.module:name of a task whose items the network takes; empty for images
    task_options: str = ""  # its settings
    config: str = ""  # path of a settings.json with others that it reads


# Those of the PyTorch trainer alone.
_OF_BACKBONE = ("backbone_optimizer", "ema", "activation_checkpointing", "gradient_dtype", "gradient_acc", "task")
_OF_TORCH = ("optimizer", "margin", *_OF_BACKBONE)


class Layer(NamedTuple):
    """Sizes of the layer of the rank with the most classes, see tiled_softmax.py."""

    batch: int  # G, of a micro-batch
    classes: int  # L
    sampled: int  # S
    tile: int  # T
    tiles: int  # number of tiles
    # computes, bank: where the rank computes and where its bank is stored: device, host or file
    computes: str
    bank: str
    # the bank is not on the GPU that computes, so centers are copied to it: by tile, in PyTorch all of a step, with
    # their states
    elsewhere: bool
    gathered: bool  # the rows of a tile are gathered from the bank, as classes are sampled
    keeps: bool  # logits, their slopes and copied centers are kept from the forward pass for the backward pass
    states: tuple[int, ...]  # numbers per class of each state of the optimizer
    sloped: bool  # whether logits have slopes, see SLOPED


class Part(NamedTuple):
    """A part of the memory of a rank; group: layer, backbone or process; place: device, host or file."""

    group: str
    name: str
    place: str
    nbytes: int


def layer_part(name: str, place: str, numbers: int) -> Part:
    """Returns a part of the layer with this many float32 numbers."""
    return Part("layer", name, place, FLOAT * numbers)


def lay_out(case: Case) -> Layer:
    """Computes the sizes of the layer.

    Raises:
        ValueError: the trainer cannot train this case, or r is not in [0, 1].
    """
    if case.fp16 and case.device == "cpu":
        raise ValueError("the trainers have no float16 convolutions on the CPU: plan fp16 with GPUs")
    choose("optimizer of the centers", case.optimizer, CENTER_STATES)
    choose("optimizer of the backbone", case.backbone_optimizer, BACKBONE_STATES)
    if case.task and not case.network:
        raise ValueError(f"task {case.task} is of use with a network alone: set --network package.module:function")
    for name in _OF_TORCH if case.trainer == "mxnet" else ():
        if getattr(case, name) != Case._field_defaults[name]:
            option = f"{name.replace('_', '-')} {getattr(case, name)}"
            raise ValueError(f"the mxnet trainer has no {option}: plan it with --trainer torch")
    if case.trainer == "mxnet" and case.network:
        choose("network of the mxnet trainer", case.network, BACKBONES)
    batch, classes = case.batch * case.ranks, shard_of(case.classes, 0, case.ranks).size
    # r = 0: at most one center of each image.
    sampled = num_sampled(classes, case.ratio) or min(case.gradient_acc * batch, classes)
    tile = min(sampled, case.tile_classes or tile_classes(batch, case.embedding, case.device))
    computes = "device" if case.device == "gpu" else "host"
    bank = computes if case.bank == "gpu" else case.bank
    elsewhere, gathered = computes == "device" and bank != "device", sampled < classes
    copied = gathered and not elsewhere if case.trainer == "torch" else gathered or elsewhere
    sloped = case.margin in SLOPED
    numbers_of_class = batch * (1 + sloped) + (case.embedding if copied else 0)
    keeps = FLOAT * numbers_of_class * sampled <= case.logits_cache_mb << 20
    _, *states = center_widths(case.embedding, CENTER_STATES[case.optimizer]).values()
    tiles = -(-sampled // tile)
    of_bank = computes, bank, elsewhere, gathered, keeps, tuple(states), sloped
    return Layer(batch, classes, sampled, tile, tiles, *of_bank)


def gradient_bytes(case: Case) -> int:
    """Returns the bytes of the backbone's gradients between the ranks."""
    half, full = parameters(case) if case.network else (0, 0)
    return (2 if case.fp16 else FLOAT) * half + GRADIENT_BYTES[case.gradient_dtype] * full


def backbone_sizes(case: Case) -> TorchBackbone:
    """Returns the sizes of a backbone of the PyTorch trainer."""
    task = PlannedTask(case.task, case.task_options, case.config, case.classes) if case.task else None
    return torch_backbone(case.network, case.embedding, case.activation_checkpointing, task)


def input_bytes(case: Case) -> int:
    """Returns the bytes of an item on its way to the device; PyTorch converts the pixels of images there."""
    return backbone_sizes(case).input_bytes if case.trainer == "torch" else FLOAT * IMAGE_NUMBERS


def item_name(case: Case, count: int = 2) -> str:
    """Returns what the backbone takes, in words."""
    return ("item" if case.task else "image") + "s" * (count > 1)


def parameters(case: Case) -> tuple[int, int]:
    """Returns the numbers of parameters that are float16 in float16 training (none in PyTorch) and of the others."""
    if case.trainer == "torch":
        return 0, backbone_sizes(case).parameters
    return BACKBONES[case.network].parameters(case.embedding)


def multiplications(case: Case, training: bool = False) -> int:
    """Returns the multiplications of a forward pass of the backbone over one image."""
    if case.trainer == "torch":
        backbone = backbone_sizes(case)
        return backbone.trained if training else backbone.multiplications
    return BACKBONES[case.network].multiplications(case.embedding)
