"""The largest number that fits is found wherever the search for it begins."""

import math

from hypothesis import given
from hypothesis import strategies as st

from vlmplan.data_plan.options import largest

COUNTS = st.integers(1, 2000)


@given(last=st.integers(0, 2000), most=COUNTS, least=COUNTS, likely=COUNTS, power=st.sampled_from([0.5, 1, 3]))
def test_the_last_number_with_room_is_found_from_any_beginning(
    last: int, most: int, least: int, likely: int, power: float
):
    asked: list[int] = []

    def room(count: int) -> float:
        asked.append(count)
        return (last - count) ** power if count <= last else -math.inf if count % 7 == 0 else last - count

    known = min(last, most)
    assert largest(room, most, least, likely) == (known if known >= least else None)
    assert all(least <= count <= most for count in asked)


def test_a_line_leads_to_where_the_room_ends_in_few_steps():
    asked: list[int] = []

    def room(count: int) -> float:
        asked.append(count)
        return 5 * 7 * 911 - 5 * 7 * count

    assert largest(room, most=10_000, likely=300) == 911
    assert len(asked) < math.log2(911)
