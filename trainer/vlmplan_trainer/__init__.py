"""The trainer that runs a plan made by vlmplan."""

__all__: list[str] = []
