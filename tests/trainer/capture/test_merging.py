"""One program out of the captures of two samples and of three."""

import pytest

pytest.importorskip("torch")

from vlmplan.errors import InputError
from vlmplan_trainer.capture.merging import aligned, merged_json
from vlmplan_trainer.capture.operations import Instruction, Output


@pytest.mark.parametrize(
    ("few", "many", "turns"),
    [
        ("abc", "abc", []),
        ("aabcd", "aaabcd", [(2, 3)]),
        ("xababy", "xabababy", [(5, 7)]),
        ("aavpvpc", "aaavpvpvpc", [(2, 3), (7, 9)]),  # one loop behind another
        ("abab", "ababab", [(4, 6)]),
    ],
)
def test_a_turn_more_is_found_for_each_loop(few, many, turns):
    pairs, found = aligned(few, many)
    assert found == turns
    assert [few[other] for other in pairs.values()] == [many[place] for place in pairs]


def test_captures_that_differ_in_more_are_refused():
    with pytest.raises(InputError, match="what it does with two"):
        aligned("abc", "axbc")
    with pytest.raises(InputError, match="what it does with two"):
        aligned("abcd", "abc")


def one(count: int) -> list[Instruction]:
    return [Instruction("gelu", [0], [Output(1, (count * 5, 7), "bfloat16")], {}, [0])]


def test_sizes_are_what_stays_and_what_each_sample_adds():
    program = merged_json(one(2), one(3), {"pixel_values": 0})
    assert program["instructions"] == [["gelu", [0], [[1, [[0, 5], 7], "bfloat16", None]], {}, [0]]]
    assert program["grows"]


def test_lengths_of_packed_sequences_are_those_of_one_sample():
    def attention(count: int) -> list[Instruction]:
        values = {"lengths": [64, 64, 32] * count}
        return [Instruction("attend", [0, 0, 0, None], [Output(1, (1, count * 160, 2, 4), "bfloat16")], values, [0])]

    program = merged_json(attention(2), attention(3), {"pixel_values": 0})
    assert program["instructions"][0][3]["lengths"] == [[64, 2], [32, 1]]
