"""The ``vlmplan`` command. A command's module parses, calls and prints; ``command_line`` imports it when it is used."""

from vlmplan.cli.command_line import BROKEN_PIPE, COMMANDS, cli, main, run

__all__ = ["BROKEN_PIPE", "COMMANDS", "cli", "main", "run"]
