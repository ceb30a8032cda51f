"""The classification layer in MXNet: forward and backward pass, storage and update of the centers."""
