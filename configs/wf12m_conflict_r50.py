"""WebFace12M with divided classes, r50."""

from configs.sets import published, webface12m_conflict

config = webface12m_conflict("r50", published=published(79.93, 95.30, 91.56))
