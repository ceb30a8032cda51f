"""Clusters of embeddings as the classes of a training without labels: the command `cluster`."""
