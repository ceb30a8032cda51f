"""Checks whether hosts can train together. Standard library only: it also runs where nothing is installed."""
