"""The day on which a command is called."""

from datetime import date


def today() -> date:
    """The day against which prices age; a function so that tests can stand still."""
    return date.today()
