"""Evaluation of embeddings: face verification, IJB-B and IJB-C, challenge submissions."""
