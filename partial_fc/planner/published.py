"""Published step times, in samples/s, and their cases.

In github.com/deepinsight/insightface:
- recognition/partial_fc/README.md, the original trainer on MXNet: "Train Glint360K Using MXNET" (8 V100 of 32 GB) and
  "Performance On Million Identities" (RTX 2080 Ti). The first does not state r; its settings have 1.
- recognition/arcface_torch/README.md, "Speed Benchmark" on 8 V100 of 32 GB. It does not state backbone and batch; r50,
  float16 and 64 are those of configs/3millions.py for that test, and match the memory in its second table.
- recognition/arcface_torch/docs/speed_benchmark.md: 3 million identities, 1024 images, on the same cards.
- recognition/arcface_torch/README.md, "Training on Multi-Host GPU": WebFace42M, 2,059,906 identities. It states neither
  cards nor network; the speed of a card is that of a V100.

The original trainer and the later one on PyTorch count as two machines: their backbones differ by a tenth.
"""

from __future__ import annotations

from typing import NamedTuple

from .case import Case

GPUS_PER_HOST = 8
WEBFACE = 2_059_906
_GLINT = 360_232
_ALL_LOGITS = 1 << 20  # logits_cache_mb of these trainers, which keep all logits


class Published(NamedTuple):
    """A published figure.

    Attributes:
        table: its table.
        card: GPU and, unless it is MXNet, trainer; a key of machine.CARDS.
        case: the training.
        speed: samples/s of all ranks.
        fitted: the constants of the card are fitted to it; else it tests their prediction.
    """

    table: str
    card: str
    case: Case
    speed: float
    fitted: bool = False

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.case.batch * self.case.ranks / self.speed


def _row(table: str, card: str, sizes: tuple, speed: float, fitted: bool = False) -> Published:
    classes, ranks, batch, ratio, network, fp16 = sizes
    case = Case(classes, ranks, batch, ratio=ratio, network=network, fp16=fp16, logits_cache_mb=_ALL_LOGITS)
    return Published(table, card, case, speed, fitted)


PUBLISHED = (
    _row("MXNet", "V100", (_GLINT, 8, 64, 1.0, "r50", False), 2921, True),
    _row("MXNet", "V100", (_GLINT, 8, 128, 1.0, "r50", False), 3045),
    _row("MXNet", "V100", (_GLINT, 8, 64, 1.0, "r100", False), 1748),
    _row("MXNet", "V100", (_GLINT, 8, 128, 1.0, "r100", False), 1847),
    _row("MXNet", "V100", (_GLINT, 8, 64, 1.0, "r50", True), 5428, True),
    _row("MXNet", "V100", (_GLINT, 8, 128, 1.0, "r50", True), 6112, True),
    _row("MXNet", "V100", (_GLINT, 8, 64, 1.0, "r100", True), 3357),
    _row("MXNet", "V100", (_GLINT, 8, 128, 1.0, "r100", True), 3867),
    _row("PyTorch", "V100, PyTorch", (125_000, 8, 64, 1.0, "r50", True), 4824),
    _row("PyTorch", "V100, PyTorch", (1_400_000, 8, 64, 1.0, "r50", True), 3043),
    _row("PyTorch", "V100, PyTorch", (5_500_000, 8, 64, 1.0, "r50", True), 1389, True),
    _row("PyTorch", "V100, PyTorch", (125_000, 8, 64, 0.1, "r50", True), 5004, True),
    _row("PyTorch", "V100, PyTorch", (1_400_000, 8, 64, 0.1, "r50", True), 4738),
    _row("PyTorch", "V100, PyTorch", (5_500_000, 8, 64, 0.1, "r50", True), 3975),
    _row("PyTorch", "V100, PyTorch", (8_000_000, 8, 64, 0.1, "r50", True), 3565),
    _row("PyTorch", "V100, PyTorch", (16_000_000, 8, 64, 0.1, "r50", True), 2679),
    _row("PyTorch", "V100, PyTorch", (29_000_000, 8, 64, 0.1, "r50", True), 1855, True),
    _row("PyTorch", "V100, PyTorch", (3_000_000, 8, 128, 1.0, "r50", True), 2271),
    _row("PyTorch", "V100, PyTorch", (3_000_000, 8, 128, 0.1, "r50", True), 5300, True),
    _row("PyTorch, hosts", "V100, PyTorch", (WEBFACE, 8, 512, 0.2, "r50", True), 5900),
    _row("PyTorch, hosts", "V100, PyTorch", (WEBFACE, 16, 512, 0.2, "r50", True), 11000),
    _row("PyTorch, hosts", "V100, PyTorch", (WEBFACE, 32, 128, 0.2, "r50", True), 17000),
    _row("PyTorch, hosts", "V100, PyTorch", (WEBFACE, 16, 128, 0.2, "r100", True), 5200),
    _row("PyTorch, hosts", "V100, PyTorch", (WEBFACE, 16, 256, 0.2, "r100", True), 5200),
    _row("PyTorch, hosts", "V100, PyTorch", (WEBFACE, 32, 512, 0.0018, "r100", True), 10000),
    _row("PyTorch, hosts", "V100, PyTorch", (WEBFACE, 32, 128, 0.2, "r100", True), 9800),
    _row("MXNet, millions", "2080 Ti", (1_000_000, 8, 128, 1.0, "r50", True), 2390, True),
    _row("MXNet, millions", "2080 Ti", (1_000_000, 8, 128, 0.1, "r50", True), 2780, True),
    _row("MXNet, millions", "2080 Ti", (10_000_000, 64, 32, 1.0, "r50", True), 4483),
    _row("MXNet, millions", "2080 Ti", (10_000_000, 64, 64, 0.1, "r50", True), 12600),
)
