"""The mathematics of the layer in NumPy: margins, softmax, sampling, sharding, tiles, updates."""
