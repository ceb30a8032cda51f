"""Checks whether hosts can train together. Needs only the standard library, so it runs where nothing is installed."""
