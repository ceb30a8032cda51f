"""Approximate search in millions of embeddings: an index on disk, and the commands that change it."""
