"""The flat parameters of FSDP1: of each unit, a layer or the root with all else, all weights one behind the other.

With ``use_orig_params`` every weight begins at an address of 16 bytes, and the whole divides among the ranks; without
it weights have nothing between them, and each rank's shard is as long as the longest (``_init_flat_param_and_metadata``
and ``_get_shard`` in ``torch/distributed/fsdp/_flat_param.py``, torch 2.13).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vlmplan.architecture.model import NamedParameter
from vlmplan.engines.layer_groups import LayerGroups, layer_groups
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe

ALIGNMENT_BYTES = 16
"""``_get_aligned_numel``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatUnit:
    """Elements of a flat parameter. ``padded_numel``: of the equal shards of all ranks together, as it is gathered."""

    weights: Sequence[NamedParameter]
    ordinals: Sequence[int]
    starts: Sequence[int]
    """Where each weight begins."""
    numel: int
    padded_numel: int
    num_ranks: int

    @property
    def shard_numel(self) -> int:
        return self.padded_numel // self.num_ranks

    @property
    def weights_numel(self) -> int:
        return sum([one.parameter.numel for one in self.weights])

    def own_numels(self, rank: int) -> list[int]:
        """Elements of each weight in the shard of ``rank``, where it has any."""
        first = rank * self.shard_numel
        ends = [start + one.parameter.numel for start, one in zip(self.starts, self.weights, strict=True)]
        own = [
            min(end, first + self.shard_numel) - max(start, first) for start, end in zip(self.starts, ends, strict=True)
        ]
        return [numel for numel in own if numel > 0]


class FlatUnits:
    """The units of ``table`` among ``num_ranks``, with the numbers that ``groups`` have."""

    def __init__(self, table: ParameterTable, recipe: Recipe, num_ranks: int) -> None:
        self.groups: LayerGroups = layer_groups(table, recipe, num_ranks)
        self._places = {id(entry): place for place, entry in enumerate(table.entries)}
        self._table, self._recipe, self._num_ranks = table, recipe, num_ranks
        self.layers = [self._unit(group.weights, group.ordinals) for group in self.groups.layers]
        self.root = self._unit(self.groups.root.weights, self.groups.root.ordinals)

    def __getitem__(self, number: int) -> FlatUnit:
        return self.root if number < 0 else self.layers[number]

    @property
    def all(self) -> list[FlatUnit]:
        """In the order in which they are made: the root last."""
        return [*self.layers, *([self.root] if self.root.weights else [])]

    def copied_numel(self, unit: FlatUnit) -> int:
        """Elements of a rank's rows of each weight, as a dictionary of sharded weights has them."""
        return sum([self.groups.shard_numel(entry) for entry in unit.weights])

    def _unit(self, weights: Sequence[NamedParameter], ordinals: Sequence[int]) -> FlatUnit:
        """A module's own weights are before those of the modules in it (``named_modules``)."""
        weights = sorted(weights, key=lambda entry: self._places[id(entry)])
        aligned = 1
        if self._recipe.uses_orig_params:
            aligned = ALIGNMENT_BYTES // self._recipe.trained_dtype.num_bytes
        starts: list[int] = []
        numel = 0
        for entry in weights:
            numel += -numel % aligned
            starts.append(numel)
            numel += entry.parameter.numel
        padded = numel + -numel % self._num_ranks
        return FlatUnit(
            weights=weights,
            ordinals=ordinals,
            starts=starts,
            numel=padded if self._recipe.uses_orig_params else numel,
            padded_numel=padded,
            num_ranks=self._num_ranks,
        )


def flat_units(table: ParameterTable, recipe: Recipe, num_ranks: int) -> FlatUnits:
    """Found once for all recipes that share them."""
    key = (flat_units, num_ranks, recipe.shard_units, recipe.uses_orig_params, recipe.trained_dtype)
    if key not in table.memo:
        table.memo[key] = FlatUnits(table, recipe, num_ranks)
    return table.memo[key]
