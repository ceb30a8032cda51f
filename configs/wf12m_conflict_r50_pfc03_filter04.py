"""WebFace12M with divided classes, r50, 30 % of the centers in a step, without negatives of a cosine above 0.4."""

from configs.sets import published, webface12m_conflict

config = webface12m_conflict(
    "r50", sample_rate=0.3, interclass_filtering_threshold=0.4, published=published(91.68, 97.28, 95.75)
)
