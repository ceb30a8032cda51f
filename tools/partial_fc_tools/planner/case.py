"""The settings of a training to plan, and the sizes of its classification layer.

Shapes: B local batch, R ranks, G = B*R global batch, E embedding, C classes, L classes per rank, S classes that a rank
samples per step, T classes per tile, K sub-centers of a class.
"""

from typing import Any, NamedTuple

from partial_fc.layer.center_states import CENTER_STATES, center_bytes, center_widths
from partial_fc.layer.margins import MARGINS
from partial_fc.layer.sharding import num_sampled, shard_of
from partial_fc.layer.tiling import LOGITS_CACHE_MB, tile_classes
from partial_fc.utils.config import choose
from partial_fc.utils.options import CENTER_DTYPES, UNIT_COPIES

FLOAT = 4  # bytes of a float32
MIB = 1 << 20
TRAINERS = ("mxnet", "torch")
DEVICES = ("gpu", "cpu")
BANKS = ("gpu", "host", "file")
BACKBONE_STATES = {"sgd": 1, "adamw": 2}  # optimizer states per parameter of the backbone
GRADIENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Margins that change negative logits, which need a slope per logit -> what their ranks also gather, and its bytes per
# row: all target cosines, as float64; the logits of the k + 1 hardest negatives, as float32, k being 5 by default.
SLOPED = {
    "curricularface": ("the targets' cosines (targets)", 8),
    "inter_topk": ("the hardest negatives (hardest)", 24),
}


class Case(NamedTuple):
    """The settings of a training that determine its memory and traffic."""

    classes: int  # C
    ranks: int = 1  # R
    batch: int = 64  # B
    embedding: int = 512  # E
    ratio: float = 1.0  # fraction of the class centers sampled per step
    fp16: bool = False  # whether the backbone computes in float16, with float32 head and master weights
    device: str = "gpu"  # device that the ranks compute on
    bank: str = "gpu"  # where centers and states are stored; "gpu" is the memory of the computing device
    network: str = ""  # name of a backbone; empty to plan only the layer
    tile_classes: int = 0  # T; 0 for the device's default
    logits_cache_mb: int = LOGITS_CACHE_MB  # MiB of logits and centers that the forward pass keeps at most
    trainer: str = "mxnet"
    # The remaining settings exist only in the PyTorch trainer.
    optimizer: str = "sgd"  # optimizer of the centers, a key of CENTER_STATES
    sub_centers: int = 1  # K
    center_dtype: str = "float32"  # type of stored centers and states, a key of CENTER_DTYPES
    unit_copy: str = "auto"  # a key of UNIT_COPIES; auto, which needs memory that is free, counts as none
    margin: str = MARGINS[0]
    backbone_optimizer: str = "sgd"  # a key of BACKBONE_STATES
    ema: bool = False  # whether to keep an average of the backbone's weights
    activation_checkpointing: bool = False
    gradient_dtype: str = "float32"  # type in which ranks exchange the backbone's gradients, a key of GRADIENT_BYTES
    gradient_acc: int = 1  # micro-batches of B images per update; the planner calls an update a step
    task: str = ""  # package.module:name of the task that makes the network's inputs; empty for images
    task_options: str = ""
    config: str = ""  # path of a settings.json with other settings that the task reads
    # Heads after the first: name, and the fields that differ from the first's, as pairs.
    heads: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()

    def of_heads(self) -> dict[str, "Case"]:
        """Returns the case of each head after the first by name, as if it were trained alone."""
        return {name: self._replace(heads=(), **dict(fields)) for name, fields in self.heads}

    @property
    def items(self) -> str:
        """What the inputs of the backbone are called, in the plural."""
        return "items" if self.task else "images"


_ONLY_TORCH = (*Case._fields[Case._fields.index("optimizer") : Case._fields.index("task_options")], "heads")


class Layer(NamedTuple):
    """Sizes of the layer on the rank with the most classes."""

    batch: int  # G, for a micro-batch
    classes: int  # L
    sampled: int  # S
    tile: int  # T
    tiles: int  # number of tiles
    computes: str  # where the rank computes: device or host
    bank: str  # where its bank is stored: device, host or file
    elsewhere: bool  # whether the computing GPU does not hold the bank, so that a step copies centers to it
    gathered: bool  # whether classes are sampled, so that the rows of a tile are gathered from the bank
    keeps: bool  # whether the forward pass keeps logits, slopes and copied centers for the backward pass
    center_width: int  # K * E, numbers of the centers of a class
    state_width: int  # optimizer states per class
    center_bytes: int  # bytes of the centers of a class in the bank
    state_bytes: int  # bytes of their states there
    narrow: bool  # whether they are stored in 16 bits, so that the rows of a tile are copied to float32
    sloped: bool  # whether the margin is in SLOPED


def lay_out(case: Case) -> Layer:
    """Computes the sizes of the layer.

    Raises:
        ValueError: The trainer does not support this case.
    """
    _validate(case)
    batch, classes = case.batch * case.ranks, shard_of(case.classes, 0, case.ranks).size
    # With ratio 0 a step samples only the classes of its images.
    sampled = num_sampled(classes, case.ratio) or min(case.gradient_acc * batch, classes)
    rows = case.tile_classes or tile_classes(batch, case.embedding, case.device)
    tile, center_width = min(sampled, max(1, rows // case.sub_centers)), case.sub_centers * case.embedding
    computes = "device" if case.device == "gpu" else "host"
    bank = computes if case.bank == "gpu" else case.bank
    elsewhere, gathered = computes == "device" and bank != "device", sampled < classes
    # From a bank elsewhere, PyTorch copies all rows of a step in advance, MXNet the rows of one tile at a time.
    copied = gathered and not elsewhere if case.trainer == "torch" else gathered or elsewhere
    narrow = case.center_dtype != "float32"
    sloped = case.margin in SLOPED
    kept = FLOAT * (batch * (1 + sloped) + (center_width if copied and not narrow else 0))  # bytes per class
    kept += batch * (case.sub_centers > 1)  # the number of the nearest sub-center
    keeps = kept * sampled <= case.logits_cache_mb * MIB
    states = CENTER_STATES[case.optimizer]
    state_width = sum(center_widths(case.embedding, states).values()) - case.embedding
    row_bytes, *state_bytes = center_bytes(case.embedding, states, case.center_dtype).values()
    sizes = batch, classes, sampled, tile, -(-sampled // tile)
    numbers = center_width, case.sub_centers * state_width
    stored = case.sub_centers * row_bytes, case.sub_centers * sum(state_bytes)
    return Layer(*sizes, computes, bank, elsewhere, gathered, keeps, *numbers, *stored, narrow, sloped)


def _validate(case: Case) -> None:
    if case.fp16 and case.device == "cpu":
        raise ValueError("the trainers do not support float16 convolutions on the CPU: plan fp16 with GPUs")
    choose("optimizer of the centers", case.optimizer, CENTER_STATES)
    choose("data type of the centers", case.center_dtype, CENTER_DTYPES)
    choose("copy of the unit centers", case.unit_copy, UNIT_COPIES)
    choose("optimizer of the backbone", case.backbone_optimizer, BACKBONE_STATES)
    if case.task and not case.network:
        raise ValueError(f"task {case.task} needs a network: set --network package.module:function")
    for name in _ONLY_TORCH if case.trainer == "mxnet" else ():
        if getattr(case, name) != Case._field_defaults[name]:
            option = "heads" if name == "heads" else f"{name.replace('_', '-')} {getattr(case, name)}"
            raise ValueError(f"the mxnet trainer has no {option}: plan it with --trainer torch")
