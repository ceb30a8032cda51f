"""Synthetic speakers, and WeSpeaker's recipe for speaker verification on them."""
