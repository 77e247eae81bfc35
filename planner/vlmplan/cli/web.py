"""``vlmplan web``: the page, served on this machine alone."""

import gc
import os
import threading
import webbrowser
from pathlib import Path

import click

from vlmplan.cli.option_kinds import FILE, Port
from vlmplan.cli.strict_command import StrictCommand

PYODIDE = Path("node_modules/pyodide")
FIRST_QUESTION = b'{"ask": "form"}'
"""That of every page, so that what it needs is imported before a page asks."""


@click.command(cls=StrictCommand)
@click.option("--port", type=Port(), default=0, metavar="N", help="[default: one that is free]")
@click.option("--no-browser", is_flag=True, help="Print the address and open nothing.")
@click.option("--export", type=FILE, metavar="DIR", help="Write the page as files, with the planner in them.")
@click.option(
    "--pyodide",
    type=FILE,
    metavar="DIR",
    default=PYODIDE,
    show_default=True,
    help="For --export: what npm install pyodide made.",
)
@click.option("--force", is_flag=True, help="Let --export overwrite files.")
def web(port: int, no_browser: bool, export: Path | None, pyodide: Path, force: bool) -> int:
    """Serve a page on which a setup is chosen and drawn: memory, time, offers and files.

    The page is on 127.0.0.1 alone, and nothing leaves the machine. Its address holds the setup. Ctrl-C ends it.

    --export writes the same page for any server of files: there the planner runs in the reader's browser.
    """
    of_server, of_files = (
        {"--port": port, "--no-browser": no_browser},
        {"--pyodide": pyodide != PYODIDE, "--force": force},
    )
    idle = [flag for flag, is_given in (of_files if export is None else of_server).items() if is_given]
    if idle:
        raise click.UsageError(f"{', '.join(idle)} goes {'with' if export is None else 'without'} --export")
    if export is not None:
        return _exported(export, pyodide, force=force)
    from vlmplan.cli.web_answer import answer
    from vlmplan.web import open_server

    os.environ["HF_HUB_OFFLINE"] = "1"  # of this process: a name that is typed into a page fetches nothing
    server = open_server(answer, port=port)
    gc.enable()  # unlike other commands, which end before there is anything to collect
    click.echo(f"The page is at {server.address} (Ctrl-C ends it)")
    threading.Thread(target=server.answer, args=(FIRST_QUESTION,), daemon=True).start()  # imports, while the page loads
    if not no_browser:
        threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        click.echo()
    finally:
        server.server_close()
    return 0


def _exported(folder: Path, pyodide: Path, *, force: bool) -> int:
    from vlmplan.units import MIB
    from vlmplan.web.export import export_page

    exported = export_page(folder, pyodide, force=force)
    click.echo(f"written: {folder} ({exported.num_bytes / MIB:.1f} MiB), for any server of files")
    if exported.not_compiled is not None:
        click.echo(f"readers' browsers compile it, which takes them about a second: {exported.not_compiled}")
    return 0
