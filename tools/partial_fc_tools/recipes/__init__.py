"""Finished trainings beside published results: `partial-fc recipes`."""
