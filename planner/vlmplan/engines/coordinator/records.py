"""Weights that ZeRO-3 gathers, their modules, and the collectives that are under way."""

from collections import deque
from dataclasses import dataclass, field

Key = tuple[int, int | None]
"""A parameter or a module, by the object, of one layer."""


@dataclass(slots=True, eq=False)
class GatheredStorage:
    """A whole weight, in ``num_bytes`` with what it is padded by. Views that autograd has saved keep it when DeepSpeed
    takes it from the weight."""

    num_bytes: int
    num_views: int = 0
    is_released: bool = False


@dataclass(slots=True, eq=False)
class GatheredWeight:
    """One weight of one layer, and where it stands. ``storage`` is there while it is whole, ``gather`` while it is on
    its way; ``fetched_for`` is the last step that prefetch has counted on, ``uses`` are the steps that need it.
    ``has_secondary``: it has its secondary partition, if weights have them (hpZ). ``number`` counts those
    that are not small: ``is_small`` ones, up to the persistence threshold, stay once they are whole."""

    key: Key
    numel: int
    num_bytes: int
    aligned_bytes: int
    is_trained: bool
    storage: GatheredStorage | None = None
    gather: "Gather | None" = None
    fetched_for: int = -1
    uses: deque[int] = field(default_factory=deque[int])
    users: "set[GatheredModule]" = field(default_factory=set["GatheredModule"])
    has_secondary: bool = True
    number: int = 0
    is_small: bool = False


@dataclass(slots=True, eq=False)
class GatheredModule:
    """A module of one layer; ``weights`` are those that are gathered and released, ``numel`` counts all.

    ``is_leaf``: they are those of the modules inside too. ``reads_head``: it is the model itself (``ReadHead``),
    which may call that head too.
    ``waited_first`` is that which is waited for before others, where one always is (``wait_order``). ``reads``: see
    ``WeightUser``.
    """

    key: Key
    weights: list[GatheredWeight]
    numel: int
    is_leaf: bool = False
    reads_head: bool = False
    waited_first: GatheredWeight | None = None
    calls_head: bool = False
    reads: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class Gather:
    """One collective that is under way or whose flat buffer still exists, and what it makes whole."""

    flat_bytes: int
    num_waiting: int
    is_done: bool = False
    storages: dict[GatheredWeight, GatheredStorage] = field(default_factory=dict[GatheredWeight, GatheredStorage])


Decisions = dict[tuple[int, int], bool]
"""Whether a weight stays whole when a module of its is done, by the next step and the weight's ``number``."""
Passed = tuple[int, int]
"""Elements between two uses of a weight: as a module that is no leaf counts them, and as a leaf does."""
NOT_ASKED: tuple[list[int], list[int]] = ([], [])


def passed_by(numel: int, *, is_leaf: bool) -> Passed:
    """What a module of ``numel`` elements adds: ``__params_to_release`` looks into the modules inside others only where
    the one that is released is a leaf, so that to others a leaf, whose weights are all inside, adds nothing."""
    return (0 if is_leaf else numel, numel)
