"""Values of a configuration changed in its text: what is read again is what was written, and nothing else moves."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from other_trainers.shipped import shipped
from vlmplan.errors import InputError
from vlmplan.other_trainers.editing.json_text import object_in_json
from vlmplan.other_trainers.editing.objects import TextFormat, edited
from vlmplan.other_trainers.editing.script_text import ScriptEditor
from vlmplan.other_trainers.editing.yaml_text import object_in_yaml
from vlmplan.other_trainers.scripts import run_of_script
from vlmplan.other_trainers.shell import commands_of

NEAR = {"new": ("micro",)}
YAML_TEXTS = [one.text for one in shipped() if one.path.endswith(".yaml")]
JSON_TEXTS = [one.text for one in shipped() if one.path.endswith(".json")]
SCRIPTS = [one for one in shipped() if one.path.endswith(".sh") and one.is_run]


def in_yaml(text: str, changes: Mapping[str, Any]) -> str:
    style = TextFormat(source="x.yaml", is_json=False, near=NEAR)
    return edited(text, object_in_yaml(text, source="x.yaml"), changes, style)


def in_json(text: str, changes: Mapping[str, Any]) -> str:
    return edited(text, object_in_json(text), changes, TextFormat(source="x.json", is_json=True, near=NEAR))


def in_script(text: str, changes: Mapping[str, Any], variables: Mapping[str, str] | None = None) -> str:
    command = commands_of(text, source="x.sh")[-1]
    equals = any("=" in word and not word.startswith("-") for word in command.words[2:])
    return ScriptEditor(text, command, source="x.sh", equals=equals).edited(changes, variables or {}, NEAR)[0]


# -- YAML ------------------------------------------------------------------------------------------------------------


def test_only_the_value_changes_beside_comments_and_quotes():
    text = "# run\nmicro: 8   # per GPU\nflag: True\nname: \"8\"\nother: 'no'\nempty:\n"
    changed = in_yaml(text, {"micro": 4, "flag": False, "name": 2, "other": "yes", "empty": 3})
    assert changed == "# run\nmicro: 4   # per GPU\nflag: False\nname: \"2\"\nother: 'yes'\nempty: 3\n"


def test_a_new_key_stands_in_a_line_after_its_neighbour_and_its_comment():
    assert in_yaml("micro: 8 # per GPU\nlast: 1\n", {"new": 2}) == "micro: 8 # per GPU\nnew: 2\nlast: 1\n"
    assert in_yaml("a: 1\r\nlist:\r\n  - x\r\n# end\r\n", {"new": "z"}) == (
        "a: 1\r\nlist:\r\n  - x\r\nnew: z\r\n# end\r\n"
    )
    assert in_yaml("a: 1", {"new": "on"}) == 'a: 1\nnew: "on"'


def test_a_key_is_taken_away_with_its_lines():
    assert in_yaml("a: 1\nlist:\n  - x\n  - y\nb: 2\n", {"list": None}) == "a: 1\nb: 2\n"
    assert in_yaml("a: 1\nb: 2", {"b": None}) == "a: 1\n"
    assert yaml.safe_load(in_yaml("{a: 1, b: 2, c: 3}", {"a": None, "c": None, "new": 4})) == {"b": 2, "new": 4}


def test_an_object_in_it_is_changed_by_its_keys():
    text = "deep:\n    stage: 2 # here\n    kind: x\nafter: 1\n"
    assert in_yaml(text, {"deep": {"stage": 3, "more": 5}}) == (
        "deep:\n    stage: 3 # here\n    kind: x\n    more: 5\nafter: 1\n"
    )


def test_a_value_that_an_alias_repeats_is_refused_and_an_alias_is_written_out():
    text = "micro: &size 8\naccum: *size # same\nend: 1\n"
    with pytest.raises(InputError, match=r"the value of micro is that of accum too, by an anchor.*would change both"):
        in_yaml(text, {"micro": 4})
    assert in_yaml(text, {"accum": 2}) == "micro: &size 8\naccum: 2 # same\nend: 1\n"


def test_what_comes_by_a_merge_is_said_at_the_place_of_its_own():
    text = "base: &base {micro: 8}\nrun:\n  <<: *base\n  x: 1\n"
    assert yaml.safe_load(in_yaml(text, {"run": {"micro": 4}}))["run"] == {"micro": 4, "x": 1}


@pytest.mark.one_in(29)
@pytest.mark.parametrize("text", YAML_TEXTS)
def test_every_key_of_what_trainers_ship_can_be_changed_alone(text):
    values = yaml.safe_load(text)
    for key in values:
        assert yaml.safe_load(in_yaml(text, {key: 7})) == values | {key: 7}
        rest = {name: value for name, value in values.items() if name != key}
        assert yaml.safe_load(in_yaml(text, {key: None, "new": "a b"})) == rest | {"new": "a b"}
        if isinstance(values[key], (str, int, float)):
            assert in_yaml(text, {key: values[key]}).count("\n") == text.count("\n")


NAMES = st.text("abcxyz", min_size=1, max_size=3)
VALUES = st.one_of(st.integers(-9, 99), st.booleans(), st.text("ab: #'\"é{", max_size=5), st.lists(st.integers(0, 3)))
TREES = st.dictionaries(NAMES, st.one_of(VALUES, st.dictionaries(NAMES, VALUES, min_size=1)), min_size=2, max_size=5)


@settings(max_examples=30)
@given(values=TREES, new=VALUES, data=st.data(), flow=st.sampled_from([True, False]))
def test_what_is_read_again_is_what_was_changed(values, new, data, flow):
    key = data.draw(st.sampled_from(sorted(values)))
    text = yaml.safe_dump(values, default_flow_style=flow, width=1000, allow_unicode=True)
    rest = {name: value for name, value in values.items() if name != key}
    for change, expected in (
        ({key: new}, rest | {key: new}),
        ({key: None}, rest),
        ({"new": new}, values | {"new": new}),
    ):
        assert yaml.safe_load(in_yaml(text, change)) == expected
        for indent in (None, 1, "\t"):
            assert json.loads(in_json(json.dumps(values, indent=indent), change)) == expected


# -- JSON ------------------------------------------------------------------------------------------------------------


def test_indentation_and_order_of_json_stay():
    text = '{\n\t"micro": 8,\n\t"deep": {"stage": 2},\n\t"end": "x"\n}\n'
    assert in_json(text, {"new": {"a": 1}, "deep": {"stage": 3, "more": True}, "end": None}) == (
        '{\n\t"micro": 8,\n\t"new": {\n\t  "a": 1\n\t},\n\t"deep": {"stage": 3, "more": true}\n}\n'
    )


@pytest.mark.one_in(7)
@pytest.mark.parametrize("text", JSON_TEXTS)
def test_every_key_of_shipped_json_can_be_changed_alone(text):
    values = json.loads(text)
    for key in values:
        assert json.loads(in_json(text, {key: "x"})) == values | {key: "x"}
        rest = {name: value for name, value in values.items() if name != key}
        assert json.loads(in_json(text, {key: None})) == rest
        if not isinstance(values[key], (list, dict, float)):
            assert in_json(text, {key: values[key]}) == text


# -- scripts ---------------------------------------------------------------------------------------------------------

SCRIPT = """# a run
A=1 \\
nohup swift sft \\
    --model m \\
    --micro 8 \\
    --flag \\
    --list a b \\
    --end=5
echo done
"""


def test_the_word_of_a_flag_changes_and_no_other():
    assert in_script(SCRIPT.replace("echo done\n", ""), {"micro": 4}) == (
        SCRIPT.replace("echo done\n", "").replace("--micro 8", "--micro 4")
    )


def test_options_come_and_go_with_their_lines():
    text = SCRIPT.replace("echo done\n", "")
    changed = in_script(text, {"new": "x y", "flag": False, "end": None, "last": 1})
    assert changed == text.replace("--micro 8", "--micro 8 \\\n    --new 'x y'").replace(
        "--flag", "--flag false"
    ).replace("a b \\\n    --end=5", "a b \\\n    --last 1")
    assert in_script("swift sft --a 1 --b 2\n", {"a": None, "new": 3}) == "swift sft --b 2 --new 3\n"


def test_a_variable_is_set_where_it_is_or_before_the_command():
    text = SCRIPT.replace("echo done\n", "")
    assert in_script(text, {}, {"A": "2"}) == text.replace("A=1", "A=2")
    assert in_script(text, {}, {"B": "2"}) == text.replace("A=1", "B=2 \\\nA=1")
    assert in_script("nohup swift sft --a 1", {}, {"B": "2"}) == "B=2 \\\nnohup swift sft --a 1"
    (command,) = commands_of("B=2 \\\nnohup env C=3 swift sft --a 1", source="x.sh")
    assert (command.words[0], command.environment, command.start) == ("swift", {"B": "2", "C": "3"}, 0)
    assert in_script("if x; then swift sft --a 1; fi", {}, {}) == "if x; then swift sft --a 1; fi"


def test_what_a_variable_stood_for_is_written_out_and_said():
    text = "N=8\nswift sft --micro $((N / 2)) --other $N"
    command = commands_of(text, source="x.sh")[-1]
    changed, notes = ScriptEditor(text, command, source="x.sh").edited({"micro": 2}, {}, NEAR)
    assert changed == "N=8\nswift sft --micro 2 --other $N"
    assert notes == ['"$((N / 2))" is written out; what the script computes of its variables stays']


def test_an_option_that_comes_with_others_from_a_variable_is_refused():
    text = "MORE='--micro 4 --x 1'\nswift sft --a 1 $MORE"
    with pytest.raises(InputError, match=r'micro comes with others from "\$MORE"; write it out in the command'):
        in_script(text, {"micro": 2})
    assert in_script(text, {"a": 2}).endswith("swift sft --a 2 $MORE")
    assert in_script("L='1 2'\nswift sft --list $L --b 1", {"list": "3"}).endswith("--list 3 --b 1")


def test_options_beside_a_file_are_written_as_that_program_takes_them():
    assert (
        in_script("llamafactory-cli train a.yaml x=1", {"x": 2, "new": 3}) == "llamafactory-cli train a.yaml x=2 new=3"
    )


LEFT_OUT = {"attn_impl", "rlhf_type"}
"""What one script gives twice, and what says whether a command is read at all."""


@pytest.mark.one_in(29)
@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.path)
def test_every_option_of_a_shipped_script_can_be_changed_alone(file):
    try:
        run = run_of_script(file.text, source="x.sh")
    except InputError:
        return
    values, editor = dict(run.values), ScriptEditor(file.text, run.command, source="x.sh")
    for key in set(values) - LEFT_OUT:
        changed, _ = editor.edited({key: "7 8"}, {"NEW": "1"}, NEAR)
        run = run_of_script(changed, source="x.sh")
        assert run.values == values | {key: "7 8"}
        assert run.environment["NEW"] == "1"
        gone, _ = editor.edited({key: None, "new": 5}, {}, NEAR)
        rest = {name: value for name, value in values.items() if name != key}
        assert run_of_script(gone, source="x.sh").values == rest | {"new": "5"}
