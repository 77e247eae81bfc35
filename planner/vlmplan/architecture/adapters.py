"""LoRA adapters and packed weights, put into a model tree as peft and bitsandbytes put them into a model.

Sources: peft 0.21 ``tuners/lora/layer.py`` and ``tuners/lora/bnb.py``; transformers 5.23 ``quantizers/base.py``.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from vlmplan.architecture import ops
from vlmplan.architecture.adapter_names import (
    EXCLUDE_OPTION,
    TARGETS_OPTION,
    ModuleNames,
    Place,
    last_parts,
    places_of,
    target_names,
    weightless_names,
)
from vlmplan.architecture.dora import DoraLayer, UsedWeights
from vlmplan.architecture.model import Model, Part
from vlmplan.architecture.modules import Conv1D, DerivedLinear, Embedding, Linear, Module, PatchEmbedding
from vlmplan.architecture.packed_weight import Linear4bit, PackedLinear
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.parameter_adapters import (
    STACK_DIMENSIONS,
    AdaptableModule,
    adapted_parameters,
    wrap_parameters,
)
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError, nearest
from vlmplan.recipe.lora_targets import is_stacked, layer_targets, stacked_targets
from vlmplan.units import DType

ADAPTABLE = (Linear, PatchEmbedding, Embedding)


class AdapterSettings(NamedTuple):
    """What adapters are, wherever they are; names as in ``Recipe``.

    ``changes_base``: they begin as factors of a linear layer's weight, which has no more of them than its smaller side
    has elements: both lose the rest of ``rank`` (``pissa_init`` and ``olora_init`` in ``tuners/lora/layer.py``).
    """

    rank: int
    dropout: float = 0.0
    use_dora: bool = False
    changes_base: bool = False
    seen_dtype: DType | None = None
    """``Recipe.seen_adapter_dtype``."""
    is_fused: bool = False
    """``Recipe.fused_adapters``."""

    def of_linear(self, in_features: int, out_features: int) -> "AdapterSettings":
        """The settings for a linear layer with so many inputs and outputs."""
        return self._replace(rank=min(self.rank, in_features, out_features)) if self.changes_base else self


class Lora(Module):
    """``peft.tuners.lora.Linear`` (or ``Linear4bit``, ``Linear8bitLt``, ``Conv3d``): the base layer plus two thin ones.

    ``result + lora_B(lora_A(dropout(x))) * scaling``; the adapters may be wider than the model's type, then x is cast.
    It looks at the type of ``lora_A.weight``, which ZeRO-3 takes for a use of it by this module
    (``ZeROOrderedDict``).
    """

    def __init__(self, base: Module, in_features: int, out_features: int, settings: AdapterSettings) -> None:
        self.base_layer, self.dropout, self.is_fused = base, settings.dropout, settings.is_fused
        self.seen_dtype = settings.seen_dtype
        self.lora_A = Linear(in_features, settings.rank)
        self.lora_A.weight.reads_constants = self.weight.reads_constants
        self.lora_B = Linear(settings.rank, out_features)
        self.lora_A.copies_input = getattr(base, "copies_input", False)
        self.lora_B.copies_gradient = getattr(base, "copies_gradient", False)
        if settings.use_dora:
            self.lora_magnitude_vector = DoraLayer(base, self.weight, out_features)
        self._looked_at = UsedWeights({"weight": self.lora_A.weight}, is_container=True)

    @property
    def weight(self) -> Parameter:
        return self.base_layer.weight  # type: ignore[attr-defined]

    @property
    def bias(self) -> Parameter | None:
        """What a mixer reads that does not call the layer."""
        return self.base_layer.bias  # type: ignore[attr-defined]

    @property
    def fused_weight(self) -> ops.AdaptedWeight | None:
        """What an MLP of such layers takes of it where it runs as one operation."""
        return ops.AdaptedWeight(self.weight, self.lora_A.weight, self.lora_B.weight) if self.is_fused else None

    def __call__(self, x: Tensor) -> Tensor:
        tape = x.tape
        if not tape.fetches_weights:
            return self.forward(x)
        tape.modules.append(self._looked_at)
        tape.begin_call(self._looked_at)
        tape.enter_container(self._looked_at, has_input_grad=x.requires_grad)
        result = self.forward(x)
        tape.release(self._looked_at)
        tape.modules.pop()
        return result

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        if x.tape.switches_adapters_off:
            return result
        if self.is_fused:
            return ops.add_adapter(x, self.lora_A.weight, self.lora_B.weight, result)
        dtype = result.dtype
        is_packed = isinstance(self.base_layer, PackedLinear)
        if isinstance(self.base_layer, Linear4bit):
            result = ops.copy(result)  # "defensively clone"
        autocasts = x.tape.autocast is not None
        if not (is_packed and autocasts):
            x = ops.to(x, self._looked_at_dtype(x))
        if "lora_magnitude_vector" in self.modules_by_name:
            result = self._turned(x, result)
            return result if is_packed and autocasts else ops.to(result, dtype)
        if not is_packed:
            result = ops.add(result, self._update(x))
            return ops.to(result, dtype)
        update = self._update(x) if autocasts else ops.to(self._update(x), dtype)
        return ops.add(result, update)

    def _looked_at_dtype(self, x: Tensor) -> DType:
        """Element type of ``lora_A.weight`` before ``lora_A`` runs."""
        if self.seen_dtype is not None and x.tape.sees_shards(self):
            return self.seen_dtype
        return self.lora_A.weight.dtype

    def _update(self, x: Tensor) -> Tensor:
        noted = x.tape.noting_adapter
        if self.seen_dtype is None:
            return ops.scale(self.lora_B(noted(self.lora_A(ops.dropout(x, self.dropout)), self)))
        dtype = self.lora_A.weight.dtype  # to which FSDP2 (``cast_forward_inputs``) or autocast casts what comes
        return ops.scale(self.lora_B(noted(self.lora_A(ops.to(ops.dropout(x, self.dropout), dtype)), self)))

    def _turned(self, x: Tensor, result: Tensor) -> Tensor:
        """``DoraLinearVariant.forward``: where x is dropped out, the base layer's result is made of that again."""
        drops = self.dropout > 0 and x.tape.is_in_training_mode
        factors = (self.lora_A, self.lora_B)
        if not drops:
            return ops.add(result, self.lora_magnitude_vector(x, result, factors))
        x = ops.dropout(x, self.dropout)  # which has a name until the sum is there
        return ops.add(result, self.lora_magnitude_vector(x, None, factors))


class LoraEmbedding(Module):
    """``peft.tuners.lora.Embedding``: a second, thin lookup and a product."""

    def __init__(self, base: Embedding, rank: int) -> None:
        num_embeddings, width = base.weight.shape
        self.base_layer = base
        self.lora_embedding_A = Parameter(num_embeddings, rank)
        self.lora_embedding_B = Parameter(width, rank)

    @property
    def weight(self) -> Parameter:
        return self.base_layer.weight

    def forward(self, ids: Tensor) -> Tensor:
        result = self.base_layer(ids)
        if ids.tape.switches_adapters_off:
            return result
        update = ops.linear(ops.embedding(ids, self.lora_embedding_A), self.lora_embedding_B)
        return ops.to(ops.add(result, ops.scale(update)), result.dtype)


class TrainedCopy(Module):
    """``peft.utils.ModulesToSaveWrapper``: a trainable copy is used, the frozen original stays."""

    def __init__(self, original: Module, copy: Module) -> None:
        self.original_module = original
        self.modules_to_save = copy

    @property
    def weight(self) -> Parameter:
        return self.modules_to_save.weight  # type: ignore[attr-defined]

    @property
    def bias(self) -> Parameter | None:
        return getattr(self.modules_to_save, "bias", None)

    def forward(self, x: Tensor) -> Tensor:
        return self.original_module(x) if x.tape.switches_adapters_off else self.modules_to_save(x)


def add_lora(
    model: Model,
    settings: AdapterSettings,
    *,
    targets: str,
    exclude: str | None = None,
    closed: Collection[Part] = (),
) -> None:
    """Wrap the targeted layers outside ``closed`` parts in adapters, as ``peft.get_peft_model`` does.

    Names match by suffix over the whole model, or by a regular expression; ``exclude`` leaves some of them out.
    ``split_layers`` has to be done before where they tell equal layers apart.
    Raises InputError if a name matches nothing or no layer is left.
    """
    stacked = stacked_targets(targets)
    unwanted = None if exclude is None else target_names(exclude, EXCLUDE_OPTION)

    def is_open(name: str) -> bool:
        return model.part_of(name) not in closed and not (unwanted is not None and unwanted.match(name))

    wanted = _wanted_names(model, targets, is_open=is_open)
    suffixes, ranks = adapted_parameters(model.PARAMETER_TARGETS, wanted and wanted.suffixes, settings.rank)
    if wanted is not None and suffixes is not None:
        wanted = wanted.with_suffixes(suffixes)
    places = places_of(model)
    if wanted is None and model.PARAMETER_TARGETS:
        wanted = _names_of_linears(places, model)
    _check_stacked(stacked, ranks, places)
    ranks |= dict.fromkeys(stacked, settings.rank)
    if ranks:
        _check_parameters(ranks, settings)
    _check_names(places, wanted, unwanted)
    open_places = [place for place in places if is_open(place.name)]
    targeted = [place for place in open_places if _is_target(place, wanted, model)]
    num_parameters = wrap_parameters(open_places, ranks)
    for place in targeted:
        place.parent.replace(place.child_name, _adapted(place, settings))
    if not targeted and not num_parameters:
        raise InputError(
            f"--lora-targets {targets}: no layer is left to adapt outside the parts that are frozen or trained in full"
        )
    _check_closed([place for place in places if place not in open_places], ranks, model)


def _wanted_names(model: Model, targets: str, *, is_open: Callable[[str], bool]) -> ModuleNames | None:
    """The layers that ``targets`` names; None for all Linears."""
    layers = layer_targets(targets)
    if not layers and stacked_targets(targets):
        return ModuleNames()
    wanted = target_names(layers, TARGETS_OPTION, attention=model.attention_linears)
    if wanted is None or not wanted.is_regex:
        return wanted
    _check_weightless(model, wanted, is_open)
    return last_parts(model, wanted, is_open=is_open) if model.PARAMETER_TARGETS else wanted


ADAPTS_LINEARS = "only linear and embedding layers take adapters"


def _check_weightless(model: Model, wanted: ModuleNames, is_open: Callable[[str], bool]) -> None:
    """Raise InputError where a regular expression means a module without weights too, on which peft fails."""
    for place in places_of(model):
        for name in weightless_names(place.child):
            full = f"{place.name}.{name}"
            if is_open(full) and wanted.match(full):
                raise InputError(f"--lora-targets {','.join(wanted.names)} means {full} too; {ADAPTS_LINEARS}")


def _is_target(place: Place, wanted: ModuleNames | None, model: Model) -> bool:
    """Whether a module gets an adapter. Raises InputError where a regular expression means one that takes none."""
    if wanted is None:
        return _is_linear(place, model)
    if not wanted.match(place.name):
        return False
    takes_one = isinstance(place.child, (*ADAPTABLE, PackedLinear))
    if wanted.is_whole and not takes_one:
        raise InputError(f"--lora-targets {','.join(wanted.names)} means {place.name} too; {ADAPTS_LINEARS}")
    return takes_one


def _is_linear(place: Place, model: Model) -> bool:
    """Whether all Linears mean this module: every one but the output head."""
    return isinstance(place.child, Linear | PackedLinear) and place.child is not model.head


def _names_of_linears(places: Sequence[Place], model: Model) -> ModuleNames:
    """What peft makes of all Linears where names mean experts too: the last parts of their names, but for those that it
    takes for experts' (``_resolve_string_target_modules``). A convolution of such a name is adapted with them."""
    names = dict.fromkeys(place.child_name for place in places if _is_linear(place, model))
    return ModuleNames(suffixes=tuple(name for name in names if name not in model.PARAMETER_TARGETS))


def _check_names(places: Sequence[Place], wanted: ModuleNames | None, unwanted: ModuleNames | None) -> None:
    """Raise InputError for names that mean no module, or none that takes an adapter."""
    if unwanted is not None:
        unused = unwanted.names.difference(*(unwanted.match(place.name) for place in places))
        if unused:
            raise InputError(f"--lora-exclude {','.join(sorted(unused))}: no module of this model has such a name")
    if wanted is None:
        return
    absent = wanted.names.difference(*(wanted.match(place.name) for place in places))
    if absent:
        raise InputError(_absence(sorted(absent), places))
    fit = [place for place in places if isinstance(place.child, (*ADAPTABLE, PackedLinear))]
    unfit = wanted.names.difference(*(wanted.match(place.name) for place in fit))
    if unfit:
        raise InputError(f"--lora-targets {','.join(sorted(unfit))}: {ADAPTS_LINEARS}")


def _check_stacked(stacked: Sequence[str], ranks: Collection[str], places: Sequence[Place]) -> None:
    """Raises InputError for a name of stacked experts that no module has, or that something else adapts already."""
    holders = [(place.name, place.child) for place in places if isinstance(place.child, AdaptableModule)]
    stacks = ((full, name, one) for full, child in holders for name, one in child.parameters_by_name.items())
    known = [f"{full}.{name}" for full, name, one in stacks if len(one.shape) == STACK_DIMENSIONS]
    short = dict.fromkeys(".".join(name.split(".")[-2:]) for name in known)
    for name in stacked:
        if not any(f".{one}".endswith(f".{name}") for one in known):
            there = [one for one in short if is_stacked(one)]
            hint = f"there are {', '.join(there)}" if there else "this model has no stacked experts"
            raise InputError(f"--lora-targets {name}: no stack of experts has such a name; {hint}")
        if any(name.endswith(f".{other}") for other in ranks):
            raise InputError(f"--lora-targets {name}: another target adapts it already; leave it out")


def _check_parameters(ranks: Collection[str], settings: AdapterSettings) -> None:
    """Raise InputError for what peft's ``ParamWrapper`` does not do: ``pissa_init`` and ``olora_init`` read
    ``get_base_layer().weight``, which a module of stacked experts has not."""
    said = {"--lora-dropout": f"is {settings.dropout}" if settings.dropout else ""}
    said["--use-dora"] = "is set" if settings.use_dora else ""
    for option, value in said.items():
        if value:
            raise InputError(
                f"{option} {value}, but peft adapts the parameters {', '.join(ranks)} of this model whole, which it "
                f"does without that alone; leave it off, or give other --lora-targets"
            )
    whole = [name for name in ranks if name.rpartition(".")[2] != "weight"]
    if settings.changes_base and whole:
        raise InputError(
            f"--lora-init olora and pissa take adapters out of the weight of a layer, but peft adapts the parameters "
            f"{', '.join(whole)} of this model whole, which are not such a weight; give --lora-init default, or other "
            f"--lora-targets"
        )


def _check_closed(closed: Sequence[Place], ranks: Collection[str], model: Model) -> None:
    """Raise InputError where peft adapts what is frozen or left out: it asks no pattern about parameters
    (``_inject_parameters`` in ``tuners/tuners_utils.py``)."""
    for place in closed:
        if not isinstance(place.child, AdaptableModule):
            continue
        full = [f"{place.name}.{name}" for name in place.child.parameters_by_name]
        if any(name.endswith(f".{suffix}") for name in full for suffix in ranks):
            names = ", ".join(dict.fromkeys([*model.PARAMETER_TARGETS, *filter(is_stacked, ranks)]))
            raise InputError(
                f"peft would adapt {place.name} too, which is frozen or left out: it takes parameters wherever they "
                f"are; give --lora-targets with none of {names}"
            )


def _absence(absent: Sequence[str], places: Sequence[Place]) -> str:
    """What to say of names that no layer has: the nearest that there are, or all."""
    known = [place.name.rpartition(".")[2] for place in places if isinstance(place.child, (*ADAPTABLE, PackedLinear))]
    names = list(dict.fromkeys([*(name for name in known if not name.isdigit()), "all-linear", "attention"]))
    near = list(dict.fromkeys(match for name in absent for match in nearest(name, names)))
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"
    return f"--lora-targets {','.join(absent)}: no layer of this model has such a name; {hint}"


def _adapted(place: Place, settings: AdapterSettings) -> Module:
    base = place.child
    if isinstance(base, Embedding | PatchEmbedding):
        if settings.use_dora:
            raise InputError(
                f"--lora-targets means {place.name}, which is no linear layer: --use-dora is planned for those alone"
            )
        if isinstance(base, Embedding):
            return LoraEmbedding(base, settings.rank)
        return Lora(base, base.weight.numel // base.weight.shape[0], base.weight.shape[0], settings)
    assert isinstance(base, Linear | PackedLinear)
    sides = base.in_features, base.out_features
    return Lora(base, *sides, settings.of_linear(*sides))


def quantize(model: Model, pack: Callable[[Linear], PackedLinear], *, skipped: Collection[Part] = ()) -> None:
    """Pack every Linear but the output head and those in ``skipped`` parts, 1-D convolutions too, as ``load_in_4bit``
    and ``load_in_8bit`` do."""
    for place in places_of(model):
        if not isinstance(place.child, Linear) or isinstance(place.child, DerivedLinear):
            continue
        if place.child is not model.head and model.part_of(place.name) not in skipped:
            place.parent.replace(place.child_name, pack(place.child))


__all__ = ["AdapterSettings", "Conv1D", "Linear4bit", "Lora", "add_lora", "quantize"]
