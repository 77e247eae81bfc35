"""The flat parameters of FSDP1: of each unit, a layer or the root with all else, all weights one behind the other.

With ``use_orig_params`` every weight begins at an address of 16 bytes, and the whole divides among the ranks; without
it weights have nothing between them, and each rank's shard is as long as the longest (``_init_flat_param_and_metadata``
and ``_get_shard`` in ``torch/distributed/fsdp/_flat_param.py``, torch 2.13).

With ``use_orig_params`` a unit may have frozen weights beside trained ones: all are views of one flat parameter that
needs a gradient, so all get one (``_use_unsharded_views``), and autograd goes through whatever reads them. The flat
gradient and its shard are whole; the optimizer sees the parts of trained weights alone (``_use_sharded_grad_views``).

Each factor of an adapter is a unit by itself (``fsdp_auto_wrap_policy`` in ``peft/utils/other.py``, peft 0.21: modules
without children whose weight is trained), so that all weights of a unit are trained or none, and of one type.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from vlmplan.architecture.model import NamedParameter
from vlmplan.engines.layer_groups import ROOT, LayerGroup, LayerGroups, layer_groups, stored_shape
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe

ALIGNMENT_BYTES = 16
"""``_get_aligned_numel``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatUnit:
    """Elements of a flat parameter. ``padded_numel``: of the equal shards of all ranks together, as it is gathered.
    ``computed``, ``held``: bytes of an element that is gathered, and of one in a shard."""

    weights: Sequence[NamedParameter]
    ordinals: Sequence[int]
    starts: Sequence[int]
    """Where each weight begins."""
    weights_numel: int
    numel: int
    padded_numel: int
    num_ranks: int
    computed: int
    held: int

    @property
    def shard_numel(self) -> int:
        return self.padded_numel // self.num_ranks

    @property
    def updated_numel(self) -> int:
        """Elements of a shard that are updated, on a rank that has its part of them."""
        if all(one.parameter.is_updated for one in self.weights):
            return self.shard_numel
        return -(-sum([one.parameter.numel for one in self.weights if one.parameter.is_updated]) // self.num_ranks)

    @property
    def shard_bytes(self) -> int:
        return self.shard_numel * self.held

    @property
    def whole_bytes(self) -> int:
        return self.padded_numel * self.computed

    def own_numels(self, rank: int) -> list[tuple[NamedParameter, int]]:
        """Elements of each weight that is updated in the shard of ``rank``, where it has any."""
        first = rank * self.shard_numel
        own: list[tuple[NamedParameter, int]] = []
        for start, one in zip(self.starts, self.weights, strict=True):
            end = min(start + one.parameter.numel, first + self.shard_numel)
            own.append((one, end - max(start, first) if one.parameter.is_updated else 0))
        return [part for part in own if part[1] > 0]


class FlatUnits:
    """The units of ``table`` among ``num_ranks``, with the numbers that ``groups`` have."""

    def __init__(self, table: ParameterTable, recipe: Recipe, num_ranks: int) -> None:
        self.groups: LayerGroups = layer_groups(table, recipe, num_ranks)
        self._places = {id(entry): place for place, entry in enumerate(table.entries)}
        self._table, self._recipe, self._num_ranks = table, recipe, num_ranks
        self.adapters: dict[int, FlatUnit] = {}
        """By the ordinal of the one weight of each."""
        self._by_number = {number: self._of_group(self.groups[number]) for number in self._numbers}
        self.adapters_by_number: Mapping[int, Sequence[FlatUnit]] = {
            number: [self.adapters[ordinal] for ordinal in self.groups[number].ordinals if ordinal in self.adapters]
            for number in self._numbers
        }

    @property
    def _numbers(self) -> list[int]:
        return [*range(len(self.groups.layers)), ROOT]

    def __getitem__(self, number: int) -> FlatUnit:
        return self._by_number[number]

    @property
    def root(self) -> FlatUnit:
        return self[ROOT]

    def made(self, number: int) -> list[FlatUnit]:
        """The units of a group in the order in which they are made: what is inside first."""
        return [unit for unit in (*self.adapters_by_number[number], self[number]) if unit.weights]

    @property
    def all(self) -> list[FlatUnit]:
        """In the order in which they are made: the root last."""
        return [unit for number in self._numbers for unit in self.made(number)]

    def own_numels(self, units: Iterable[FlatUnit], rank: int) -> list[int]:
        """Elements of each weight of ``units`` that ``rank`` updates, in the order of ``model.parameters()``."""
        own = [part for unit in units for part in unit.own_numels(rank)]
        return [numel for _, numel in sorted(own, key=lambda part: self._places[id(part[0])])]

    def _of_group(self, group: LayerGroup) -> FlatUnit:
        """The unit of a group, beside those of adapters in it."""
        if not self._recipe.trains_adapters:
            return self._unit(group.weights, group.ordinals)
        ordinals = self._table.ordinals
        kept: list[NamedParameter] = []
        for entry in group.weights:
            ordinal = ordinals.get((id(entry.parameter), entry.layer))
            if ordinal is None:
                kept.append(entry)
            else:
                self.adapters[ordinal] = self._unit([entry], [ordinal])
        return self._unit(kept, [])

    def copied_numel(self, unit: FlatUnit) -> int:
        """Elements of a rank's rows of each weight, as a dictionary of sharded weights has them."""
        return sum([self.groups.shard_numel(entry) for entry in unit.weights])

    def _unit(self, weights: Sequence[NamedParameter], ordinals: Sequence[int]) -> FlatUnit:
        """A module's own weights are before those of the modules in it (``named_modules``)."""
        weights = sorted(weights, key=lambda entry: self._places[id(entry)])
        computed, held = self._recipe.trained_dtype.num_bytes, self._recipe.held_dtype.num_bytes
        if weights and not ordinals:
            computed = weights[0].parameter.dtype.num_bytes
            held = self.groups.held_dtype(weights[0]).num_bytes
        aligned = ALIGNMENT_BYTES // computed if self._recipe.uses_orig_params else 1
        starts: list[int] = []
        numel = filled = 0
        for entry in weights:
            numel += -numel % aligned
            starts.append(numel)
            own = prod(stored_shape(entry.parameter))
            numel += own
            filled += own
        padded = numel + -numel % self._num_ranks
        return FlatUnit(
            weights=weights,
            ordinals=ordinals,
            starts=starts,
            weights_numel=filled,
            numel=padded if self._recipe.uses_orig_params else numel,
            padded_numel=padded,
            num_ranks=self._num_ranks,
            computed=computed,
            held=held,
        )


def give_gradients(table: ParameterTable, recipe: Recipe) -> None:
    """Let frozen weights of units that have trained ones get gradients too, and have their type."""
    groups = layer_groups(table, recipe, 1)
    for number in (*range(len(groups.layers)), ROOT):
        for entry in groups[number].weights if groups[number].ordinals else ():
            if not entry.parameter.requires_grad:
                entry.parameter.requires_grad, entry.parameter.is_updated = True, False
                entry.parameter.dtype = recipe.trained_dtype


def flat_units(table: ParameterTable, recipe: Recipe, num_ranks: int) -> FlatUnits:
    """Found once for all recipes that share them."""
    types = (recipe.trained_dtype, recipe.held_dtype, recipe.frozen_held_dtype)
    key = (flat_units, num_ranks, recipe.shard_units, recipe.uses_orig_params, *types)
    if key not in table.memo:
        table.memo[key] = FlatUnits(table, recipe, num_ranks)
    return table.memo[key]
