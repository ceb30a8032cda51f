"""The layer in training loops that are not this project's: all programs print the same losses."""
