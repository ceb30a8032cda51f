"""A training to be planned, and the sizes of its classification layer.

Shapes: B local batch, R ranks, G = B*R global batch, E embedding, C classes, L classes of a rank, S sampled classes of
a rank in a step, T classes of a tile.
"""

from typing import NamedTuple

from partial_fc.layer.center_states import CENTER_STATES, center_widths
from partial_fc.layer.margins import MARGINS
from partial_fc.layer.sharding import num_sampled, shard_of
from partial_fc.layer.tiling import LOGITS_CACHE_MB, tile_classes
from partial_fc.utils.config import choose

FLOAT = 4  # bytes of a float32
MIB = 1 << 20
TRAINERS = ("mxnet", "torch")
DEVICES = ("gpu", "cpu")
BANKS = ("gpu", "host", "file")
BACKBONE_STATES = {"sgd": 1, "adamw": 2}  # numbers that an optimizer keeps for each parameter of the backbone
GRADIENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
SLOPED = ("curricularface",)  # margins that change negatives: a step keeps a slope per logit and gathers the targets


class Case(NamedTuple):
    """The settings of a training that determine its memory and traffic."""

    classes: int  # C
    ranks: int = 1  # R
    batch: int = 64  # B
    embedding: int = 512  # E
    ratio: float = 1.0  # fraction of the class centers that is sampled in a step
    fp16: bool = False  # the backbone computes in float16, with float32 head and master weights
    device: str = "gpu"  # device that the ranks compute on
    bank: str = "gpu"  # where centers and states are stored; "gpu" is the memory of the device that computes
    network: str = ""  # name of a backbone; empty plans the layer alone
    tile_classes: int = 0  # T; 0 chooses it for the device
    logits_cache_mb: int = LOGITS_CACHE_MB  # limit of what the forward pass keeps of logits and centers, in MiB
    trainer: str = "mxnet"
    # The settings below exist in the PyTorch trainer only.
    optimizer: str = "sgd"  # of the centers, a key of CENTER_STATES
    margin: str = MARGINS[0]
    backbone_optimizer: str = "sgd"  # a key of BACKBONE_STATES
    ema: bool = False  # keep a moving average of the backbone's weights
    activation_checkpointing: bool = False
    gradient_dtype: str = "float32"  # of the backbone's gradients between ranks, a key of GRADIENT_BYTES
    gradient_acc: int = 1  # micro-batches of B images per update; the planner calls an update a step
    task: str = ""  # package.module:name of a task whose items the network takes; empty for images
    task_options: str = ""
    config: str = ""  # path of a settings.json with the other settings that the task reads

    @property
    def items(self) -> str:
        """What the backbone takes, in the plural."""
        return "items" if self.task else "images"


_ONLY_TORCH = Case._fields[Case._fields.index("optimizer") : Case._fields.index("task_options")]


class Layer(NamedTuple):
    """Sizes of the layer on the rank with the most classes."""

    batch: int  # G, of a micro-batch
    classes: int  # L
    sampled: int  # S
    tile: int  # T
    tiles: int  # number of tiles
    computes: str  # where the rank computes: device or host
    bank: str  # where its bank is stored: device, host or file
    elsewhere: bool  # the bank is not on the GPU that computes, so that a step copies its centers there
    gathered: bool  # classes are sampled, so that the rows of a tile are gathered from the bank
    keeps: bool  # the forward pass keeps logits, slopes and copied centers for the backward pass
    state_width: int  # numbers per class that the optimizer keeps
    sloped: bool  # see SLOPED


def lay_out(case: Case) -> Layer:
    """Computes the sizes of the layer.

    Raises:
        ValueError: The trainer cannot train this case.
    """
    _validate(case)
    batch, classes = case.batch * case.ranks, shard_of(case.classes, 0, case.ranks).size
    # With ratio 0 a step samples the classes of its images only.
    sampled = num_sampled(classes, case.ratio) or min(case.gradient_acc * batch, classes)
    tile = min(sampled, case.tile_classes or tile_classes(batch, case.embedding, case.device))
    computes = "device" if case.device == "gpu" else "host"
    bank = computes if case.bank == "gpu" else case.bank
    elsewhere, gathered = computes == "device" and bank != "device", sampled < classes
    # PyTorch copies all rows of a step from a bank elsewhere, MXNet those of a tile.
    copied = gathered and not elsewhere if case.trainer == "torch" else gathered or elsewhere
    sloped = case.margin in SLOPED
    kept = batch * (1 + sloped) + (case.embedding if copied else 0)  # numbers of a class
    keeps = FLOAT * kept * sampled <= case.logits_cache_mb * MIB
    state_width = sum(center_widths(case.embedding, CENTER_STATES[case.optimizer]).values()) - case.embedding
    sizes = batch, classes, sampled, tile, -(-sampled // tile)
    return Layer(*sizes, computes, bank, elsewhere, gathered, keeps, state_width, sloped)


def _validate(case: Case) -> None:
    if case.fp16 and case.device == "cpu":
        raise ValueError("the trainers have no float16 convolutions on the CPU: plan fp16 with GPUs")
    choose("optimizer of the centers", case.optimizer, CENTER_STATES)
    choose("optimizer of the backbone", case.backbone_optimizer, BACKBONE_STATES)
    if case.task and not case.network:
        raise ValueError(f"task {case.task} needs a network: set --network package.module:function")
    for name in _ONLY_TORCH if case.trainer == "mxnet" else ():
        if getattr(case, name) != Case._field_defaults[name]:
            option = f"{name.replace('_', '-')} {getattr(case, name)}"
            raise ValueError(f"the mxnet trainer has no {option}: plan it with --trainer torch")
