"""The layer in training loops of other frameworks. All programs print the same losses."""
