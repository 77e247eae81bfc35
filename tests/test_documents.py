"""Commands that README.md and docs/ show: each is run, with the exit code and the output that stand there."""

import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from cli_calls import isolate
from tools.documents import DOCS, PAGES, blocks, pictures_here, with_samples
from vlmplan.architecture import families
from vlmplan.cli.command_line import COMMANDS

RUN = [page for page in PAGES if page.is_relative_to(DOCS)]
SWEPT = ("bring-your-own", "configurations", "diagnose", "memory-model", "python", "written-for-your-trainer")
"""Pages whose commands take more than a second."""
LINK = re.compile(r"\[([^\]]*`[^\]]*)\]\(([^)#:]+\.md)(?:#[^)]*)?\)")
"""A link to another page, by words with a name of a command or an option among them."""
LONG = [page for page in RUN if any(block.is_run and block.is_long for block in blocks(page.read_text()))]


def as_shown(page: Path, *, runs_long: bool) -> None:
    text = page.read_text()
    assert with_samples(text, runs_long=runs_long) == text, (
        "PYTHONPATH=tests python tests/tools/documents.py rewrites it"
    )
    for picture, svg in pictures_here():
        assert svg == picture.read_text(), f"{picture.name}: the same script with --sweep makes it again"


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.sweep] if page.stem in SWEPT else [], id=page.stem) for page in RUN],
)
def test_commands_print_what_the_page_shows(page, monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)
    as_shown(page, runs_long=False)


@pytest.mark.sweep
@pytest.mark.parametrize("page", LONG, ids=lambda page: page.stem)
def test_long_commands_print_what_the_page_shows(page, monkeypatch, tmp_path):
    if "rehearse" in page.read_text() or "launch" in page.read_text():
        pytest.importorskip("deepspeed")
    isolate(monkeypatch, tmp_path)
    as_shown(page, runs_long=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_commands_is_run_or_says_why_not(page):
    shown = [block for block in blocks(page.read_text()) if block.kind in ("console", "pycon", "sh", "bash", "shell")]
    assert not [block.text for block in shown if not block.is_run and not block.why_not]


@pytest.mark.parametrize("name", ["arcee.py", "jais2.py"])
def test_the_example_of_a_family_is_the_family(name):
    shown = {block.title: block.text for block in blocks((DOCS / "contributing.md").read_text())}
    assert shown[name].strip() in (Path(families.__file__).parent / name).read_text()


@pytest.mark.sweep
def test_the_example_of_a_family_passes_its_own_test():
    pytest.importorskip("transformers")
    shown = {block.title: block.text for block in blocks((DOCS / "contributing.md").read_text())}
    names: dict[str, Any] = {}
    exec(shown["test_families_arcee.py"], names)
    names["test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers"]()
    for checkpoints in (False, True):
        names["test_a_step_keeps_and_peaks_as_in_transformers"](checkpoints)


def test_what_a_link_names_is_on_the_page_that_it_leads_to():
    missing: list[str] = []
    for page in PAGES:
        for words, target in LINK.findall(page.read_text()):
            place = page.parent / target
            missing += [
                f"{page.name}: {name} is not in {target}"
                for name in re.findall("`([^`]+)`", words)
                if name not in place.read_text()
            ]
    assert not missing


def commands_in(text: str) -> list[str]:
    """Everything that is written as a command: in blocks, and in texts between backticks."""
    lines = [line for block in blocks(text) if block.kind in ("console", "sh") for line in block.text.splitlines()]
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))
    starts = (line.removeprefix("$ ").removeprefix(".plan/bin/") for line in (*lines, *spans))
    return [start.split(" | ")[0].rstrip("\\") for start in starts if start.startswith("vlmplan ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_has_the_options_that_it_is_shown_with(page):
    """Those that are not run too."""
    for text in commands_in(page.read_text()):
        name, *words = shlex.split(text, comments=True)[1:] or [""]
        if name.startswith("--") or not name:
            continue
        command = getattr(importlib.import_module(COMMANDS[name][0]), name)
        own = words[: words.index("--")] if "--" in words else words  # behind it stands somebody's own command
        known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
        known |= {"--help", "--help-all"}
        assert not {word for word in own if word.startswith("--")} - known, text
        assert isinstance(command, click.Command)
