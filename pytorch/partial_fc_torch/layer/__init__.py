"""The classification layer in PyTorch: passes over tiles of centers, exchange between ranks, update of the centers."""
