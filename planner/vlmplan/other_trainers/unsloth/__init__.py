"""Unsloth's programs: its defaults, its names of models, and the modules that it adapts."""
