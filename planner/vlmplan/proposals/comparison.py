"""One setup beside others that differ in one choice: ZeRO stages, methods, precisions, optimizers, checkpointing."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from vlmplan.catalog import Catalog
from vlmplan.changes.kinds import (
    FSDP_OPTIONS,
    PLAIN_OPTIONS,
    Engine,
    engine_title,
    options_of_file,
    without_plain_options,
)
from vlmplan.changes.trials import Trials
from vlmplan.engines import STAGES
from vlmplan.errors import InputError
from vlmplan.estimation import Estimate
from vlmplan.recipe import PLAIN, Recipe
from vlmplan.recipe.choices import Method, Offload, OptimizerKind, Precision
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.recipe.settings import ADAPTER_FIELDS
from vlmplan.request import Options, OptionValue, Request
from vlmplan.requested import disk_notes
from vlmplan.workload import ModelFiles

OFFLOADS = ((2, Offload.CPU, Offload.NONE), (3, Offload.CPU, Offload.NONE), (3, Offload.CPU, Offload.CPU))
OF_OTHER_ENGINES = frozenset(
    {*PLAIN_OPTIONS, "weight_dtype", "zero_stage", "offload_optimizer", "offload_params", "hpz", "deepspeed_adam"}
)
"""What FSDP2 is not asked for in place of another engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """``options`` are those that differ; ``estimate`` is None where it cannot be trained, which ``reason`` says why.
    ``notes`` are those that ``vlmplan estimate`` has of the request beside those of the estimate."""

    name: str
    options: Options = field(hash=False)
    estimate: Estimate | None = None
    notes: tuple[str, ...] = ()
    reason: str | None = None
    is_present: bool = False
    """Whether it is the setup that was asked for."""


def comparison(name: str, request: Request, catalog: Catalog, model: ModelFiles) -> list[Variant]:
    """The variants by zero, method, precision, optimizer or checkpointing, each estimated as its options ask for.

    One that cannot be trained has the reason. Raises InputError where none can.
    """
    trials = Trials(catalog, model)
    num_gpus = trials.machine(request.hardware)[0].num_gpus
    found = _variants(name, num_gpus, request)
    if name == "zero" and request.ds_config is not None:
        found = _beside_a_file(request.recipe, trials.estimate(request).recipe, num_gpus)
    variants = [_variant(trials, request, title, options) for title, options in found]
    if all(variant.estimate is None for variant in variants):
        trials.estimate(request)  # says what is wrong with all of them, where that is what is asked for
        raise InputError(f"none of them can be trained; {variants[0].name}: {variants[0].reason}")
    return variants


def _variant(trials: Trials, request: Request, title: str, options: Options) -> Variant:
    asked = request.with_options(options)
    try:
        found = trials.estimate(asked)
    except InputError as error:
        return Variant(name=title, options=options, reason=str(error))
    notes = (*trials.known_setup(asked).notes, *disk_notes(asked, found))
    is_present = trials.are_same(asked, request)
    return Variant(name=title, options=options, estimate=found, notes=notes, is_present=is_present)


def _variants(name: str, num_gpus: int, request: Request) -> Iterator[tuple[str, Options]]:
    if name == "zero":
        yield from _engines(num_gpus, request.recipe, _asked_engine(request.recipe))
    elif name == "checkpointing":
        for title, language, vision in (("none", False, False), ("language", True, False), ("vision", False, True)):
            yield title, {"activation_checkpointing": language, "vision_activation_checkpointing": vision}
        yield "both", {"activation_checkpointing": True, "vision_activation_checkpointing": True}
    elif name == "method":
        for method in Method:
            yield method.value, {"method": method.value, **_of_other_methods(method, request.recipe)}
    else:
        kinds = {"precision": Precision, "optimizer": OptimizerKind}
        yield from ((kind.value, {name: kind.value}) for kind in kinds[name])


def _of_other_methods(method: Method, decided: DecidedRecipe) -> dict[str, OptionValue]:
    """What is said that means nothing with this method, left off."""
    others = {*(ADAPTER_FIELDS if method is Method.FULL else ())}
    others |= set() if method.packs_weights else {"upcasts_frozen"}
    return dict.fromkeys(sorted(others & decided.names))


def _beside_a_file(decided: DecidedRecipe, recipe: Recipe, num_gpus: int) -> Iterator[tuple[str, Options]]:
    """The engines, of which a DeepSpeed file decides that of ``recipe``: the others do without it."""
    asked = (recipe.zero_stage, recipe.offload_optimizer, recipe.offload_params)
    present = engine_title(asked, num_gpus)
    in_place_of_file = options_of_file(recipe) or {}
    for title, options in _engines(num_gpus, decided, asked):
        yield title, {} if title == present else {**options, **in_place_of_file}


def _asked_engine(decided: DecidedRecipe) -> Engine | None:
    if decided.zero_stage is None or decided.fsdp:
        return None
    stage = None if decided.zero_stage == PLAIN else decided.zero_stage
    return stage, decided.offload_optimizer or Offload.NONE, decided.offload_params or Offload.NONE


def _engines(num_gpus: int, decided: DecidedRecipe, asked: Engine | None) -> Iterator[tuple[str, Options]]:
    """Every engine without what belongs to another that is asked for: FSDP2, where several GPUs share the model, and
    hpZ. The one that is ``asked`` for is there too where it is none of the usual ones: the optimizer on the host under
    ZeRO-1."""
    usual: list[Engine] = [*((stage, Offload.NONE, Offload.NONE) for stage in STAGES), *OFFLOADS]
    for stage, optimizer, params in usual if asked in (None, *usual) else [*usual, asked]:
        options: dict[str, OptionValue] = {"zero_stage": PLAIN if stage is None else str(stage)}
        options |= {"offload_optimizer": optimizer.value, "offload_params": params.value}
        options |= {} if stage is None else without_plain_options(decided.weight_dtype)
        options |= dict.fromkeys(FSDP_OPTIONS) if decided.fsdp else {}
        has_copies = decided.hpz is not None and stage == 3 and params is Offload.NONE
        options |= {} if decided.hpz is None or has_copies else {"hpz": None}
        yield engine_title((stage, optimizer, params), num_gpus), options
    if decided.fsdp:
        yield "FSDP2", {}
    elif num_gpus > 1:
        yield "FSDP2", {"fsdp": True, **dict.fromkeys(sorted(OF_OTHER_ENGINES & decided.names))}
