"""Evaluation of embeddings: metrics of labeled items, face verification, and the detection of collapsed trainings."""
