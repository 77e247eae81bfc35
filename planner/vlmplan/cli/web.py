"""``vlmplan web``: the page, served on this machine alone."""

import os
import threading
import webbrowser

import click


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="[default: one that is free]")
@click.option("--no-browser", is_flag=True, help="Print the address and open nothing.")
def web(port: int, no_browser: bool) -> int:
    """Serve a page on which a setup is chosen and drawn: memory, time, offers and files.

    The page is on 127.0.0.1 alone, and nothing leaves the machine. Its address holds the setup. Ctrl-C ends it.
    """
    from vlmplan.cli.web_answer import answer
    from vlmplan.web import open_server

    os.environ["HF_HUB_OFFLINE"] = "1"  # of this process: a name that is typed into a page fetches nothing
    server = open_server(answer, port=port)
    click.echo(f"The page is at {server.address} (Ctrl-C ends it)")
    threading.Thread(target=answer, args=({"ask": "form"},), daemon=True).start()  # imports, while the page loads
    if not no_browser:
        threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        click.echo()
    finally:
        server.server_close()
    return 0
