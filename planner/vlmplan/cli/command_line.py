"""The ``vlmplan`` command. Commands are imported when they are called, so that ``--help`` is quick."""

import errno
import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import click

from vlmplan.errors import INTERRUPTED, VlmplanError
from vlmplan.plain_text import one_line, printable_sentence, refuses_colour

COMMANDS: dict[str, tuple[str, str]] = {
    "recommend": ("vlmplan.cli.recommend", "Find the cheapest hardware and setup that trains a model."),
    "advise": ("vlmplan.cli.advise", "What one change of hardware, method or samples buys, as a table."),
    "estimate": ("vlmplan.cli.estimate", "Memory, time and cost of one setup on one kind of GPU."),
    "check": ("vlmplan.cli.check", "What another trainer's configuration means, and whether it fits."),
    "diagnose": ("vlmplan.cli.diagnose", "Why a run ran out of memory, by its log, and the smallest change."),
    "rehearse": ("vlmplan.cli.rehearse", "The real step on tensors without data: exact bytes, no GPU needed."),
    "launch": ("vlmplan.cli.launch", "Train what a plan says, or what these options plan for this machine."),
    "explain": ("vlmplan.cli.explain", "What a key of a ds_config.json does, and its bytes in a plan."),
    "buy": ("vlmplan.cli.buy", "Buy GPUs or rent them: usd a month, and from when on buying pays."),
    "gpus": ("vlmplan.cli.gpus", "List known GPUs and prices, or detect those of this machine."),
    "calibrate": ("vlmplan.cli.calibrate", "Measure this machine's GPU, in place of what estimates assume."),
    "prices": ("vlmplan.cli.prices", "How old every provider's prices are, what GPUs cost, and newer ones."),
    "web": ("vlmplan.cli.web", "A page on this machine: choose a setup, and see what it takes."),
    "models": ("vlmplan.cli.models", "List known models with parameters and image tokens."),
}
"""Name, module that defines a command of that name, and one line about it."""

BROKEN_PIPE = 141
OF_OUTPUT = (errno.ENOSPC, errno.EPIPE, errno.EBADF, errno.EFBIG, errno.EDQUOT, errno.ECONNRESET)
"""What a write to a pipe, a file or a closed stream ends with."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name not in COMMANDS and not name.startswith("-"):
            from vlmplan.errors import UnknownNameError

            raise click.UsageError(str(UnknownNameError("command", name, COMMANDS)), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="vlmplan", prog_name="vlmplan")
def cli() -> None:
    """Plan the memory, time and money of fine-tuning, then train exactly that plan.

    \b
    vlmplan recommend --model qwen2-vl-2b
    vlmplan estimate --model qwen2-vl-2b --gpu rtx-4090 --method lora
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors that the user can mend become one line on standard error."""
    try:
        color = False if refuses_colour() else None
        code: Any = cli.main(args=arguments, prog_name="vlmplan", standalone_mode=False, color=color)
        return code if isinstance(code, int) else 0
    except VlmplanError as error:
        click.echo(f"vlmplan: {printable_sentence(str(error))}", err=True)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else _command_path(arguments)
        click.echo(f"{where}: {_sentence(error)} (see {where} --help)", err=True)
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"vlmplan: {_sentence(error)}", err=True)
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except SystemExit:  # what click makes of a pipe that nobody reads any more
        return BROKEN_PIPE
    except OSError as error:
        click.echo(f"vlmplan: {printable_sentence(_about(error))}", err=True)
        return VlmplanError.exit_code


def _command_path(arguments: Sequence[str] | None) -> str:
    """The command that these arguments call, of which click's parser says nothing where an option has no value."""
    first = next(iter(sys.argv[1:] if arguments is None else arguments), "")
    return f"vlmplan {first}" if first in COMMANDS else "vlmplan"


def _about(error: OSError) -> str:
    """The sentence for an unexpected operating-system error: on a named file, or on the output."""
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        return f"{error.filename}: {reason}"
    return f"the output cannot be written: {reason}" if error.errno in OF_OUTPUT else f"the system refuses: {reason}"


def _sentence(error: click.ClickException) -> str:
    if isinstance(error, click.NoSuchOption):
        from vlmplan.cli.familiar_options import familiar

        words = familiar(error)
        if words is not None:
            return printable_sentence(f"No such option {error.option_name!r}; {words} says that here")
    return printable_sentence(one_line(error.format_message())).rstrip(".")


def run_and_exit() -> None:
    """What the console script does once everything is imported."""
    gc.disable()  # one short command; reference counting frees what matters, and a collection finds next to nothing
    _prepare_streams()
    _prepare_for_ctrl_c()
    code = run()
    gc.freeze()  # nor when Python shuts down
    try:
        sys.stdout.flush()
    except OSError:  # said already; Python would say it again
        sys.stdout = _nowhere()
    sys.exit(code)


def _prepare_streams() -> None:
    """Escape what a terminal cannot show, such as a model's folder in another script; closed streams are skipped.

    With PYTHONUNBUFFERED Python drops without an error what a nearly full disk does not take of one write: then lines
    are buffered.
    """
    if sys.stdin is None:
        sys.stdin = _nowhere("r")
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:
            setattr(sys, name, _nowhere())
        elif isinstance(stream, io.TextIOWrapper):
            written = cast("io.TextIOWrapper[Any]", stream)
            written.reconfigure(errors="backslashreplace")
            if name == "stderr":
                sys.stderr = _droppable(written)
            elif isinstance(written.buffer, io.RawIOBase):
                sys.stdout = _by_lines(written)


def _prepare_for_ctrl_c() -> None:
    """After Ctrl-C nothing is said of objects that were half made when it came, and cannot be freed in order."""
    is_stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal is_stopped
        is_stopped = True
        raise KeyboardInterrupt

    def tell(error: "sys.UnraisableHookArgs") -> None:
        if not is_stopped:
            sys.__unraisablehook__(error)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, stop)
        sys.unraisablehook = tell


class _Droppable(io.TextIOWrapper):
    """Standard error, of which is dropped what cannot be written: there is no place left to say so, and a command goes
    on and ends with its own exit code."""

    def write(self, s: str, /) -> int:
        with suppress(OSError):
            super().write(s)
        return len(s)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def _droppable(stream: "io.TextIOWrapper[Any]") -> io.TextIOWrapper:
    buffer = io.BufferedWriter(io.FileIO(stream.fileno(), "w", closefd=False))
    return _Droppable(buffer, stream.encoding, stream.errors, line_buffering=True)


def _by_lines(stream: "io.TextIOWrapper[Any]") -> io.TextIOWrapper:
    return open(stream.fileno(), "w", 1, encoding=stream.encoding, errors=stream.errors, closefd=False)


def _nowhere(mode: str = "w") -> Any:
    return open(os.devnull, mode, encoding="utf-8")
