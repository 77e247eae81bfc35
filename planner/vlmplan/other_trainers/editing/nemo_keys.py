"""Which keys of a recipe of NeMo AutoModel change for another setup: batch, checkpoints, offload, attention and the
adapters' size."""

from collections.abc import Mapping
from typing import Any, Final

from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict
from vlmplan.other_trainers.hugging_face import ATTENTION
from vlmplan.other_trainers.nemo_automodel.keys import NEMO_AUTOMODEL
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload
from vlmplan.workload import Workload

DECIDED: Final = (
    *("micro_batch", "grad_accum", "lora_rank", "lora_alpha", "attention", "activation_checkpointing"),
    *("vision_activation_checkpointing", "offload_params", "offload_optimizer", "sync_each_batch"),
)
"""Fields of a recipe that its keys decide one by one."""
OFFLOADS: Final = {"_target_": "torch.distributed.fsdp.CPUOffloadPolicy"}


def nemo_changes(
    values: Mapping[str, Any], before: tuple[Recipe, Workload], after: tuple[Recipe, Workload], num_gpus: int
) -> JsonDict:
    """The keys with other values, section by section, None for one that goes. Raises InputError for what no key
    says."""
    (one, samples), (other, others) = before, after
    decided = {name: getattr(other, name) for name in DECIDED}
    is_known = _is_whole(other) and other.attention in ATTENTION.values()
    if one.with_changes(**decided) != other or samples != others or not is_known:
        raise InputError(f"{NEMO_AUTOMODEL}'s recipes have no key for it")
    mine, its = _written(one, num_gpus), _written(other, num_gpus)
    found: JsonDict = {}
    for section, keys in its.items():
        own = {key: value for key, value in keys.items() if mine[section].get(key) != value}
        found |= {section: own} if own else {}
    return _by_names(values, found)


def _is_whole(recipe: Recipe) -> bool:
    """Whether weights and states are offloaded together, and to the host, as ``CPUOffloadPolicy`` has it."""
    return recipe.offload_params == recipe.offload_optimizer and recipe.offload_params is not Offload.NVME


def _written(recipe: Recipe, num_gpus: int) -> dict[str, JsonDict]:
    """The keys that say what can change."""
    names = {kind: name for name, kind in ATTENTION.items()}
    return {
        "step_scheduler": {
            "local_batch_size": recipe.micro_batch,
            "global_batch_size": recipe.samples_per_step(num_gpus),
        },
        "distributed": {
            "activation_checkpointing": recipe.activation_checkpointing,
            "offload_policy": OFFLOADS if recipe.offload_params is Offload.CPU else None,
            "defer_fsdp_grad_sync": not recipe.sync_each_batch,
        },
        "model": {"attn_implementation": names[recipe.attention]},
        **({"peft": {"dim": recipe.lora_rank, "alpha": recipe.lora_alpha}} if recipe.trains_adapters else {}),
    }


def _by_names(values: Mapping[str, Any], found: JsonDict) -> JsonDict:
    """The sections as far as the file has them under these names. Raises InputError for a key of no section."""
    for section, keys in found.items():
        if not isinstance(values.get(section), Mapping):
            raise InputError(f"{section}.{next(iter(keys))} would be new, and the file has no section {section}")
    return found
