"""The ``vlmplan`` command. A command's module parses, calls and prints; ``command_line`` imports it when it is used."""

# pyright: reportUnusedImport=false
from vlmplan.cli.entry import main
