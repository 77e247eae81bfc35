"""Plans beside other people's trainers."""

__all__: list[str] = []
