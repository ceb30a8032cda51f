"""The rules of the masked-face challenge (ICCV 2021, InsightFace track), checked on a folder that is submitted."""
