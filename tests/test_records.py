"""A record does what a dataclass with the same fields does."""

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any

import pytest

from vlmplan.records import record


@record
class Priced:
    name: str
    usd: float = 0.5
    notes: tuple[str, ...] = field(default=(), compare=False)
    details: dict[str, int] = field(default_factory=dict[str, int], hash=False)


@record
class Offered(Priced):
    hours: int

    def __post_init__(self) -> None:
        if self.hours < 0:
            raise ValueError("no time")


@record(kw_only=False)
class Stretch:
    start: int
    stop: int = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    name: str
    usd: float = 0.5
    notes: tuple[str, ...] = field(default=(), compare=False)
    details: dict[str, int] = field(default_factory=dict[str, int], hash=False)


VALUES: list[dict[str, Any]] = [
    {"name": "a"},
    {"name": "a", "usd": 0.25},
    {"name": "a", "notes": ("seen",)},
    {"name": "a", "details": {"cards": 2}},
    {"name": "b", "details": {"cards": 2}, "notes": ("seen",)},
]


def test_records_are_equal_and_hashed_and_shown_as_dataclasses_are():
    ours, theirs = [Priced(**values) for values in VALUES], [Standard(**values) for values in VALUES]
    for one, other in zip(ours, theirs, strict=True):
        assert hash(one) == hash(other)
        assert repr(one) == repr(other).replace("Standard", "Priced")
        assert asdict(one) == asdict(other)
        assert [one == second for second in ours] == [other == second for second in theirs]
    assert ours[0] != theirs[0]


def test_what_is_made_by_a_factory_is_made_for_each_record():
    first, second = Priced(name="a"), Priced(name="a")
    first.details["cards"] = 2
    assert second.details == {}


def test_a_record_extends_another():
    offered = Offered(name="a", hours=3)
    assert [one.name for one in fields(offered)] == ["name", "usd", "notes", "details", "hours"]
    assert replace(offered, hours=5) == Offered(name="a", hours=5) != offered
    assert offered != Priced(name="a")
    with pytest.raises(ValueError, match="no time"):
        Offered(name="a", hours=-1)


@pytest.mark.parametrize("arguments", [(3,), (3, 9)])
def test_arguments_go_by_place_where_a_record_says_so(arguments: tuple[int, ...]):
    assert (Stretch(*arguments).start, Stretch(*arguments).stop) == (*arguments, 7)[:2]


def test_arguments_go_by_name_alone_elsewhere():
    with pytest.raises(TypeError):
        Priced("a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="name"):
        Priced()  # type: ignore[call-arg]


def test_nothing_can_be_assigned_deleted_or_added():
    one = Priced(name="a")
    with pytest.raises(FrozenInstanceError):
        one.usd = 2.0  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del one.usd
    with pytest.raises(FrozenInstanceError):
        one.new = 1  # type: ignore[attr-defined]
    assert not hasattr(one, "__dict__")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_are_equal(copied: Any):
    one = Offered(name="a", hours=3, details={"cards": 2}, notes=("seen",))
    assert copied(one) == one
    assert copied(one).notes == ("seen",)
