"""Where the console script begins: imports nothing before it is ready for Ctrl-C."""

import sys


def main() -> None:
    """Entry point of the console script."""
    try:
        from vlmplan.cli.command_line import run_and_exit

        run_and_exit()
    except KeyboardInterrupt:
        from vlmplan.errors import INTERRUPTED

        sys.exit(INTERRUPTED)
