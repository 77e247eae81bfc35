"""YAML is read safely: what is small on disk and large in memory is refused, and no tag ends in a traceback."""

import pytest

from vlmplan.errors import InputError
from vlmplan.files.yaml_reader import MAX_DEPTH, MAX_NODES, parse_yaml


def lines_of_aliases(first: str, further: str, count: int) -> str:
    """Each line stands for nine of the line before it."""
    lines = [f"a0: &a0 {first}"]
    for number in range(1, count):
        lines.append(f"a{number}: &a{number} " + further.format(",".join([f"*a{number - 1}"] * 9)))
    return "\n".join(lines)


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, source="file.yaml")
    message = str(caught.value)
    assert message.startswith("file.yaml ")
    assert len(message) < 300
    return message


@pytest.mark.parametrize(
    "text",
    [
        lines_of_aliases("{k0: x, k1: x, k2: x}", "{{<<: [{}]}}", 12),
        lines_of_aliases("[x,x,x,x,x,x,x,x,x]", "[{}]", 10),
        "[" + "x," * (MAX_NODES + 1) + "x]",
    ],
    ids=["merge keys", "aliases", "written out"],
)
def test_aliases_count_as_what_they_stand_for(text: str):
    assert "more than 200,000 values" in refusal(text)


def test_few_aliases_and_merge_keys_are_read():
    text = "base: &base {a: 1, b: [2, 3]}\nmore: {<<: *base, c: *base}\n"
    (document,) = parse_yaml(text, source="file.yaml")
    assert document["more"] == {"a": 1, "b": [2, 3], "c": {"a": 1, "b": [2, 3]}}


def test_alias_within_what_it_stands_for_is_refused():
    assert "*a" in refusal("list: &a [1, *a]")
    assert "*a" in refusal("map: &a {key: [*a]}")


def test_aliases_of_aliases_are_as_deep_as_what_they_stand_for():
    text = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, MAX_DEPTH + 5))])
    assert "too deeply" in refusal(text)


@pytest.mark.parametrize(
    "value",
    [
        "!!bool x",
        "!!timestamp x",
        "!!int x",
        "!!int ''",
        "!!float x",
        "!!binary \u00e4",
        "!!set [a]",
        "!!omap x",
        "!!map x",
    ],
)
def test_value_that_is_not_what_its_tag_says_is_refused(value: str):
    refusal(f"key: {value}")


@pytest.mark.parametrize("value", ["!!bool x", "!!int x", "!!int ''", "!!float x", "!!timestamp x", "2026-02-30"])
def test_value_that_is_not_what_its_tag_says_is_named_with_its_line(value: str):
    message = refusal(f"first: 1\nkey: {value}")
    assert f'"{value.split()[-1].strip(chr(39))}" is no !!' in message
    assert "in line 2, column 6" in message


@pytest.mark.parametrize("number", ["1" + "0" * 5000, "0x" + "f" * 5000, "1:" * 400_000 + "1"])
def test_number_that_takes_long_to_read_is_refused(number: str):
    assert "thousands of digits" in refusal(f"key: {number}")


def test_long_text_is_read_whatever_it_begins_with():
    text = "0 files " + "x" * 5000
    assert parse_yaml(f"key: {text}", source="file.yaml") == [{"key": text}]
