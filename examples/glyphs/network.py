"""A network for characters with a quarter of the filters of ``small``, the student of docs/finetuning.md."""

from partial_fc_torch.backbones.backbone import Options
from partial_fc_torch.backbones.small import Small


class SmallGlyphs(Small):
    """Seven convolutions, 39,000 weights for E = 128 and images of 64 x 64 pixels."""

    FILTERS = (8, 16, 32)


def small_glyphs(num_features: int, image_size: int = 64, dropout: float = 0.0) -> SmallGlyphs:
    """Builds the network."""
    return SmallGlyphs(Options(num_features, dropout, fp16=False, image_size=image_size))
