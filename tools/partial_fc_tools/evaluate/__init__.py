"""Metrics of embeddings on disk."""
