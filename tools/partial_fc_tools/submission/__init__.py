"""Checks a submission folder by the rules of the masked-face challenge (ICCV 2021, InsightFace track)."""
