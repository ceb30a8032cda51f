"""Cleans face sets with a trained model: wrong labels, split classes, near-duplicates, overlap with test sets."""
