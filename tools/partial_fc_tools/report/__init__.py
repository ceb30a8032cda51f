"""Model cards and comparisons of runs: `partial-fc report`."""
