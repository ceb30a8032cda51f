"""Commands for checkpoints: `partial-fc checkpoints --help`."""
