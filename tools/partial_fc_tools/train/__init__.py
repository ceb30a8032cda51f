"""The command that starts a training."""
