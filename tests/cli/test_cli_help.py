"""What ``--help`` shows of the commands that take a hundred options: headings, and each option once."""

import re

import click
import pytest
from click.testing import CliRunner

from vlmplan.cli.command_line import COMMANDS, LazyGroup
from vlmplan.cli.option_kinds import ANSWER, EVERYDAY, SectionedCommand

GROUP = LazyGroup()
FOUND = {name: GROUP.get_command(click.Context(GROUP), name) for name in COMMANDS}
SECTIONED = {name: command for name, command in FOUND.items() if isinstance(command, SectionedCommand)}
FEW = 20
"""Options that need no headings."""


def help_of(command: click.Command, flag: str = "--help-all") -> str:
    return CliRunner().invoke(command, [flag], terminal_width=80).output


def test_commands_of_many_options_have_headings():
    counts = {name: len(command.params) for name, command in FOUND.items() if command is not None}
    assert {name for name, count in counts.items() if count > FEW} == SECTIONED.keys()


@pytest.mark.parametrize("name", SECTIONED)
def test_each_option_is_shown_once(name):
    command = SECTIONED[name]
    _, below = re.split(r"^[A-Z][^:\n]*:$", help_of(command), maxsplit=1, flags=re.MULTILINE)
    shown = re.findall(r"^  (?:-h, )?(--[a-z0-9-]+)", below, re.MULTILINE)
    options = [one.opts[0] for one in command.params if isinstance(one, click.Option)]
    assert sorted(shown) == sorted([*options, "--help", "--help-all"])


@pytest.mark.parametrize("name", SECTIONED)
def test_the_answer_is_the_last_heading_and_each_has_its_options_in_one_place(name):
    headings = re.findall(r"^([A-Z][^:\n]*):$", help_of(SECTIONED[name]), re.MULTILINE)
    assert len(headings) == len(set(headings)) > 5
    assert headings[-1] == ANSWER
    assert headings.index("Engine") > headings.index("Model and samples")


@pytest.mark.parametrize("name", SECTIONED)
def test_help_shows_what_is_needed_every_day_and_help_all_the_rest(name):
    command = SECTIONED[name]
    short, whole = help_of(command, "--help"), help_of(command)
    shown, options = (set(re.findall(r"^  (?:-h, )?(--[a-z0-9-]+)", text, re.MULTILINE)) for text in (short, whole))
    num_more = int(re.findall(r"--help-all +Show all options, (\d+) more", short)[0])
    assert shown < options
    assert len(options - shown) == num_more > 50


def test_what_is_needed_every_day_are_options_below_their_headings():
    for heading, flags in EVERYDAY.items():
        texts = (help_of(command).partition(f"\n{heading}:\n")[2] for command in SECTIONED.values())
        shown = " ".join(text.partition("\n\n")[0] for text in texts)
        assert set(flags.split()) <= set(re.findall(r"(--[a-z0-9-]+)", shown))
