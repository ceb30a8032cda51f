"""The classification layer in MXNet: forward and backward pass, centers, updates."""
