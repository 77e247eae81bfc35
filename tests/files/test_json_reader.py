"""JSON of others: what is there is read as what it is, and every mistake is one sentence with file, key and value."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.errors import InputError, UnavailableError, UnknownNameError
from vlmplan.files.json_reader import JsonObject, comment_line, parse_json_object, read_json_object, shown

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def reader(**values: object) -> JsonObject:
    return JsonObject(values, source="some.json", path="outer")


# Whole files


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_every_json_object_is_read_as_it_is(values: dict):
    assert parse_json_object(json.dumps(values), source="some.json") == values


@given(st.text(max_size=40))
def test_any_other_text_is_refused_in_one_sentence_and_never_with_a_traceback(text: str):
    try:
        found: object = parse_json_object(text, source="some.json")
    except InputError as error:
        found = str(error)
    assert isinstance(found, dict) or (found.startswith("some.json") and "\n" not in found)


def test_a_key_given_twice_among_thousands_is_found_at_once():
    keys = ",".join(f'"k{number}":1' for number in range(40_000))
    begin = time.process_time()
    with pytest.raises(InputError, match=r"some\.json says z twice"):
        parse_json_object(f'{{{keys},"z":1,"z":2}}', source="some.json")
    assert time.process_time() - begin < 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "some.json is empty"),
        (" \n", "some.json is empty"),
        ("[1, 2]", r"some.json holds \[1, 2\]; a JSON object"),
        ('"text"', 'some.json holds "text"'),
        ("{", "some.json is not JSON: .* double quotes at its end$"),
        ('{"a": b}', "some.json is not JSON: Expecting value in column 7$"),
        ('{"a":\n b}', "some.json is not JSON: Expecting value in line 2, column 2$"),
        ('{\n "a": 1,\n}', "some.json is not JSON: .* in line [23]"),
        ('{"a": 1, // why\n "b": 2}', "some.json has a comment in line 1"),
        ('{"a": 1\n # why\n}', "some.json has a comment in line 2"),
        ('{"a": NaN}', "some.json holds NaN"),
        ('{"a": [-Infinity]}', "some.json holds -Infinity"),
        ('{"a": {"b": 1, "b": 2}}', "some.json says b twice"),
        ('{"a":' * 10_000, "some.json is nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "some.json holds a number of thousands of digits"),
    ],
    ids=lambda text: text[:20],
)
def test_mistakes_in_a_file_are_named(text: str, sentence: str):
    with pytest.raises(InputError, match=sentence):
        parse_json_object(text, source="some.json")


def test_file_with_a_byte_order_mark_is_read(tmp_path: Path):
    (tmp_path / "file.json").write_bytes(b"\xef\xbb\xbf" + '{"a": "Ψ"}'.encode())
    assert read_json_object(tmp_path / "file.json") == {"a": "Ψ"}


def test_files_that_cannot_be_read_are_named(tmp_path: Path):
    with pytest.raises(UnavailableError, match=r"none\.json does not exist"):
        read_json_object(tmp_path / "none.json")
    with pytest.raises(UnavailableError, match="cannot be read"):
        read_json_object(tmp_path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"binary\.json is not text in UTF-8"):
        read_json_object(tmp_path / "binary.json")


def test_slashes_and_hashes_inside_strings_are_no_comments():
    assert comment_line('{"url": "https://a.b/#c", "quote": "\\"// no"}') is None
    assert comment_line('{"url": "https://a.b"} /* here */') == 1


@given(VALUES)
def test_values_are_shown_as_they_stand_and_cut_short(value: object):
    text = json.dumps(value, ensure_ascii=False)
    assert len(shown(value)) <= 60
    assert shown(value) == text or shown(value).endswith("...")


# Kinds of values

GOOD = {
    "flag": (True, True),
    "text": ("abc", "abc"),
    "count": (7, 7),
    "number": (2.5, 2.5),
    "mapping": ({"a": 1}, {"a": 1}),
    "texts": (["a", "b"], ("a", "b")),
}
WRONG = {
    "flag": [1, 0, "true", None, []],
    "text": [1, True, None, ["a"]],
    "count": [True, 0.5, -1, "7", None, float("inf"), 10.5],
    "number": [True, -0.1, "2.5", None, float("inf"), float("nan"), 10**400],
    "mapping": [[], "a", 1, None],
    "texts": ["a", [1], ["a", None], {"a": "b"}, None],
}


@pytest.mark.parametrize("kind", GOOD)
def test_value_of_the_right_kind_is_handed_out(kind: str):
    given_value, read = GOOD[kind]
    assert getattr(reader(key=given_value), kind)("key") == read


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in WRONG.items() for value in values])
def test_value_of_another_kind_is_refused_with_its_place_and_itself(kind: str, value: object):
    with pytest.raises(InputError) as raised:
        getattr(reader(key=value), kind)("key")
    sentence = str(raised.value)
    assert sentence.startswith("some.json: outer.key is")
    assert sentence.endswith("needed")
    assert shown(value) in sentence


@given(st.integers(0, 10**18))
def test_whole_numbers_may_be_written_with_an_exponent(count: int):
    found = reader(key=float(count)).count("key")
    assert found == int(float(count))
    assert isinstance(found, int)


def test_counts_and_numbers_have_a_least_value():
    assert reader(key=2).count("key", least=2) == 2
    with pytest.raises(InputError, match="a whole number of 3 or more"):
        reader(key=2).count("key", least=3)
    with pytest.raises(InputError, match=r"a number of 0.5 or more"):
        reader(key=0.4).number("key", least=0.5)


def test_choice_is_one_of_the_known_names():
    assert reader(key="b").choice("key", ["a", "b"]) == "b"
    for wrong in ("c", 1, None, ["a"]):
        with pytest.raises(InputError, match="one of a, b is needed"):
            reader(key=wrong).choice("key", ["a", "b"])


def test_missing_key_is_named_unless_it_may_be_missing():
    with pytest.raises(InputError, match=r"^some\.json: outer\.key is missing$"):
        reader().count("key")
    assert reader().maybe("key", reader().count) is None
    null = reader(key=None)
    assert null.maybe("key", null.count) is None
    there = reader(key=3)
    assert there.maybe("key", there.count) == 3


def test_places_inside_objects_and_lists_are_named():
    outer = JsonObject({"a": {"b": [{"c": "x"}, {"c": 1}]}}, source="some.json")
    first, second = outer.object("a").objects("b")
    assert first.text("c") == "x"
    with pytest.raises(InputError, match=r"^some\.json: a\.b\[1\]\.c is 1; text is needed$"):
        second.text("c")


@pytest.mark.parametrize("whole", [[], "text", 1, None])
def test_object_that_is_none_is_refused(whole: object):
    with pytest.raises(InputError, match="an object"):
        JsonObject(whole, source="some.json")


# Keys that nobody asks for


def test_keys_that_were_asked_for_close_without_a_word():
    found = reader(a=1, b=2)
    found.count("a")
    found.maybe("b", found.count)
    found.close()


def test_key_that_nobody_knows_is_named_with_the_nearest_known_one():
    found = reader(micro_batch=1, grad_acum=2)
    found.count("micro_batch")
    with pytest.raises(
        UnknownNameError, match=r"unknown key 'grad_acum'; did you mean 'grad_accum'\?.*outer.*some.json"
    ):
        found.close(["grad_accum"])
    found.close(["grad_acum"])
