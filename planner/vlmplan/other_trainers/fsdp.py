"""FSDP as accelerate makes it of ``fsdp_config``: of its own file, of ``TrainingArguments``, and of ms-swift's file.

Sources: accelerate 1.15 ``utils/dataclasses.py`` (``FullyShardedDataParallelPlugin``) and ``utils/fsdp_utils.py``
(``fsdp2_prepare_model``), transformers 5.23 ``training_args.py`` (``_process_fsdp_args``). Weights are grouped as
``engines/layer_groups.py`` says; trained weights are sharded in float32 in mixed precision, and gathered and reduced in
that of the computation, without autocast (``_prepare_fsdp2`` does not call ``prepare_model``). Before the last micro
batch of a step nothing is reduced (``no_sync``).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import FlatParameters, LossKind, Method, Offload, Precision, ShardUnits

VERSION: Final = 2
VERSIONS: Final = ("1", str(VERSION))
TRANSFORMER_WRAP: Final = "TRANSFORMER_BASED_WRAP"
OTHER_POLICIES: Final = ("SIZE_BASED_WRAP", "NO_WRAP")
"""In whose place transformers sets peft's of adapters, which wraps layers (``update_fsdp_plugin_peft`` in
``distributed/fsdp.py``, 5.23)."""
LAYER_CLASSES: Final = "transformer_layer_cls_to_wrap"
PREFIX = "fsdp_"
NEWER_NAMES: Mapping[str, str] = {"offload_params": "cpu_offload", "transformer_cls_names_to_wrap": LAYER_CLASSES}
"""accelerate's names of what ``TrainingArguments`` call otherwise."""
STRATEGIES: Mapping[str, bool] = {"full_shard": True, "shard_grad_op": False}
"""Words of ``fsdp`` in its older form, and whether weights are sharded again after forward."""
SAID_BY_WORDS: Final = ("auto_wrap_policy", "cpu_offload")
"""Keys that transformers 5.6 does not read: words of ``fsdp`` say so there."""
WITHOUT_EFFECT = frozenset(
    "cpu_ram_efficient_loading state_dict_type sync_module_states limit_all_gathers min_num_params "
    "sharding_strategy xla_fsdp_settings".split()
)
"""How weights come to the ranks and how they are saved, and what only waits."""
SHARDING_STRATEGIES: Final = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""Of FSDP1, by names and, from 1 on, numbers (``FSDP_SHARDING_STRATEGY`` in accelerate's ``utils/constants.py``)."""
WITHIN_MACHINES: Mapping[str, str] = {"HYBRID_SHARD": "FULL_SHARD", "HYBRID_SHARD_ZERO2": "SHARD_GRAD_OP"}
"""Strategies that shard among the GPUs of a machine, which other machines have copies of, and which each is in a
machine (``_init_intra_and_inter_node_groups`` in torch's ``_init_utils.py``)."""
LAUNCHED_STRATEGY: Final = "FSDP_SHARDING_STRATEGY"
"""The variable by which accelerate's launcher says FSDP1's strategy. It goes before ``reshard_after_forward`` where it
is not set too, as it is FULL_SHARD then (``FullyShardedDataParallelPlugin.__post_init__``, and ``prepare_model`` in
``accelerator.py``; 1.11 to 1.15)."""
OF_FSDP1 = frozenset(("use_orig_params", "backward_prefetch", LAUNCHED_STRATEGY))
"""What FSDP2 does not ask for."""
PREFETCHES: Mapping[str, FlatParameters] = {
    "NO_PREFETCH": FlatParameters.ON_DEMAND,
    "BACKWARD_PRE": FlatParameters.BACKWARD_PRE,
    "1": FlatParameters.BACKWARD_PRE,
    "BACKWARD_POST": FlatParameters.BACKWARD_POST,
    "2": FlatParameters.BACKWARD_POST,
}


class Machines(NamedTuple):
    """``num_gpus`` of all ``num_nodes``; None: a search chooses."""

    num_gpus: int | None = None
    num_nodes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """What a trainer's own FSDP2 does otherwise than accelerate 1.15."""

    has_ends_apart: bool = True
    """The input embedding and the head are units too, and a loss that reads the head does not gather it; else they are
    in the root, which is gathered."""
    casts_trained: bool = True
    """Trained weights are sharded in float32 in mixed precision; else in the type that they are loaded in."""
    casts_frozen: bool = False
    """In mixed precision shards of frozen weights become float32 too."""
    has_adapters_apart: bool = False
    """Each matrix of an adapter is a unit."""
    has_older_arguments: bool = False
    """``TrainingArguments`` are those of transformers 5.6: FSDP1 where no version is said, and words of ``fsdp`` say
    whether layers are units and whether the host has weights."""

    def precision(self, said: Precision, method: Method) -> Precision:
        """What is computed, by what a trainer's keys say; peft makes adapters float32 itself."""
        leaves = method is Method.FULL and not self.casts_trained
        return Precision.BF16_PURE if said is Precision.BF16 and leaves else said


OF_ACCELERATE: Final = Sharding()


@cache
def _classes() -> Mapping[str, Mapping[str, Any]]:
    path = Path(__file__).parents[1] / "data" / "layer_classes.json"
    return json.loads(path.read_text(encoding="utf-8"))["models"]


def kind_of(config: Mapping[str, Any]) -> str:
    """What decides the classes of a model's layers: the model types of the whole and of its parts.

    >>> kind_of({"model_type": "llava", "text_config": {"model_type": "mistral"}})
    'llava mistral'
    """
    parts: list[Any] = [config, config.get("text_config"), config.get("vision_config")]
    types = [str(cast(Any, part).get("model_type", "")) for part in parts if isinstance(part, Mapping)]
    return " ".join(dict.fromkeys(filter(None, types)))


def layer_classes(config: Mapping[str, Any]) -> Sequence[str] | None:
    """Classes of the layers that are planned as units; None for a model that is not known so well."""
    known = _classes().get(kind_of(config))
    return None if known is None else known["layers"]


def unit_classes(config: Mapping[str, Any]) -> str | None:
    """Whether ``_no_split_modules`` of a model names the classes of its layers: ``same`` if it does; None for a model
    that is not known so well."""
    known = _classes().get(kind_of(config))
    return None if known is None else str(known["default"])


def unread_losses(*, sees: bool, trains_adapters: bool) -> tuple[LossKind, ...]:
    """Losses that do not call the head, where it is a unit of its own: with adapters, and in models that see."""
    if trains_adapters:
        return (LossKind.LIGER,)
    return (LossKind.LIGER, LossKind.TRL) if sees else ()


def packed_option(settings: Settings, storage: str | None, precision: Precision) -> dict[str, Value]:
    """Whether 4-bit weights that are kept as ``storage`` (``bnb_4bit_quant_storage``; None: the user's script says it)
    are sharded: bytes are left out (``incompatible_params4bit`` in ``fsdp2_prepare_model``), and a float type other
    than that of the computation is cast to it for a gather, which packed weights do not survive."""
    if storage is None:
        settings.note("4-bit weights are taken to be in bytes, whole on every GPU; --shard-packed says otherwise")
    if storage in (None, "uint8"):
        return {"shards_packed": False}
    if precision is Precision.BF16 and storage != precision.dtype.torch_name:
        settings.refuse_whole(
            f"4-bit weights are kept in {storage} and gathered in {precision.dtype.torch_name}, which changes them; "
            f"set bnb_4bit_quant_storage: {precision.dtype.torch_name}"
        )
    return {"shards_packed": True}


def flat_packed_option(settings: Settings, storage: str | None, precision: Precision) -> dict[str, Value]:
    """The same of FSDP1, which flattens floating-point weights of one type (``_validate_tensors_to_flatten``)."""
    name = precision.dtype.torch_name
    if storage is None:
        settings.note(f"4-bit weights are taken to be in {name}, as FSDP1 flattens no bytes")
    elif storage != name:
        what = "no bytes" if storage == "uint8" else "weights of one type"
        settings.refuse_whole(
            f"4-bit weights are kept in {storage} and the others in {name}, but FSDP1 flattens {what}; set "
            f"bnb_4bit_quant_storage: {name}"
        )
    return {"shards_packed": True}


def plain_keys(section: Mapping[str, Any]) -> dict[str, Any]:
    """``fsdp_config`` with the names of ``TrainingArguments``."""
    named = {key.removeprefix(PREFIX): value for key, value in section.items()}
    return {NEWER_NAMES.get(key, key): value for key, value in named.items() if not key.startswith("_")}


def of_accelerate(section: Mapping[str, Any]) -> dict[str, Any]:
    """accelerate's own section as ``fsdp_config``, with the defaults of its launcher (``commands/launch.py``), which
    are not all those of ``TrainingArguments``."""
    keys = plain_keys(section)
    strategy = keys.pop("sharding_strategy", SHARDING_STRATEGIES[0])
    return {
        "version": 1,
        "auto_wrap_policy": "NO_WRAP",
        LAUNCHED_STRATEGY: strategy,
        **keys,
    }


def read_fsdp(
    settings: Settings,
    words: Any,
    section: Mapping[str, Any],
    config: Mapping[str, Any] | None,
    sharding: Sharding = OF_ACCELERATE,
    *,
    trains_adapters: bool = False,
    machines: Machines,
) -> tuple[dict[str, Value], bool]:
    """(options of ``fsdp`` and ``fsdp_config``, whether activations are checkpointed).

    ``words``: the value of ``fsdp``, true or its older form. What vlmplan has no plan of is refused by its name.
    """
    keys = _keys(words, section, sharding)
    inner = Settings(
        _with_words(settings, words, keys),
        source=f"{settings.source}: fsdp_config",
        trainer=settings.trainer,
    )
    is_flat = _is_flat(inner)
    usual = ShardUnits.ENDS_TOO if sharding.has_ends_apart and not is_flat else ShardUnits.LAYERS
    units = _wrapped_units(inner, settings, config, usual, is_of_peft=is_flat and trains_adapters)
    flat = _flat_options(inner, settings, machines) if is_flat else {}
    reshards = flat.pop("reshard_after_forward") if is_flat else inner.flag("reshard_after_forward", True)
    offloads = inner.flag("cpu_offload", False)
    checkpoints = inner.flag("activation_checkpointing", False)
    _refuse_what_has_no_plan(inner, is_flat=is_flat)
    with settings.kept():
        inner.close()
    place = (Offload.CPU if offloads else Offload.NONE).value
    options: dict[str, Value] = {
        "fsdp": True,
        "reshard_after_forward": reshards,
        "sync_each_batch": False,
        "shard_units": units.value,
        "offload_optimizer": place,
        "offload_params": place,
        **flat,
    }
    if checkpoints and units is ShardUnits.LANGUAGE_LAYERS:
        options["vision_activation_checkpointing"] = False
    return options, checkpoints


def _is_flat(inner: Settings) -> bool:
    """Whether the section is FSDP1's. Refuses a version that is none."""
    version = inner.text("version", VERSIONS[-1])
    if version not in VERSIONS:
        inner.refuse("version", f"{' and '.join(VERSIONS)} are planned")
    return version == VERSIONS[0]


def _keys(words: Any, section: Mapping[str, Any], sharding: Sharding) -> dict[str, Any]:
    """``fsdp_config`` with the names of ``TrainingArguments``, older ones without what ``words`` alone can say."""
    keys = plain_keys(section)
    if not sharding.has_older_arguments or words is True:  # which is what accelerate's launcher says
        return keys
    kept = {key: value for key, value in keys.items() if key not in SAID_BY_WORDS}
    wraps = {} if "auto_wrap" in _words(words) else {"auto_wrap_policy": "NO_WRAP"}
    return {"version": 1, **kept, **wraps}


def is_first_version(words: Any, section: Mapping[str, Any], sharding: Sharding) -> bool:
    """Whether these keys mean FSDP1."""
    return str(_keys(words, section, sharding).get("version", VERSIONS[-1])) == VERSIONS[0]


def _strategy(said: str, inner: Settings, outer: Settings, machines: Machines) -> dict[str, Value]:
    """The options of what accelerate's launcher says: whether weights are sharded again, and copies of the model."""
    by_number = {str(number): name for number, name in enumerate(SHARDING_STRATEGIES, 1)}
    name = by_number.get(said, said)
    copies: dict[str, Value] = {}
    if name in WITHIN_MACHINES and machines.num_nodes == 1:
        outer.note(
            f"{LAUNCHED_STRATEGY} is {said}: on one machine planned as {WITHIN_MACHINES[name]}, which it is there but "
            f"for NCCL's further communicators"
        )
    elif name in WITHIN_MACHINES:
        copies = _copies(inner, machines)
    elif name not in SHARDING_STRATEGIES[:2]:
        planned = [*SHARDING_STRATEGIES[:2], *WITHIN_MACHINES]
        inner.refuse(LAUNCHED_STRATEGY, f"of FSDP1 {', '.join(planned[:-1])} and {planned[-1]} are planned")
    return {"reshard_after_forward": WITHIN_MACHINES.get(name, name) == SHARDING_STRATEGIES[0], **copies}


def _copies(inner: Settings, machines: Machines) -> dict[str, Value]:
    """The GPUs of a machine share one copy: torch counts those that a process sees."""
    per_node = None if machines.num_gpus is None else machines.num_gpus // machines.num_nodes
    if per_node is None:
        inner.refuse(LAUNCHED_STRATEGY, "how many GPUs share a copy is how many a machine has; say that with --gpu")
    elif per_node == 1:
        inner.refuse(LAUNCHED_STRATEGY, "machines of one GPU shard nothing so, which torch makes NO_SHARD of")
    return {} if per_node is None else {"dp_shard_size": per_node}


def _flat_options(inner: Settings, outer: Settings, machines: Machines) -> dict[str, Value]:
    """The options of FSDP1: its strategy, and what backward gathers ahead."""
    known = [*SHARDING_STRATEGIES, *map(str, range(1, len(SHARDING_STRATEGIES) + 1))]
    strategy: dict[str, Value] = {"reshard_after_forward": True}
    if LAUNCHED_STRATEGY in inner:
        said = inner.text(LAUNCHED_STRATEGY, SHARDING_STRATEGIES[0]).upper()
        strategy = _strategy(said, inner, outer, machines)
        inner.ignore(("reshard_after_forward",))
    else:
        said = inner.text("reshard_after_forward", SHARDING_STRATEGIES[0]).upper()
        if said not in known:
            inner.refuse("reshard_after_forward", f"FSDP1 has a strategy there: {', '.join(SHARDING_STRATEGIES)}")
        elif said not in (known[0], "1"):
            outer.note(
                f"reshard_after_forward is {said}, but with FSDP1 accelerate shards by {LAUNCHED_STRATEGY}, which is "
                f"FULL_SHARD where nothing sets it: planned as FULL_SHARD"
            )
    prefetch = inner.text("backward_prefetch", "NO_PREFETCH").upper()
    if prefetch not in PREFETCHES:
        inner.refuse("backward_prefetch", "NO_PREFETCH, BACKWARD_PRE and BACKWARD_POST are planned")
    return {
        **strategy,
        "flat_parameters": PREFETCHES.get(prefetch, FlatParameters.ON_DEMAND).value,
        "uses_orig_params": inner.flag("use_orig_params", True),
        "prefetches_forward": inner.flag("forward_prefetch", False),
    }


def _refuse_what_has_no_plan(inner: Settings, *, is_flat: bool) -> None:
    inner.only(
        "activation_checkpointing_offload activation_cpu_offload", "inputs of layers in host memory are not planned"
    )
    inner.only("ignored_modules", "weights that are left out of the shards are not planned")
    if not is_flat:
        inner.only("forward_prefetch", "accelerate has no forward prefetch with FSDP2, and refuses to start")
        inner.ignore(OF_FSDP1)
    inner.only("xla xla_fsdp_v2 xla_fsdp_grad_ckpt", "TPUs are not planned")
    inner.ignore(WITHOUT_EFFECT)


def _words(words: Any) -> list[str]:
    said = " ".join(map(str, cast(list[Any], words))) if isinstance(words, list) else str(words)
    return said.casefold().split()


def _with_words(settings: Settings, words: Any, section: dict[str, Any]) -> dict[str, Any]:
    """The older form of ``fsdp`` as keys of ``fsdp_config``, which go before it (``_apply_legacy_fsdp_to_config``)."""
    found: dict[str, Any] = {}
    is_flat = str(section.get("version")) == VERSIONS[0]
    for name in _words(words):
        if is_flat and name.upper() in SHARDING_STRATEGIES:
            found["reshard_after_forward"] = name
        elif name in STRATEGIES:
            found["reshard_after_forward"] = STRATEGIES[name]
        elif name == "offload":
            found["cpu_offload"] = True
        elif name not in ("true", "yes", "1", "on", "auto_wrap"):
            settings.refuse(
                "fsdp", f"{name} is not planned; true, full_shard, shard_grad_op, offload and auto_wrap are"
            )
    return found | section


def _wrapped_units(
    inner: Settings, outer: Settings, config: Mapping[str, Any] | None, usual: ShardUnits, *, is_of_peft: bool
) -> ShardUnits:
    """The units that ``auto_wrap_policy`` makes; where it ``is_of_peft``, peft's own stands in the place of others."""
    policy = inner.text("auto_wrap_policy", TRANSFORMER_WRAP).upper()
    if policy == TRANSFORMER_WRAP:
        return _units(inner, config, usual)
    if not is_of_peft or policy not in OTHER_POLICIES:
        inner.refuse("auto_wrap_policy", f"units of layers are planned, which is {TRANSFORMER_WRAP}")
        return usual
    units = _units(inner, config, usual)
    outer.note(f"auto_wrap_policy is {policy}, but adapters under FSDP1 are wrapped by peft's own: layers are units")
    return units


def _units(inner: Settings, config: Mapping[str, Any] | None, usual: ShardUnits) -> ShardUnits:
    """The units have to be the layers that are planned: all, or without units of the ends those of the language model
    alone."""
    named = inner.names(LAYER_CLASSES) if LAYER_CLASSES in inner else []
    known = None if config is None else _classes().get(kind_of(config))
    if config is None or known is None:
        if named:
            inner.note(f"{LAYER_CLASSES} is {', '.join(named)}: taken to be the layers that are planned as units")
        return usual
    layers, of_language = known["layers"], known.get("language", ())
    if set(named) == set(of_language) and named and usual is ShardUnits.LAYERS:
        return ShardUnits.LANGUAGE_LAYERS
    if named and set(named) != set(layers):
        allowed = f"{', '.join(layers)}, all layers of {config['model_type']},"
        if usual is ShardUnits.LAYERS and of_language:
            allowed += f" or {', '.join(of_language)}, those of its language model,"
        inner.refuse(LAYER_CLASSES, f"units of {allowed} are planned")
    elif not named and known["default"] != "same":
        why = "names a class that the model does not have" if known["default"] == "absent" else "makes others units too"
        inner.refuse_whole(
            f"{LAYER_CLASSES} is not said, and the default for {config['model_type']} (_no_split_modules) {why}; "
            f"write {LAYER_CLASSES}: [{', '.join(layers)}]"
        )
    return usual
