"""Modules of the page as one script for a file that may fetch nothing: each a function that hands out what it exports,
those that it imports before it.
"""

import re
from functools import cache
from pathlib import Path

from vlmplan.web.files import STATIC

VENDORED = STATIC.parent / "vendor" / "uplot"
"""A release of uPlot as it is published; SOURCE.txt beside it has its checksums."""
IMPORT = re.compile(r'^import (?:(\{[^}]*\})|\* as (\w+)) from "(\.{1,2}/[\w./]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async )?function|const|class) (\w+)", re.MULTILINE)


@cache
def script(entry: str, *, has_timeline: bool) -> str:
    """The script of ``entry``, a file in ``static``; with uPlot before it where a timeline is drawn."""
    modules: dict[Path, str] = {}
    _add(STATIC / entry, modules)
    parts = [(VENDORED / "uPlot.iife.min.js").read_text(encoding="utf-8")] if has_timeline else []
    text = "\n".join([*parts, *modules.values()])
    assert "</script" not in text
    assert "<!--" not in text
    return text


@cache
def style(*, has_timeline: bool) -> str:
    """The styles of charts, page and reports."""
    files = [STATIC / "charts.css", STATIC / "page.css"]
    files += [VENDORED / "uPlot.min.css"] if has_timeline else []
    text = "\n".join(file.read_text(encoding="utf-8") for file in (*files, STATIC / "reports" / "report.css"))
    assert "</style" not in text
    return text


def _add(file: Path, modules: dict[Path, str]) -> None:
    """Put ``file`` and what it imports into ``modules``, in an order in which they can run."""
    if file in modules:
        return
    text = file.read_text(encoding="utf-8")
    names: list[str] = []
    for taken, whole, source in IMPORT.findall(text):
        wanted = (file.parent / source).resolve()
        _add(wanted, modules)
        names.append(f"const {taken.replace(' as ', ': ') or whole} = {_name(wanted)};")
    exported = [name for _, name in EXPORT.findall(text)]
    body = EXPORT.sub(r"\1 \2", IMPORT.sub("", text))
    assert not re.search(r"^(import|export)\b", body, re.MULTILINE), f"{file.name} imports or exports in another way"
    lines = [f"const {_name(file)} = (() => {{", *names, body.strip(), f"return {{ {', '.join(exported)} }};", "})();"]
    modules[file] = "\n".join(lines)


def _name(file: Path) -> str:
    return f"module_{file.relative_to(STATIC).with_suffix('').as_posix().replace('/', '_')}"
