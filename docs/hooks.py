"""What MkDocs does besides: reports under tests/ become pages, links to other files of the repository their names.

Links in docs/ and in the reports are those of the repository, so that they work where it is read as files.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPORTS = {
    "tests/measured/README.md": "reports/measured.md",
    "tests/measured/rehearsed.md": "reports/measured-rehearsed.md",
    "tests/measured/later.md": "reports/measured-later.md",
    "tests/rehearsed/README.md": "reports/rehearsed.md",
    "tests/timing/README.md": "reports/timing.md",
    "tests/claims/README.md": "reports/claims.md",
    "tests/gpu/README.md": "reports/gpu.md",
    "tests/measured/t4.md": "reports/t4.md",
    "tests/peers/README.md": "reports/peers.md",
    "tests/published/README.md": "reports/published.md",
}
SOURCES = {page: source for source, page in REPORTS.items()}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]+)?\)")


def on_files(files: Files, *, config: Any) -> Files:
    root = Path(config.config_file_path).parent
    for source, page in REPORTS.items():
        text = (root / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Links that point within the site; a file outside of it is its name alone, and has to be there."""
    here = page.file.src_uri
    folder = posixpath.dirname(SOURCES.get(here, f"docs/{here}"))
    root = Path(config.config_file_path).parent

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        inside = REPORTS.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if inside is not None:
            return f"[{text}]({posixpath.relpath(inside, posixpath.dirname(here) or '.')}{anchor or ''})"
        if not (root / path).exists():
            raise FileNotFoundError(f"{here} links {path}, which is not there")
        if path.endswith(".md"):
            raise ValueError(f"{here} links {path}, which is no page: REPORTS names those that are")
        return text

    return LINK.sub(link, markdown)
