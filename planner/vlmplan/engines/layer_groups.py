"""What FSDP2 gathers together, as accelerate groups weights: each layer of a stack, the two ends of the language model,
and all others in the root's group.

The input embedding is a group. The head is another, which stays whole from its forward to its backward, and with it the
final norm where that is a child of the model that transformers names as its base: of a text model without adapters.
Tied weights are one group, whole from the embedding's forward on; the norm is the first in either (``tail_modules`` in
``fsdp2_prepare_model``, and ``_find_final_norm``, accelerate 1.15 ``utils/fsdp_utils.py``).

Where layers alone are units (``ShardUnits``), all of that is the root's. verl makes a unit of an embedding that the
head does not share, and leaves the head to the root (``apply_fsdp2`` in verl@b178a3cd ``verl/utils/fsdp_utils.py``).
NeMo AutoModel reshards neither the last layer of a stack nor the root after forward, and leaves frozen encoders to the
root (``apply_fsdp2_sharding_recursively`` in Automodel@36044ad3 ``components/distributed/parallelizer.py``).

A weight is cut along its first dimension: every rank has as many rows, the last ones padded (``_init_sharded_param`` in
``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``, torch 2.13: ``torch.chunk``, and ``new_zeros`` of the first
chunk's size). A 4-bit weight that is kept in a float type is a column of that type there; its scales are no weight, and
stay whole on every rank. One that is kept in bytes is in no group.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from vlmplan.architecture.model import NamedParameter
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.trace import GradientReady, GradientTaken, LastAdapter, Run, Trace
from vlmplan.engines.dora_lengths import FACTORS
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import ShardUnits
from vlmplan.units import DType

ROOT = -1
"""The number of the root's group; the others count from 0, in the order of the model's modules."""
EMBEDDING, NORM, HEAD = "embedding", "norm", "head"
"""Keys of the sections in which the language model's ends run, and the names of their groups: HEAD of the last."""
AGAIN = "embedding.again"
"""Key of the section in which a decoder embeds token ids, behind the encoder that has embedded others."""
Place = tuple[str, int]
"""The label of a stack and the layer in it, or the name of an end and 0."""
_SECTION = re.compile(r"(?P<label>.+)\.\d+(\.behind)?(\.first)?")
"""Keys of the sections of a stack's layers (``Stack.run``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Bytes of a group on one rank. ``whole_bytes``: gathered, padding included; ``shard_bytes``: at rest;
    ``cast_bytes``: of this rank's part of what is cast to be gathered, ``gathered_bytes`` its whole part.
    ``arriving_bytes``: the weights whole in the type in which they are sharded. ``stays_whole``: from its forward to
    its backward, whatever is chosen."""

    weights: Sequence[NamedParameter]
    ordinals: Sequence[int]
    whole_bytes: int
    shard_bytes: int
    cast_bytes: int
    arriving_bytes: int
    whole_sizes: Sequence[int] = ()
    """``whole_bytes`` weight by weight, as they are allocated."""
    shard_sizes: Sequence[int] = ()
    stays_whole: bool = False
    num_apart: int = 0
    """Adapters' matrices in it that are gathered one by one; their bytes are counted as if they came with the layer."""


class LayerGroups:
    """The groups of ``table`` among ``num_ranks``."""

    def __init__(self, table: ParameterTable, recipe: Recipe, num_ranks: int) -> None:
        self._num_ranks, self._recipe, self._table = num_ranks, recipe, table
        self._places: dict[Place, int] = {}
        members: list[list[NamedParameter]] = []
        root: list[NamedParameter] = []
        for entry, place in _places(table, recipe):
            if recipe.leaves_out_packed and entry.parameter.stored_bytes is not None:
                continue
            if place is None:
                root.append(entry)
                continue
            if place not in self._places:
                self._places[place] = len(members)
                members.append([])
            members[self._places[place]].append(entry)
        self.embedding, self.tail = self._places.get((EMBEDDING, 0)), self._places.get((HEAD, 0))
        members, root, norm = [*map(_in_turn, members)], _in_turn(root), final_norm(table)
        path = (norm or "").removesuffix("weight")
        tail = [] if self.tail is None else members[self.tail]
        tail.sort(key=lambda entry: not norm or not entry.name.startswith(path))
        kept = self._last_of_stacks() if recipe.keeps_last_layers else set[int]()
        wholes = [at == self.tail or at in kept for at in range(len(members))]
        self.layers = [self._group(one, stays_whole=whole) for one, whole in zip(members, wholes, strict=True)]
        self.root = self._group(root)
        names = {entry.name for entry in tail}
        self._first_of_tail = EMBEDDING if self.embedding is None else NORM if norm in names else HEAD
        head = table.head_path + "."  # which may hold an original beside its trained copy
        has_table = any(table.is_of_head(one.parameter) for one in tail if not one.name.startswith(head))
        if self.embedding is not None and has_table:  # that of the decoder, whose encoder has one of its own
            self._first_of_tail = AGAIN
        self._embeds = (EMBEDDING,) if self._first_of_tail == AGAIN else (EMBEDDING, AGAIN)
        self.gathers_head_alone = self.tail is not None and self._first_of_tail == HEAD
        """Whether it waits for the head to be called, and is not whole before."""
        keeps_root = recipe.shard_units.keeps_last
        self.reshards_root = recipe.has_ends_in_root and recipe.reshard_after_forward and not keeps_root
        """Unless it is told so torch leaves it whole (``_lazy_init`` in ``_fsdp_state.py``)."""
        numbered = [*enumerate(self.layers), (ROOT, self.root)]
        self.number_of_ordinal = {ordinal: number for number, group in numbered for ordinal in group.ordinals}

    def __getitem__(self, number: int) -> LayerGroup:
        return self.root if number == ROOT else self.layers[number]

    @property
    def all(self) -> list[LayerGroup]:
        """All groups in the order in which they are made: layers, the embedding, the tail and the root."""
        ends = [self.embedding, self.tail]
        layers = [number for number in range(len(self.layers)) if number not in ends]
        return [*[self.layers[number] for number in [*layers, *ends] if number is not None], self.root]

    def _last_of_stacks(self) -> set[int]:
        """The groups of the last layers, by the labels of their stacks."""
        last = {label: max(at for one, at in self._places if one == label) for label, _ in self._places}
        return {self._places[place] for place in last.items()}

    def begun_by(self, run: Run) -> int | None:
        """The group whose forward begins with a section; None for what is the root's, or inside of a group."""
        if run.layer is None and run.key == self._first_of_tail:
            return self.tail
        return self.embedding if run.layer is None and run.key in self._embeds else self._layer_of(run)

    def ended_by(self, run: Run) -> int | None:
        """The group whose forward ends with a section."""
        if run.layer is None and run.key == HEAD:
            return self.tail
        return self.embedding if run.layer is None and run.key in self._embeds else self._layer_of(run)

    def _layer_of(self, run: Run) -> int | None:
        if run.layer is None:
            return None
        found = _SECTION.fullmatch(run.key)
        return None if found is None else self._places.get((found["label"], run.layer))

    def held_dtype(self, entry: NamedParameter) -> DType:
        """Element type of a shard: trained weights have that of the update, frozen ones that in which they came."""
        recipe = self._recipe
        if entry.parameter.stored_bytes is not None:
            return entry.parameter.dtype
        return recipe.held_dtype if entry.parameter.requires_grad else recipe.frozen_held_dtype

    def shard_numel(self, entry: NamedParameter) -> int:
        """Elements of a rank's rows, padded."""
        rows, *others = stored_shape(entry.parameter)
        return -(-rows // self._num_ranks) * prod(others)

    def padded_bytes(self, ordinals: Sequence[int], dtype: DType) -> int:
        """Bytes of the gradients of these weights, each padded to equal shards."""
        trained = self._table.trained_entries
        return sum([self._num_ranks * self.shard_numel(trained[ordinal]) for ordinal in ordinals]) * dtype.num_bytes

    def _group(self, entries: Sequence[NamedParameter], *, stays_whole: bool = False) -> LayerGroup:
        numbers = self._table.ordinals
        wholes: list[int] = []
        shards: list[int] = []
        cast = arriving = num_apart = 0
        for entry in entries:
            numel, computed, held = self.shard_numel(entry), entry.parameter.dtype, self.held_dtype(entry)
            wholes.append(self._num_ranks * numel * computed.num_bytes)
            shards.append(numel * held.num_bytes)
            if self._recipe.seen_adapter_dtype is not None and entry.name.endswith(FACTORS):
                num_apart += 1
            cast += numel * computed.num_bytes if held is not computed else 0
            arriving += prod(stored_shape(entry.parameter)) * held.num_bytes
        ordinals = [numbers[id(one.parameter), one.layer] for one in entries if one.parameter.requires_grad]
        return LayerGroup(
            weights=entries,
            ordinals=ordinals,
            whole_bytes=sum(wholes),
            shard_bytes=sum(shards),
            whole_sizes=wholes,
            shard_sizes=shards,
            cast_bytes=cast,
            arriving_bytes=arriving,
            stays_whole=stays_whole,
            num_apart=num_apart,
        )


def stored_shape(parameter: Parameter) -> tuple[int, ...]:
    """As it is sharded: of a 4-bit weight, kept in its type, one column (``quantize_4bit`` of bitsandbytes 0.50)."""
    if parameter.stored_bytes is None:
        return parameter.shape
    return ((parameter.numel + 1) // (2 * parameter.dtype.num_bytes), 1)


def layer_groups(table: ParameterTable, recipe: Recipe, num_ranks: int) -> LayerGroups:
    """Found once for all recipes that shard in the same types."""
    types = (recipe.held_dtype, recipe.frozen_held_dtype, recipe.leaves_out_packed)
    key = (layer_groups, num_ranks, *types, recipe.shard_units, recipe.reshard_after_forward)
    if key not in table.memo:
        table.memo[key] = LayerGroups(table, recipe, num_ranks)
    return table.memo[key]


@dataclass(frozen=True, slots=True)
class BackwardOrder:
    """The order in which groups are used in the backward of one trace. ``forward_order``: the groups beside the root,
    in the order in which they end. ``with_output``: those whose result needs a gradient, so that their backward begins
    with a gather. ``with_input``: those whose first input needs one, which tells when their backward is over;
    ``reading_output``: those of them whose first input is the result of the group before itself."""

    forward_order: Sequence[int]
    with_output: frozenset[int]
    with_input: frozenset[int]
    reading_output: frozenset[int]


def backward_order(trace: Trace, groups: LayerGroups) -> BackwardOrder:
    """Something needs a gradient behind the first weight that gets one; what nothing needs has no backward, as a frozen
    encoder's, which runs behind the language model's embedding without reading it. Found once for each trace."""
    key = (backward_order, groups)
    if key not in trace.memo:
        trace.memo[key] = _backward_order(trace, groups)
    return trace.memo[key]


def _backward_order(trace: Trace, groups: LayerGroups) -> BackwardOrder:
    order: list[int] = []
    outputs: set[int] = set()
    inputs: set[int] = set()
    reading: set[int] = set()
    trained_flows: set[str] = set()
    before: int | None = None
    for run in trace.schedule:
        begun, ended = groups.begun_by(run), groups.ended_by(run)
        backward, flow = trace.sections[run.key].backward, _flow(run, trace)
        has_trained = flow in trained_flows if flow else bool(trained_flows)
        if begun is not None and backward and has_trained and run.key not in (EMBEDDING, AGAIN):  # given token ids
            inputs.add(begun)
            if before is not None:
                reading.add(begun)
        if any(isinstance(one, GradientReady | GradientTaken) for one in backward):
            trained_flows.add(flow)
        if ended is not None:
            order.append(ended)
            if backward:
                outputs.add(ended)
        if ended is not None or backward:
            before = ended
    return BackwardOrder(order, frozenset(outputs), frozenset(inputs), frozenset(reading))


def gathered_ahead(trace: Trace, groups: LayerGroups) -> Mapping[Run | None, int]:
    """The group that a flat parameter gathers when its own forward begins, which is the next one's in the order of the
    first forward: by the section that begins a group, or whose last adapter comes before one; None is the root's. Found
    once for each trace."""
    key = (gathered_ahead, groups)
    if key not in trace.memo:
        ahead: dict[Run | None, int] = {}
        before: Run | None = None
        for run in trace.schedule:
            number = groups.begun_by(run)
            if number is not None:
                ahead[before] = number
            if number is not None or any(isinstance(one, LastAdapter) for one in trace.sections[run.key].forward):
                before = run
        trace.memo[key] = ahead
    return trace.memo[key]


def _flow(run: Run, trace: Trace) -> str:
    """The encoder that a section is of, which begins with an embedding of its own; empty in what all encoders lead to:
    that reads them all."""
    encoder = run.key.partition(".")[0]
    return encoder if f"{encoder}.{EMBEDDING}" in trace.sections else ""


def _places(table: ParameterTable, recipe: Recipe) -> list[tuple[NamedParameter, Place | None]]:
    """Each weight with its group; None is the root's."""
    embedding, head = table.embedding_path + ".", table.head_path + "."
    norm = None if recipe.trains_adapters else final_norm(table)
    tail = (head,) if norm is None else (head, norm.removesuffix("weight"))
    if any(one.name.startswith(embedding) and table.is_of_head(one.parameter) for one in table.entries):
        tail = (*tail, embedding)  # with the original that lies beside a trained copy
    stacks = table.stacks_by_label
    if recipe.shard_units.of_language_alone:
        base = table.embedding_path.rpartition(".")[0] + "."
        stacks = {label: path for label, path in stacks.items() if path.startswith(base)}
    found: list[tuple[NamedParameter, Place | None]] = []
    for entry in table.entries:
        if recipe.shard_units is ShardUnits.EMBEDDING_TOO and entry.name.startswith(embedding):
            place = None if table.is_of_head(entry.parameter) else (EMBEDDING, 0)
        elif recipe.has_ends_in_root:
            place = _layer_of(entry, stacks)
        elif entry.name.startswith(tail) or table.is_of_head(entry.parameter):
            place = HEAD, 0
        elif entry.name.startswith(embedding):
            place = EMBEDDING, 0
        else:
            place = _layer_of(entry, stacks)
        found.append((entry, place))
    return found


def _in_turn(entries: Sequence[NamedParameter]) -> list[NamedParameter]:
    """Weights as their group has them: a module's own come behind those of the modules in it
    (``_get_managed_modules`` in ``_fsdp_init.py``)."""
    first: dict[str, int] = {}
    turns: list[tuple[int, ...]] = []
    for at, entry in enumerate(entries):
        parts = entry.name.split(".")[:-1]
        paths = [".".join(parts[: depth + 1]) for depth in range(len(parts))]
        turns.append((*(first.setdefault(path, at) for path in paths), len(entries), at))
    return [entry for _, entry in sorted(zip(turns, entries, strict=True), key=lambda one: one[0])]


def final_norm(table: ParameterTable) -> str | None:
    """The name of the weight of the last norm that is a child of a text model's base; None where the language model is
    deeper."""
    base, _, _ = table.embedding_path.rpartition(".")
    if "." in base:
        return None
    children = [entry for entry in table.entries if re.fullmatch(re.escape(base) + r"\.\w+\.weight", entry.name)]
    norms = [one.name for one in children if len(one.parameter.shape) == 1]
    return norms[-1] if norms else None


def _layer_of(entry: NamedParameter, stacks: Mapping[str, str]) -> Place | None:
    """The label of the outermost stack that the weight is in, and its layer there."""
    for label, path in stacks.items():
        if entry.name.startswith(path + "."):
            return label, int(entry.name[len(path) + 1 :].partition(".")[0])
    return None
