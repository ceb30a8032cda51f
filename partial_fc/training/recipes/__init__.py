"""Configuration files of arcface_torch as settings of this trainer, and the published results of its recipes."""
