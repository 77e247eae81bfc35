"""What ``--help`` shows of the commands that take a hundred options: headings, and each option once."""

import re

import click
import pytest

from vlmplan.cli.command_line import COMMANDS, LazyGroup
from vlmplan.cli.option_kinds import ANSWER, SectionedCommand

GROUP = LazyGroup()
FOUND = {name: GROUP.get_command(click.Context(GROUP), name) for name in COMMANDS}
SECTIONED = {name: command for name, command in FOUND.items() if isinstance(command, SectionedCommand)}
FEW = 20
"""Options that need no headings."""


def help_of(command: click.Command) -> str:
    with click.Context(command, info_name="x", terminal_width=80) as context:
        return command.get_help(context)


def test_commands_of_many_options_have_headings():
    counts = {name: len(command.params) for name, command in FOUND.items() if command is not None}
    assert {name for name, count in counts.items() if count > FEW} == SECTIONED.keys()


@pytest.mark.parametrize("name", SECTIONED)
def test_each_option_is_shown_once(name):
    command = SECTIONED[name]
    _, below = re.split(r"^[A-Z][^:\n]*:$", help_of(command), maxsplit=1, flags=re.MULTILINE)
    shown = re.findall(r"^  (?:-h, )?(--[a-z0-9-]+)", below, re.MULTILINE)
    options = [one.opts[0] for one in command.params if isinstance(one, click.Option)]
    assert sorted(shown) == sorted([*options, "--help"])


@pytest.mark.parametrize("name", SECTIONED)
def test_the_answer_is_the_last_heading_and_each_has_its_options_in_one_place(name):
    headings = re.findall(r"^([A-Z][^:\n]*):$", help_of(SECTIONED[name]), re.MULTILINE)
    assert len(headings) == len(set(headings)) > 5
    assert headings[-1] == ANSWER
    assert headings.index("Engine") > headings.index("Model and samples")
