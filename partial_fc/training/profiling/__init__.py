"""I/O profiling: measures whether reading the data set is the bottleneck of training."""
