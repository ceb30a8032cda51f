"""The settings of both trainers: declarations, presets, which of them win, and what is refused together."""
