"""Which keys of accelerate's file change for another engine: it decides nothing else of a run but the precision."""

from collections.abc import Mapping
from typing import Any, cast

from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict
from vlmplan.other_trainers.accelerate import ACCELERATE, SECTION
from vlmplan.other_trainers.editing.engine import ENGINE_FIELDS, same_engine
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload

OF_ENGINES = (
    *(*ENGINE_FIELDS, "zero", "nvme_path", "fuses_optimizer", "deepspeed_adam"),
    *("caches_casts", "uses_autocast", "upcasts_frozen"),
)
OF_TYPES = ("weight_dtype", "adapter_dtype", "expandable_segments")
"""Fields of a recipe that an engine brings with it."""


def accelerate_changes(values: Mapping[str, Any], before: Recipe, after: Recipe, num_gpus: int) -> JsonDict:
    """The keys of accelerate's file, object by object. Raises InputError for what they do not decide."""
    follows = {name: getattr(before, name) for name in (*OF_ENGINES, *OF_TYPES)}
    if after.with_changes(**follows) != before or same_engine(before, after):
        raise InputError(f"{ACCELERATE}'s file has no key for it")
    if not after.uses_deepspeed:
        return {"distributed_type": "MULTI_GPU" if num_gpus > 1 else "NO"}
    section = values.get(SECTION)
    present = dict(cast(Mapping[str, Any], section)) if isinstance(section, Mapping) else JsonDict()
    if present.get("deepspeed_config_file"):
        raise InputError(f"{ACCELERATE}'s file names a DeepSpeed file, which decides the engine; change that one")
    wanted: JsonDict = {
        "zero_stage": after.zero_stage,
        "offload_optimizer_device": _device(after.offload_optimizer),
        "offload_param_device": _device(after.offload_params),
        **({"zero3_save_16bit_model": True} if after.zero_stage == 3 else {}),
    }
    changes = {key: value for key, value in wanted.items() if str(present.get(key)).casefold() != str(value).casefold()}
    engine = {} if before.uses_deepspeed else {"distributed_type": "DEEPSPEED"}
    return engine | {SECTION: changes}


def _device(place: Offload) -> str:
    if place is Offload.NVME:
        raise InputError("offload to NVMe needs a folder on every node, which only its owner knows")
    return place.value
