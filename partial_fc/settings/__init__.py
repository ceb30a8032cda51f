"""The settings of both trainers: declarations, presets, precedence and checks."""
