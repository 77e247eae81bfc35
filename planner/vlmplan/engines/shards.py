"""What ZeRO-3 cuts weights into: the sizes of a rank's shards, of hpZ's secondary partitions, and what stays whole."""

from collections.abc import Callable, Sequence
from functools import cached_property

from vlmplan.architecture.parameter import Parameter
from vlmplan.engines.collectives import padded
from vlmplan.engines.parameter_groups import parameter_groups
from vlmplan.engines.parameters import ParameterTable, sub_group_elements, sub_group_lengths
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload


class Shards:
    """What each of ``num_ranks`` ranks has of the weights of ``table``."""

    def __init__(self, table: ParameterTable, recipe: Recipe, num_ranks: int) -> None:
        self._table, self._zero, self._hpz, self._num_ranks = table, recipe.zero, recipe.hpz, num_ranks
        self._groups = parameter_groups(table, recipe)
        self.has_whole = num_ranks > 1 or recipe.offload_params is not Offload.NONE
        """Whether a whole weight is another tensor than the shard; that of a rank which is alone is the weight."""
        self.arrives = num_ranks > 1 and recipe.offload_params is not Offload.NONE
        """Whether shards come to the GPU, beside what is whole, before they are sent."""

    def is_persistent(self, parameter: Parameter) -> bool:
        """Whether it stays whole on every rank."""
        return parameter.numel <= self._zero.stage3_param_persistence_threshold

    @property
    def sub_groups(self) -> Sequence[int]:
        """Elements that each step of the optimizer handles: parts of its parameter groups."""
        return self._by_group(sub_group_elements)

    @property
    def sub_group_lengths(self) -> Sequence[int]:
        """How many weights are in each of ``sub_groups``."""
        return self._by_group(sub_group_lengths)

    def _by_group(self, parts: Callable[[Sequence[int], int, int], list[int]]) -> Sequence[int]:
        """What ``parts`` finds of one parameter group after the other, found once for all recipes with as many."""
        memo, numels, limit = self._table.memo, self._table.numels, self._zero.sub_group_size
        key = (parts, self._num_ranks, limit, len(self._groups))
        if key not in memo:
            groups = [[numels[ordinal] for ordinal in group] for group in self._groups]
            memo[key] = [part for group in groups for part in parts(group, self._num_ranks, limit)]
        return memo[key]

    def shard_bytes(self, parameter: Parameter) -> int:
        return -(-parameter.numel // self._num_ranks) * parameter.dtype.num_bytes

    @cached_property
    def arriving_small_bytes(self) -> int:
        """Bytes of the shards of all weights that stay whole, which come together after a step and after a
        checkpoint."""
        kinds = self._table.kinds if self.arrives else ()
        return sum([count * self.shard_bytes(one) for one, count in kinds if self.is_persistent(one)])

    @property
    def has_secondary(self) -> bool:
        return self._hpz > 1

    def secondary_bytes(self, parameter: Parameter) -> int:
        """Padded for all ranks, cut among ``hpz``."""
        return padded(parameter.numel, self._num_ranks) // self._hpz * parameter.dtype.num_bytes

    @property
    def secondary_totals(self) -> tuple[int, int]:
        """Bytes of a rank's secondary partitions of (frozen, trained) weights."""
        totals = {True: 0, False: 0}
        for parameter, count in self._table.kinds if self.has_secondary else ():
            totals[parameter.requires_grad] += count * self.secondary_bytes(parameter)
        return totals[False], totals[True]

    @property
    def small_secondary_bytes(self) -> int:
        """Of these partitions those of trained weights that stay whole, which a step brings back, and drops again."""
        kinds = [(one, count) for one, count in self._table.kinds if one.requires_grad and self.has_secondary]
        return sum([count * self.secondary_bytes(one) for one, count in kinds if self.is_persistent(one)])

    @property
    def weight_totals(self) -> tuple[int, int]:
        """(bytes of a rank's shards, bytes of weights that stay whole on every rank)."""
        return self._totals_of(self._table.kinds)

    @property
    def frozen_weight_totals(self) -> tuple[int, int]:
        """The same of frozen weights alone."""
        return self._totals_of([(one, count) for one, count in self._table.kinds if not one.requires_grad])

    def _totals_of(self, kinds: Sequence[tuple[Parameter, int]]) -> tuple[int, int]:
        shards = sum([count * self.shard_bytes(one) for one, count in kinds])
        small = [count * one.numel * one.dtype.num_bytes for one, count in kinds if self.is_persistent(one)]
        return shards, sum(small) if self.has_whole else 0
