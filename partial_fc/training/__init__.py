"""The training itself: resuming, results, the run folder, learning rates, report and I/O profile."""
