"""Arguments of the functions are the options of the commands, and what is none is refused by its name."""

import inspect
from collections.abc import Callable, Sequence
from fractions import Fraction
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click
import pytest

import vlmplan
from vlmplan.api.arguments import default_of, options_of
from vlmplan.api.kinds import checked, members_of
from vlmplan.cli.advise import advise
from vlmplan.cli.check import check
from vlmplan.cli.diagnose import diagnose
from vlmplan.cli.estimate import estimate
from vlmplan.cli.recommend import recommend

PRINTS_OR_WRITES = {"json", "out", "html", "svg", "force"}
"""What results have attributes and methods for."""
NO_ARGUMENT = PRINTS_OR_WRITES | {"compare", "refresh_prices", "write"}
"""Those that ask something else besides."""
COMMANDS: list[tuple[Callable[..., Any], click.Command]] = [
    (vlmplan.estimate, estimate),
    (vlmplan.recommend, recommend),
    (vlmplan.advise, advise),
    (vlmplan.check, check),
    (vlmplan.diagnose, diagnose),
    (vlmplan.compare, estimate),
]
BESIDE_OPTIONS = {vlmplan.check: {"path"}, vlmplan.diagnose: {"log"}, vlmplan.compare: {"by"}}
OF_ONE_ESTIMATE = {"scaling", "sample_lengths"}
"""What ``--compare`` has no use for."""
ALL = [
    pytest.param(function, name, option, id=f"{command.name}-{name}")
    for function, command in COMMANDS
    for name, option in options_of(command).items()
    if name not in NO_ARGUMENT | (OF_ONE_ESTIMATE if function is vlmplan.compare else set())
]


@pytest.mark.parametrize(("function", "command"), COMMANDS, ids=lambda one: getattr(one, "name", ""))
def test_arguments_are_the_options_of_the_command(function, command):
    left_out = NO_ARGUMENT | (OF_ONE_ESTIMATE if function is vlmplan.compare else set())
    expected = (options_of(command).keys() - left_out) | BESIDE_OPTIONS.get(function, set())
    assert set(inspect.signature(function).parameters) == expected


@pytest.mark.parametrize(("function", "name", "option"), ALL)
def test_an_argument_has_the_type_and_the_default_of_its_option(function, name, option):
    argument = inspect.signature(function).parameters[name]
    members = members_of(argument.annotation)
    takes_several = any(get_origin(member) is Sequence for member in members)
    assert kinds_of(members) >= kinds_of_click(option)
    if name == "gpu":
        assert argument.default is None
    else:
        assert argument.default == default_of(option)
    assert (NoneType in members) is (argument.default is None)
    assert takes_several is option.multiple or name in ("lora_targets", "lora_exclude")


def kinds_of(members: Sequence[Any]) -> set[Any]:
    """Types by name, and the choices of a Literal as text."""
    choices = {str(choice) for member in members if get_origin(member) is Literal for choice in get_args(member)}
    return choices | {get_origin(member) or member for member in members if get_origin(member) is not Literal}


def kinds_of_click(option: click.Option) -> set[Any]:
    if isinstance(option.type, click.Choice):
        return set(option.type.choices)
    if isinstance(option.type, click.Path):
        return {str, PathLike}
    return {{"whole number": int, "number": float, "text": str, "boolean": bool}[option.type.name]}


@pytest.mark.parametrize(
    ("hint", "value", "sentence"),
    [
        (int | None, "16", 'x is "16"; a whole number or None is needed'),
        (int | None, True, "x is true; a whole number or None is needed"),
        (int | None, 1.5, "x is 1.5; a whole number or None is needed"),
        (float | None, "1", 'x is "1"; a number or None is needed'),
        (bool | None, 1, "x is 1; True or False or None is needed"),
        (str | PathLike[str] | None, "", "x is empty; a path is needed"),
        (str | PathLike[str] | None, 3, "x is 3; a text, a path or None is needed"),
        (Literal["full", "lora"] | None, "qlora", "x is \"qlora\"; one of 'full', 'lora' or None is needed"),
        (str | tuple[int, int] | None, (448, "x"), 'x is [448, "x"]; a text, (width, height) or None is needed'),
        (str | Sequence[str], ["a", 3], 'x is ["a", 3]; a text or a sequence of them is needed'),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_is_needed(hint, value, sentence):
    with pytest.raises(vlmplan.InputError) as error:
        checked("x", value, hint)
    assert str(error.value) == sentence


def test_numbers_and_paths_are_taken_in_every_form_of_theirs():
    numpy = pytest.importorskip("numpy")
    assert checked("x", numpy.int64(3), int | None) == 3
    assert type(checked("x", numpy.int64(3), int | None)) is int
    assert checked("x", Fraction(1, 2), float | None) == 0.5
    assert checked("x", Path("a/b"), str | PathLike[str]) == "a/b"
    assert checked("x", ["a", Path("b")], str | Sequence[str | PathLike[str]]) == ("a", "b")
    assert checked("x", [448, 336], str | tuple[int, int]) == (448, 336)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"seq_len": -3}, "seq_len is -3; 1 or more is needed"),
        (
            {"seq_length": 3},
            "unknown argument 'seq_length'; did you mean 'seq_len' or 'sample_lengths' or ",
        ),
        ({"global_batch": 7}, "global_batch is 7, but 2 GPUs x micro batch 1 make multiples of 2; the nearest is 8"),
        ({"num_nodes": 0}, "num_nodes is 0; 1 or more is needed"),
        ({"host_ram": 0}, "host_ram is 0; above 0 and at most 1,000,000 GiB is needed"),
        ({"image_size": "wide"}, "image_size is 'wide'; WIDTHxHEIGHT is needed, such as 448x448, with at most"),
        ({"ds_config": "none.json"}, "none.json does not exist"),
        ({"catalog": ["a.yaml"]}, "a.yaml does not exist"),
    ],
)
def test_errors_name_arguments_and_nothing_is_printed(arguments, sentence, capsys):
    with pytest.raises(vlmplan.VlmplanError) as error:
        vlmplan.estimate("gpt2", "rtx-4090:2", **arguments)
    assert str(error.value).startswith(sentence)
    assert "--" not in str(error.value)
    assert capsys.readouterr() == ("", "")


def test_a_model_or_a_configuration_is_needed():
    with pytest.raises(vlmplan.InputError, match=r"^model is missing"):
        vlmplan.estimate()
    with pytest.raises(vlmplan.UnknownNameError, match='method="qlora" says that here'):
        vlmplan.estimate("gpt2", "rtx-4090", load_in_4bit=True)
    with pytest.raises(vlmplan.UnknownNameError, match="did you mean 'gpt2'"):
        vlmplan.estimate("gtp2", "rtx-4090")
