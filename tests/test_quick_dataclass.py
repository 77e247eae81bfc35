"""Dataclasses that are quick to define behave as those of the standard library."""

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field, replace

import pytest

from vlmplan.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """With every kind of field."""

    name: str
    memory_bytes: int = 7
    notes: list[str] = field(default_factory=list[str], hash=False)
    source: str = field(default="nobody", compare=False)

    def __post_init__(self) -> None:
        if self.memory_bytes < 0:
            raise ValueError(f"{self.memory_bytes} bytes")


@dataclass(frozen=True, slots=True)
class Pair:
    """Given by place."""

    first: int
    second: int = 2


@dataclass(frozen=True, slots=True)
class Triple(Pair):
    """With one more."""

    third: int = 3


@dataclass(frozen=True, slots=True, eq=False)
class Thing:
    """Equal to itself alone."""

    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """Of one field."""

    size: int


def test_fields_are_filled_from_arguments_and_defaults():
    card = Card(name="a")
    assert (card.name, card.memory_bytes, card.notes, card.source) == ("a", 7, [], "nobody")
    assert card.notes is not Card(name="a").notes
    assert (Pair(1), Pair(1, second=5).second, Triple(1, 2, 4).third) == (Pair(1, 2), 5, 4)


def test_wrong_arguments_are_refused_by_name():
    with pytest.raises(TypeError, match=r"Card\.__init__\(\) missing 1 required keyword-only argument: 'name'"):
        Card()
    with pytest.raises(TypeError, match="colour"):
        Card(name="a", colour=1)
    with pytest.raises(TypeError, match="positional"):
        Single(1)
    with pytest.raises(ValueError, match="-1 bytes"):
        Card(name="a", memory_bytes=-1)


def test_nothing_can_be_assigned_or_deleted():
    card = Card(name="a")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
        card.name = "b"
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'name'"):
        del card.name
    with pytest.raises(AttributeError):
        card.colour = 1


def test_objects_are_equal_by_what_is_compared_and_of_the_same_class():
    card = Card(name="a", source="x")
    assert card == Card(name="a", source="y")
    assert card != Card(name="a", notes=["n"])
    assert hash(card) == hash(Card(name="a", notes=["n"])) == hash(("a", 7))
    assert (Pair(1) == Triple(1), Pair(1) == (1, 2), Single(size=1) == Single(size=1)) == (False, False, True)
    assert hash(Single(size=1)) == hash((1,))
    thing = Thing(1)
    assert thing == thing
    assert thing != Thing(1)


def test_they_are_dataclasses_to_the_standard_library():
    card = Card(name="a")
    assert [one.name for one in dataclasses.fields(card)] == ["name", "memory_bytes", "notes", "source"]
    assert replace(card, memory_bytes=8).memory_bytes == 8
    assert dataclasses.asdict(Pair(1)) == {"first": 1, "second": 2}
    assert repr(card) == "Card(name='a', memory_bytes=7, notes=[], source='nobody')"
    assert not hasattr(card, "__dict__")


def test_standard_dataclasses_inherit_them_if_they_are_frozen_too():
    @dataclasses.dataclass(frozen=True, slots=True)
    class Standard(Triple):
        fourth: int = 4

    with pytest.raises(TypeError, match="frozen"):

        @dataclasses.dataclass
        class Changing(Triple):
            fourth: int = 4

    assert dataclasses.astuple(Standard(1)) == (1, 2, 3, 4)
    with pytest.raises(FrozenInstanceError):
        Standard(1).fourth = 5


def test_they_are_copied_and_pickled():
    card = Card(name="a", notes=["n"])
    assert copy.copy(card) == copy.deepcopy(card) == pickle.loads(pickle.dumps(card)) == card


def test_methods_that_a_class_has_stay():
    @dataclass(frozen=True, slots=True)
    class Named:
        size: int

        def __repr__(self) -> str:
            return "named"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

    assert (repr(Named(1)), Named(1) == 2, hash(Named(1))) == ("named", True, 1)


@dataclass(slots=True)
class Counted:
    """That can be changed."""

    number: int
    found: dict[str, int] = field(default_factory=dict[str, int])


def test_what_is_not_frozen_can_be_changed_and_has_no_hash():
    counted = Counted(1)
    counted.number += 1
    assert counted == Counted(2, {})
    assert copy.copy(counted) == pickle.loads(pickle.dumps(counted)) == counted
    assert counted.found is not Counted(2).found
    with pytest.raises(TypeError, match="unhashable"):
        hash(counted)


def test_classes_without_slots_are_left_to_the_standard_library():
    with pytest.raises(TypeError, match="slots"):
        dataclass(slots=False)
