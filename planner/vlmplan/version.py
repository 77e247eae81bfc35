"""The version of this installation, as pyproject.toml has it. A leaf: imports nothing of vlmplan."""

__version__ = "0.1.0"
