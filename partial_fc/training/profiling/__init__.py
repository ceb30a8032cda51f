"""I/O profile: is reading the bottleneck?"""
