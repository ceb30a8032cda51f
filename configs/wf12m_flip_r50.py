"""WebFace12M with 40 % wrong labels, r50."""

from configs.sets import published, webface12m_flip

config = webface12m_flip("r50", published=published(43.87, 88.35, 80.78))
