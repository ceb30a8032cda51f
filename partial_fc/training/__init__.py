"""What surrounds the steps of a training: learning rates, results, report, I/O profile."""
