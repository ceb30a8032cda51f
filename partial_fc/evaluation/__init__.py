"""How good embeddings are: verification, IJB, challenge submissions."""
