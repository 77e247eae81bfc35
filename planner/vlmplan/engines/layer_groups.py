"""What FSDP2 gathers together: the weights of each layer of a stack, and all others in the root's group.

A weight is cut along its first dimension: every rank has as many rows, the last ones padded (``_init_sharded_param`` in
``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``, torch 2.13: ``torch.chunk``, and ``new_zeros`` of the first
chunk's size).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from vlmplan.architecture.model import NamedParameter
from vlmplan.architecture.trace import GradientReady, GradientTaken, Run, Trace
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe
from vlmplan.units import DType

ROOT = -1
"""The number of the root's group; layers count from 0, in the order of the model's modules."""
_SECTION = re.compile(r"(?P<label>.+)\.\d+(\.behind)?(\.first)?")
"""Keys of the sections of a stack's layers (``Stack.run``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Bytes of a group on one rank. ``whole_bytes``: gathered, padding included; ``shard_bytes``: at rest;
    ``cast_bytes``: of this rank's part of what is cast to be gathered, ``gathered_bytes`` its whole part.
    ``arriving_bytes``: the weights whole in the type in which they are sharded."""

    weights: Sequence[NamedParameter]
    ordinals: Sequence[int]
    whole_bytes: int
    shard_bytes: int
    cast_bytes: int
    arriving_bytes: int


class LayerGroups:
    """The groups of ``table`` among ``num_ranks``."""

    def __init__(self, table: ParameterTable, recipe: Recipe, num_ranks: int) -> None:
        self._num_ranks, self._recipe = num_ranks, recipe
        self._labels = table.stacks_by_label
        self._places: dict[tuple[str, int], int] = {}
        members: list[list[NamedParameter]] = []
        root: list[NamedParameter] = []
        for entry in table.entries:
            place = _layer_of(entry, self._labels)
            if place is None:
                root.append(entry)
                continue
            if place not in self._places:
                self._places[place] = len(members)
                members.append([])
            members[self._places[place]].append(entry)
        self._table = table
        self.layers = [self._group(entries) for entries in members]
        self.root = self._group(root)
        numbered = [*enumerate(self.layers), (ROOT, self.root)]
        self.number_of_ordinal = {ordinal: number for number, group in numbered for ordinal in group.ordinals}

    def __getitem__(self, number: int) -> LayerGroup:
        return self.root if number == ROOT else self.layers[number]

    @property
    def all(self) -> list[LayerGroup]:
        """In the order in which they are made: the root last."""
        return [*self.layers, self.root]

    def number_of(self, run: Run) -> int | None:
        """The layer that a section runs; None for what is the root's."""
        if run.layer is None:
            return None
        found = _SECTION.fullmatch(run.key)
        return None if found is None else self._places.get((found["label"], run.layer))

    def held_dtype(self, entry: NamedParameter) -> DType:
        """Element type of a shard: trained weights have that of the update."""
        return self._recipe.held_dtype if entry.parameter.requires_grad else entry.parameter.dtype

    def shard_numel(self, entry: NamedParameter) -> int:
        """Elements of a rank's rows, padded."""
        rows, *others = entry.parameter.shape
        return -(-rows // self._num_ranks) * prod(others)

    def padded_bytes(self, ordinals: Sequence[int], dtype: DType) -> int:
        """Of the gradients of these weights, each padded to equal shards."""
        trained = self._table.trained_entries
        return sum([self._num_ranks * self.shard_numel(trained[one]) for one in ordinals]) * dtype.num_bytes

    def _group(self, entries: Sequence[NamedParameter]) -> LayerGroup:
        numbers = self._table.ordinals
        whole = shard = cast = arriving = 0
        for entry in entries:
            numel, computed, held = self.shard_numel(entry), entry.parameter.dtype, self.held_dtype(entry)
            whole += self._num_ranks * numel * computed.num_bytes
            shard += numel * held.num_bytes
            cast += numel * computed.num_bytes if held is not computed else 0
            arriving += entry.parameter.numel * held.num_bytes
        ordinals = [numbers[id(one.parameter), one.layer] for one in entries if one.parameter.requires_grad]
        return LayerGroup(
            weights=entries,
            ordinals=ordinals,
            whole_bytes=whole,
            shard_bytes=shard,
            cast_bytes=cast,
            arriving_bytes=arriving,
        )


def layer_groups(table: ParameterTable, recipe: Recipe, num_ranks: int) -> LayerGroups:
    """Found once for all recipes that shard in the same types."""
    key = (layer_groups, num_ranks, recipe.held_dtype)
    if key not in table.memo:
        table.memo[key] = LayerGroups(table, recipe, num_ranks)
    return table.memo[key]


@dataclass(frozen=True, slots=True)
class BackwardOrder:
    """Of one trace. ``forward_order``: the layers that run, in order. ``with_output``: those whose result needs a
    gradient, so that their backward begins with a gather. ``with_input``: those whose input needs one, which tells when
    their backward is over."""

    forward_order: Sequence[int]
    with_output: frozenset[int]
    with_input: frozenset[int]


def backward_order(trace: Trace, groups: LayerGroups) -> BackwardOrder:
    """Something needs a gradient behind the first weight that gets one. Found once for each trace."""
    key = (backward_order, groups)
    if key not in trace.memo:
        trace.memo[key] = _backward_order(trace, groups)
    return trace.memo[key]


def _backward_order(trace: Trace, groups: LayerGroups) -> BackwardOrder:
    trains = {
        key: any(isinstance(one, GradientReady | GradientTaken) for one in section.backward)
        for key, section in trace.sections.items()
    }
    order: dict[int, None] = {}
    outputs: set[int] = set()
    inputs: set[int] = set()
    has_trained = False
    for run in trace.schedule:
        number = groups.number_of(run)
        if number is not None:
            order[number] = None
            if has_trained:
                inputs.add(number)
            if has_trained or trains[run.key]:
                outputs.add(number)
        has_trained = has_trained or trains[run.key]
    return BackwardOrder(list(order), frozenset(outputs), frozenset(inputs))


def _layer_of(entry: NamedParameter, stacks: Mapping[str, str]) -> tuple[str, int] | None:
    """The label of the outermost stack that the weight is in, and its layer there."""
    for label, path in stacks.items():
        if entry.name.startswith(path + "."):
            return label, int(entry.name[len(path) + 1 :].partition(".")[0])
    return None
