"""The parameters of a prepared model as the engines see them: an ordered list, and its cut into ranks.

Symbols: Ψ bytes or counts of all parameters, Φ of trained ones, N data-parallel ranks.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

from vlmplan.architecture.model import Model, NamedParameter, Part
from vlmplan.architecture.modules import Stack
from vlmplan.architecture.parameter import Parameter
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import BITS, Method
from vlmplan.recipe.lora_targets import READ_WEIGHT
from vlmplan.units import DType

Arrivals = Iterable[tuple[Parameter, int | None]]
"""Parameters of the tree with their layers."""


class FlatBuffer:
    """Parameters one behind the other, of so many elements each."""

    numels: list[int]

    @cached_property
    def ends(self) -> list[int]:
        """The element behind each parameter in the flat buffer."""
        return list(accumulate(self.numels))


class ParameterTable(FlatBuffer):
    """What the engines need to know of the parameters of one prepared model.

    ``numels`` are the trained parameters in the order of the optimizer's parameter group (torch's parameter order);
    ``ordinals`` finds a parameter of the tree, with its layer, among them. ``trained_dtype`` is the widest of their
    element types: only peft in plain PyTorch trains several.
    """

    def __init__(self, model: Model, find_arrivals: Callable[[], Arrivals] | None = None) -> None:
        """``find_arrivals``: which parameters of the tree a backward gives a gradient; without it all trained ones."""
        entries = model.parameters()
        self.entries: Sequence[NamedParameter] = entries
        trained = [entry for entry in entries if entry.parameter.requires_grad]
        self.numels = [entry.parameter.numel for entry in trained]
        self.ordinals: dict[tuple[int, int | None], int] = {
            (id(entry.parameter), entry.layer): ordinal for ordinal, entry in enumerate(trained)
        }
        self.num_params = sum([count * one.numel for one, count in self.kinds])
        self.num_trained = sum([entry.parameter.numel for entry in trained if entry.parameter.is_updated])
        self.trained_dtype: DType = max((one.parameter.dtype for one in trained), key=lambda dtype: dtype.num_bytes)
        self.trained_bytes = sum([count * one.num_bytes for one, count in self.kinds if one.requires_grad])
        self.frozen_bytes = sum([count * one.num_bytes for one, count in self.kinds]) - self.trained_bytes
        self.largest_trained = max(self.numels)
        self.largest_numel = max([one.numel for one, _ in self.kinds])
        self.largest_bytes = max([one.numel * one.dtype.num_bytes for one, _ in self.kinds])
        self.memo: dict[Hashable, Any] = {}
        """What engines have found out about it, by keys of theirs."""
        self._model, self._find_arrivals = model, find_arrivals

    @property
    def total_bytes(self) -> int:
        return self.trained_bytes + self.frozen_bytes

    def table_bytes(self, recipe: Recipe) -> int:
        """Tables of the model that are no parameters, where they take more than some kB."""
        return self.buffer_bytes + self._computed_numel * recipe.computed_dtype.num_bytes

    @cached_property
    def buffer_bytes(self) -> int:
        """Of those all but tables whose type is not the model's alone (``Recipe.computed_dtype``)."""
        beside = sum([getattr(one, "buffer_bytes", 0) for _, one in self._model.distinct_modules()])
        return self.layer_buffer_bytes + beside

    def table_sizes(self, recipe: Recipe) -> list[int]:
        """Bytes of each of those tables; of as many as there are layers where they are in these."""
        per_layer, num_layers = self.layer_buffer_bytes, len({entry.layer for entry in self.entries} - {None})
        beside = self.table_bytes(recipe) - per_layer
        in_layers = [per_layer // num_layers] * num_layers if per_layer and num_layers else []
        return [*in_layers, *([beside] if beside else [])]

    @cached_property
    def _computed_numel(self) -> int:
        return sum([getattr(one, "computed_numel", 0) for _, one in self._model.distinct_modules()])

    @cached_property
    def layer_buffer_bytes(self) -> int:
        """Of those the tables in the model's layers."""
        return sum([getattr(one, "layer_buffer_bytes", 0) for _, one in self._model.distinct_modules()])

    @cached_property
    def calls_more_in_evaluation(self) -> bool:
        """Whether the model calls modules then of which it reads and clamps the weights in training: Gemma 3n's."""
        return any(entry.name.endswith(f"{READ_WEIGHT}.weight") for entry in self.entries)

    @cached_property
    def idle(self) -> frozenset[int]:
        """Ordinals of the trained parameters that no output depends on: no backward gives them a gradient. Of a
        vision-language model on samples without images those of its vision encoder are."""
        if self._find_arrivals is None:
            return frozenset()
        return frozenset(range(len(self.numels))).difference(self.ordinal(*one) for one in self._find_arrivals())

    @cached_property
    def reduced_ordinals(self) -> list[int]:
        """Ordinals of the trained parameters that get a gradient."""
        return [ordinal for ordinal in range(len(self.numels)) if ordinal not in self.idle]

    @cached_property
    def idle_bytes(self) -> int:
        """Bytes that the gradients of ``idle`` parameters would have."""
        return sum([self.gradient_sizes[ordinal] for ordinal in self.idle])

    @cached_property
    def updated_shapes(self) -> list[tuple[int, ...]]:
        """``trained_shapes`` of those that have a gradient: torch's optimizers pass over the others."""
        trained = self.trained_entries
        return [trained[one].parameter.shape for one in self.reduced_ordinals if trained[one].parameter.is_updated]

    @cached_property
    def updated_shapes_by_dtype(self) -> dict[DType, list[tuple[int, ...]]]:
        """``updated_shapes`` by element type: an optimizer updates them type by type."""
        return by_dtype(self.trained_entries[ordinal] for ordinal in self.reduced_ordinals)

    @cached_property
    def loaded_by_name(self) -> list[NamedParameter]:
        """The model's own parameters in the order in which weights that are packed as they are read come."""
        return sorted([entry for entry in self.entries if not is_added(entry)], key=_loading_order)

    @cached_property
    def added(self) -> list[NamedParameter]:
        """What peft adds to the model's own parameters, in order: adapters, DoRA's of which measure weights, come
        before copies (``inject_adapter`` calls ``set_modules_to_save`` last)."""
        return sorted(filter(is_added, self.entries), key=is_copy)

    @cached_property
    def places_sharded(self) -> Mapping[tuple[int, int | None], int]:
        """The place of each parameter, with its layer, in the order in which ZeRO-3 shards them: what peft adds, and
        then its copies, comes after the model's own."""
        sharded = sorted(self.entries, key=lambda entry: (is_added(entry), is_copy(entry)))
        return {(id(entry.parameter), entry.layer): place for place, entry in enumerate(sharded)}

    @cached_property
    def trained_entries(self) -> list[NamedParameter]:
        """The trained parameters, by ordinal."""
        return [entry for entry in self.entries if entry.parameter.requires_grad]

    @cached_property
    def stacks_by_label(self) -> Mapping[str, str]:
        """Paths of the stacks of layers that can run again in backward, by the labels of their sections; those inside
        of others are left out."""
        named = [(name, one) for name, one in self._model.distinct_modules() if isinstance(one, Stack)]
        paths = [name for name, _ in named]
        return {
            one.label: name
            for name, one in named
            if one.can_checkpoint and not any(name.startswith(path + ".") for path in paths)
        }

    @cached_property
    def trained_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the trained parameters, in the same order."""
        return [entry.parameter.shape for entry in self.entries if entry.parameter.requires_grad]

    @cached_property
    def gradient_sizes(self) -> list[int]:
        """Bytes of the gradient of each trained parameter, in the same order."""
        trained = (entry.parameter for entry in self.entries if entry.parameter.requires_grad)
        return [one.numel * one.dtype.num_bytes for one in trained]

    @cached_property
    def shapes_by_dtype(self) -> dict[DType, list[tuple[int, ...]]]:
        """Shapes of the trained parameters by element type."""
        return by_dtype(self.trained_entries)

    @cached_property
    def kinds(self) -> list[tuple[Parameter, int]]:
        """One of the parameters that differ in nothing but their place, and how many of them there are."""
        alike: dict[Hashable, list[Parameter]] = {}
        for entry in self.entries:
            one = entry.parameter
            alike.setdefault((one.shape, one.dtype, one.requires_grad, one.stored_bytes), []).append(one)
        return [(parameters[0], len(parameters)) for parameters in alike.values()]

    def num_loaded(self, recipe: Recipe) -> int:
        """Elements that come from the checkpoint: all but adapters and trained copies."""
        return self.num_params - (self.num_trained if recipe.trains_adapters else 0)

    @cached_property
    def trained_by_part(self) -> Mapping[Part, int]:
        """Trained parameters of each part that the model has."""
        counts = dict.fromkeys((entry.part for entry in self.entries), 0)
        for entry in self.entries:
            counts[entry.part] += entry.parameter.numel if is_trained(entry) else 0
        return {part: counts[part] for part in Part if part in counts}

    @cached_property
    def stacked_bytes(self) -> int:
        """Bytes of frozen stacks of matrices, such as all experts of a layer in one parameter. bitsandbytes quantises
        Linears alone: in a 4-bit model they stay as they are (transformers ``quantizers/quantizer_bnb_4bit.py``)."""
        stacks = [one.num_bytes * count for one, count in self.kinds if len(one.shape) == 3 and not one.requires_grad]
        return sum(stacks)

    @cached_property
    def stacked_numel(self) -> int:
        """Elements of all stacks of matrices, trained or not."""
        return sum([one.numel * count for one, count in self.kinds if len(one.shape) == 3])

    @property
    def embedding_path(self) -> str:
        """The name of the input embedding's module."""
        return self._model.EMBEDDINGS

    @property
    def head_path(self) -> str:
        return self._model.HEAD

    def is_of_head(self, parameter: Parameter) -> bool:
        """Whether it is the output head's weight, which may be that of an embedding too."""
        return parameter is self._model.head.weight

    @property
    def ties_weights(self) -> bool:
        return self._model.ties_weights

    @property
    def copies_tied_head(self) -> bool:
        """Whether peft copies a tied head by itself, which the trainer ties to the embedding's copy after that."""
        return self._model.ties_weights and not self._model.tells_tied_head

    @cached_property
    def tied_numel(self) -> int:
        """Elements of an output head that shares the input embedding's weight, which is one parameter here."""
        return self._model.head.weight.numel if self._model.ties_weights else 0

    @cached_property
    def num_tied_copies(self) -> int:
        """Modules beside the input embedding that share its weight with the head: the head, and the embeddings of an
        encoder and a decoder."""
        if not self._model.ties_weights:
            return 0
        shared = self._model.head.weight
        own = [one.parameters_by_name.values() for _, one in self._model.distinct_modules()]
        return sum(weight is shared for weights in own for weight in weights) - 1

    @cached_property
    def numels_before_tying(self) -> list[int]:
        """Elements of each weight that is one of its own until it is tied to another: of modules beside the input
        embedding that share its weight, and of each layer but the first that holds what layers share (Zamba)."""
        is_shared = any(entry.parameter.shared_uses for entry in self.entries)
        repeated = self._model.repeated_parameters() if is_shared else []
        own = [entry.parameter.numel for entry in repeated if not is_added(entry)]
        return [self.tied_numel] * self.num_tied_copies + own

    @cached_property
    def tied_bytes(self) -> int:
        """Bytes of that weight; 0 where the head has its own."""
        return self._model.head.weight.num_bytes if self._model.ties_weights else 0

    @property
    def tied_is_frozen(self) -> bool:
        return self.tied_bytes > 0 and not self._model.head.weight.requires_grad

    @cached_property
    def largest_copy_bytes(self) -> int:
        """The largest weight that is trained in a copy beside its frozen original."""
        return max([one.parameter.num_bytes for one in self.entries if is_copy(one)], default=0)

    @cached_property
    def largest_module_bytes(self) -> int:
        """The own weights of the module that has most: what ZeRO-3 gathers together at the least."""
        return max(num_bytes for num_bytes, _ in self._modules)

    @cached_property
    def largest_gather_bytes(self) -> int:
        """The most that gathering one module takes: a single weight lands where it stays, several share a buffer from
        which they are copied."""
        return max(num_bytes * min(count, 2) for num_bytes, count in self._modules)

    @cached_property
    def _modules(self) -> list[tuple[int, int]]:
        """(bytes, number) of the own weights of each module, of a tied head too."""
        own = [list(module.parameters_by_name.values()) for _, module in self._model.distinct_modules()]
        return [(sum([one.numel * one.dtype.num_bytes for one in weights]), len(weights)) for weights in own if weights]

    def sharded_elements(self, num_ranks: int) -> int:
        """Elements of one rank's shards of all trained parameters, see the function of that name."""
        key = (sharded_elements, num_ranks)
        if key not in self.memo:
            self.memo[key] = sharded_elements(self.numels, num_ranks)
        return self.memo[key]

    def ordinal(self, parameter: Any, layer: int | None) -> int:
        return self.ordinals[(id(parameter), parameter.layer_of(layer))]


def is_trained(entry: NamedParameter) -> bool:
    """Whether an optimizer updates it."""
    return entry.parameter.requires_grad and entry.parameter.is_updated


def is_copy(entry: NamedParameter) -> bool:
    """Whether it is trained in a copy beside the frozen original (peft's ``modules_to_save``)."""
    return ".modules_to_save." in entry.name


def is_added(entry: NamedParameter) -> bool:
    """Whether peft adds it to the loaded model: a weight of an adapter, or a copy beside the original."""
    return ".lora_" in entry.name or is_copy(entry)


def by_dtype(entries: Iterable[NamedParameter]) -> dict[DType, list[tuple[int, ...]]]:
    """Shapes by element type."""
    found: dict[DType, list[tuple[int, ...]]] = {}
    for entry in entries:
        found.setdefault(entry.parameter.dtype, []).append(entry.parameter.shape)
    return found


def arriving_bytes(parameter: Parameter, recipe: Recipe, loaded_bytes: int, *, is_beside_packed: bool) -> int:
    """Bytes of a weight as it arrives that are not the ``loaded_bytes`` it stays in: all of it before packed ones, or
    16 bits before float32, peft's of what it freezes and the trainer's of what it trains. Adapters beside packed
    weights of 8 bits (``is_beside_packed``) are float32 before any other type: peft gives them the type of the weights
    only where that is one of fractions (``_move_adapter_to_device_of_base_layer``)."""
    if parameter.stored_bytes is not None:
        return parameter.numel * recipe.loaded_dtype.num_bytes
    wide_bytes = parameter.numel * DType.FLOAT32.num_bytes
    if recipe.method is Method.LORA_8BIT and is_beside_packed:
        return wide_bytes if loaded_bytes != wide_bytes else 0
    is_wide = loaded_bytes == wide_bytes and recipe.loaded_dtype is not DType.FLOAT32
    is_upcast = recipe.method in BITS if parameter.requires_grad else recipe.upcasts_frozen
    return parameter.numel * recipe.precision.dtype.num_bytes if is_wide and is_upcast else 0


def _loading_order(entry: NamedParameter) -> list[tuple[bool, int, str]]:
    """Names part by part, numbers as numbers and before words (transformers' ``dot_natural_key``; weights that are
    quantised as they are read come one by one, without threads: ``core_model_loading.py``)."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in entry.name.split(".")]


def sub_group_elements(numels: Sequence[int], num_ranks: int, limit: int) -> list[int]:
    """Elements of a rank's shards that each step of the optimizer handles under ZeRO 3.

    A group is full with the parameter that brings it to ``limit``, and larger than that by a part of the parameter.
    Source: ``_create_fp16_sub_groups`` in ``stage3.py``.
    """
    shards = [-(-numel // num_ranks) for numel in numels]
    if limit >= sum(shards):
        return [sum(shards)]
    groups: list[int] = []
    start = 0
    for length in sub_group_lengths(numels, num_ranks, limit):
        groups.append(sum(shards[start : start + length]))
        start += length
    return groups


def sub_group_lengths(numels: Sequence[int], num_ranks: int, limit: int) -> list[int]:
    """How many parameters are in each of ``sub_group_elements``, in their order."""
    lengths: list[int] = []
    running = length = 0
    for numel in numels:
        running += -(-numel // num_ranks)
        length += 1
        if running >= limit:
            lengths.append(length)
            running = length = 0
    return [*lengths, length] if length else lengths


def sharded_elements(numels: Sequence[int], num_ranks: int) -> int:
    """Elements of one rank's shards under ZeRO 3, where every parameter is padded by itself.

    Source: ``_partition_numel`` in ``partition_parameters.py``: each parameter is cut into N equal, padded pieces.
    """
    return sum([count * -(-numel // num_ranks) for numel, count in Counter(numels).items()])
