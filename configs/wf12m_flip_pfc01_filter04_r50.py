"""WebFace12M with 40 % wrong labels, r50, 10 % of the centers in a step, without negatives of a cosine above 0.4."""

from configs.sets import published, webface12m_flip

config = webface12m_flip(
    "r50", sample_rate=0.1, interclass_filtering_threshold=0.4, published=published(80.20, 96.11, 93.79)
)
