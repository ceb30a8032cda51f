"""The mathematics of the classification layer in NumPy: margins, softmax, sampling, sharding, tiles, updates."""
