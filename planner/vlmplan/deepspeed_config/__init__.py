"""The ds_config.json of a recipe, and the recipe of a ds_config.json.

Every value is a number that the estimate used, never "auto". Checked against DeepSpeed 0.19.8:

- Under optimizer offload the trainer passes ``DeepSpeedCPUAdam`` itself (with ``fp32_optimizer_states=False`` for
  bf16-pure), so ``zero_force_ds_cpu_optimizer`` stays true: anything else on the host is a mistake
  (``engine.py``, ``_configure_optimizer``).
- ``zero_allow_untested_optimizer`` is true exactly for what is not in ``ZERO_SUPPORTED_OPTIMIZERS``
  (``zero/utils.py``): SGD, Adafactor and bitsandbytes.
- ``memory_efficient_linear`` replaces ``F.linear`` of the whole process (``zero/linear.py``). Without it autograd keeps
  a view of every weight of a layer that is not checkpointed, and with the view the whole gathered weight.
- ``bf16_master_weights_and_grads`` and ``bf16_optimizer_states`` belong in the ``bf16`` block, from stage 1 on
  (``config.py``, ``_do_error_check``).
"""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, cast

from vlmplan.deepspeed_config.auto import auto_text
from vlmplan.deepspeed_config.content import KEYS
from vlmplan.deepspeed_config.file import DEFAULT_STAGE, DsConfig, settings_from_ds_config
from vlmplan.deepspeed_config.keys import Effect, Key
from vlmplan.deepspeed_config.lookup import find_key
from vlmplan.deepspeed_config.mistakes import Mistakes
from vlmplan.errors import InputError
from vlmplan.recipe import Offload, OptimizerKind, Precision, Recipe, option_name

DEFAULT_GRADIENT_CLIPPING = 1.0
"""``GRADIENT_CLIPPING_DEFAULT`` of DeepSpeed 0.19.8; older releases did not clip."""
NVME_BUFFER_ELEMENTS = 100_000_000
"""``offload_param.buffer_size``: a buffer has to hold the largest shard of one weight
(``swap_tensor/partitioned_param_swapper.py``)."""
NVME_PARAM_BUFFERS, NVME_OPTIMIZER_BUFFERS = 5, 4
NVME_ELEMENTS_IN_CPU = 1_000_000_000
AIO = {
    "block_size": 1_048_576,
    "queue_depth": 8,
    "intra_op_parallelism": 1,
    "single_submit": False,
    "overlap_events": True,
}
"""DeepSpeed's defaults (``swap_tensor/constants.py``), written out."""

KEY_OF_FIELD = {
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer": "zero_optimization.offload_optimizer.device",
    "offload_params": "zero_optimization.offload_param.device",
    "hpz": "zero_optimization.zero_hpz_partition_size",
    "nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "precision": "the precision (bf16.enabled, fp16.enabled)",
    "gradient_clipping": "gradient_clipping",
    "optimizer": "optimizer.type",
    "micro_batch": "train_micro_batch_size_per_gpu",
    "grad_accum": "gradient_accumulation_steps",
}


def deepspeed_config(
    recipe: Recipe, *, num_gpus: int, base: DsConfig | None = None, largest_parameter: int = 0
) -> dict[str, Any] | None:
    """The ds_config of ``recipe`` on ``num_gpus`` GPUs; None for plain PyTorch.

    ``base`` is a file whose other keys are kept. ``largest_parameter`` is the number of elements of the largest weight,
    which buffers for NVMe have to hold. Raises InputError for offload to NVMe without a place for it.
    """
    if recipe.zero_stage is None:
        return None
    kept: Mapping[str, Any] = {} if base is None else base.content
    return _filled(_filled(_decided(recipe, num_gpus, kept), kept), _defaults(recipe, num_gpus, largest_parameter))


def _filled(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` with what only ``more`` says added, object by object."""
    result = dict(values)
    for key, value in more.items():
        mine = result.setdefault(key, value)
        if isinstance(mine, dict) and isinstance(value, dict):
            result[key] = _filled(cast(dict[str, Any], mine), cast(dict[str, Any], value))
    return result


def _decided(recipe: Recipe, num_gpus: int, base: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that the recipe decides."""
    is_pure = recipe.precision is Precision.BF16_PURE
    uses_bf16 = is_pure or recipe.precision is Precision.BF16
    bf16: dict[str, Any] = {"enabled": uses_bf16}
    if uses_bf16:
        bf16 |= {"bf16_master_weights_and_grads": is_pure, "bf16_optimizer_states": is_pure}
    zero: dict[str, Any] = {"stage": recipe.zero_stage}
    zero |= {field.name: getattr(recipe.zero, field.name) for field in fields(recipe.zero)}
    if recipe.hpz > 1 or "zero_hpz_partition_size" in base.get("zero_optimization", {}):
        zero["zero_hpz_partition_size"] = recipe.hpz
    devices = {"offload_optimizer": recipe.offload_optimizer, "offload_param": recipe.offload_params}
    for key, device in devices.items():
        if device is not Offload.NONE or key in base.get("zero_optimization", {}):
            zero[key] = {"device": device.value}
    return {
        "train_batch_size": recipe.micro_batch * recipe.grad_accum * num_gpus,
        "train_micro_batch_size_per_gpu": recipe.micro_batch,
        "gradient_accumulation_steps": recipe.grad_accum,
        "gradient_clipping": recipe.gradient_clipping,
        "bf16": bf16,
        "fp16": {"enabled": recipe.precision is Precision.FP16},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": recipe.optimizer is not OptimizerKind.ADAMW,
        "zero_force_ds_cpu_optimizer": True,
    }


def _defaults(recipe: Recipe, num_gpus: int, largest_parameter: int) -> dict[str, Any]:
    """The other keys, where no file says them."""
    zero: dict[str, Any] = {}
    if recipe.zero_stage == 3:
        zero = {"stage3_gather_16bit_weights_on_model_save": True}
    if recipe.offload_optimizer is not Offload.NONE:
        zero["offload_optimizer"] = {"pin_memory": True}
    if recipe.offload_params is not Offload.NONE:
        zero["offload_param"] = {"pin_memory": True}
    config: dict[str, Any] = {"zero_optimization": zero, "wall_clock_breakdown": False, "dump_state": False}
    if recipe.precision is Precision.FP16:
        config["fp16"] = {
            "loss_scale": 0,
            "initial_scale_power": 16,
            "loss_scale_window": 1000,
            "hysteresis": 2,
            "min_loss_scale": 1,
        }
    elif recipe.precision is not Precision.FP32:
        config["bf16"] = {"check_grad_overflow": True}
    if Offload.NVME in (recipe.offload_optimizer, recipe.offload_params):
        config["aio"] = dict(AIO)
        _add_nvme(zero, recipe, -(-largest_parameter // num_gpus))
    return config


def _add_nvme(zero: dict[str, Any], recipe: Recipe, largest_shard: int) -> None:
    if recipe.nvme_path is None:
        raise InputError("offload to nvme needs --nvme-path DIR, a folder on the NVMe drive of every node")
    if recipe.offload_optimizer is Offload.NVME:
        zero["offload_optimizer"] |= {"nvme_path": recipe.nvme_path, "buffer_count": NVME_OPTIMIZER_BUFFERS}
    if recipe.offload_params is Offload.NVME:
        zero["offload_param"] |= {
            "nvme_path": recipe.nvme_path,
            "buffer_count": NVME_PARAM_BUFFERS,
            "buffer_size": max(NVME_BUFFER_ELEMENTS, largest_shard),
            "max_in_cpu": NVME_ELEMENTS_IN_CPU,
        }


def merged_recipe(
    config: DsConfig,
    recipe: Recipe,
    *,
    num_gpus: int,
    given: Collection[str] = (),
    global_batch: int | None = None,
    hidden_size: int | None = None,
) -> Recipe:
    """``recipe`` with everything that the file says, and DeepSpeed's own defaults for what neither says.

    ``given`` are the fields of the recipe that the user set on the command line, ``global_batch`` the samples per
    optimizer step if given there, ``hidden_size`` what sizes that are "auto" are made of. What is "auto" otherwise is
    as in ``recipe``. Raises InputError with every contradiction between the two.
    """
    mistakes = Mistakes(config.source)
    changes: dict[str, Any] = {}
    for name in ("zero_stage", "offload_optimizer", "offload_params", "hpz", "nvme_path", "optimizer"):
        said, current = getattr(config, name), getattr(recipe, name)
        if said is None:
            continue
        if name in given and said != current and not (name == "zero_stage" and current is None):
            mistakes.add(_conflict(name, said, current))
        changes[name] = said
    stage = _stage(config, recipe, given, mistakes)
    changes["precision"] = _precision(config, recipe, given, mistakes)
    changes["gradient_clipping"] = _gradient_clipping(config, recipe, given, mistakes)
    with mistakes.kept():
        micro_batch, grad_accum = batch_sizes(config, recipe, num_gpus=num_gpus, given=given, global_batch=global_batch)
        changes |= {"micro_batch": micro_batch, "grad_accum": grad_accum}
    with mistakes.kept():
        changes |= {"zero_stage": stage, "zero": config.zero_settings(stage, hidden_size=hidden_size)}
    mistakes.report()
    return recipe.with_changes(**changes)


def _precision(config: DsConfig, recipe: Recipe, given: Collection[str], mistakes: Mistakes) -> Precision:
    """The recipe's where the file leaves it open, else the first that it leaves open."""
    if config.precisions is None:
        return recipe.precision if "precision" in given else Precision.FP32
    if recipe.precision in config.precisions:
        return recipe.precision
    if "precision" in given:
        mistakes.add(_conflict("precision", config.precisions[0], recipe.precision))
    return config.precisions[0]


def fixed_by_file(config: DsConfig, *, hidden_size: int | None, stage: int | None = None) -> dict[str, Any]:
    """The fields of a recipe that the file decides for every setup of a search, which chooses the others.

    ``hidden_size`` is what sizes that are "auto" are made of, ``stage`` the one of the command line, for a file that
    has none. Where both 16-bit precisions are open, none is decided.
    """
    names = ("offload_optimizer", "offload_params", "hpz", "nvme_path", "optimizer")
    names += ("micro_batch", "grad_accum", "gradient_clipping")
    if config.zero_stage is not None or stage is None:
        stage = config.zero_stage or DEFAULT_STAGE
    said: dict[str, Any] = {"zero_stage": stage}
    said |= {name: value for name in names if (value := getattr(config, name)) is not None}
    if config.precisions is None:
        said["precision"] = Precision.FP32
    elif not {Precision.BF16, Precision.FP16} <= set(config.precisions):
        said["precision"] = config.precisions[0]
    return said | {"zero": config.zero_settings(stage, hidden_size=hidden_size)}


def _stage(config: DsConfig, recipe: Recipe, given: Collection[str], mistakes: Mistakes) -> int:
    if "zero_stage" in given and recipe.zero_stage is None:
        mistakes.add("the file is for DeepSpeed, but --zero-stage none (plain PyTorch) was given")
    if config.zero_stage is not None:
        return config.zero_stage
    return recipe.zero_stage if "zero_stage" in given and recipe.zero_stage is not None else DEFAULT_STAGE


def _gradient_clipping(config: DsConfig, recipe: Recipe, given: Collection[str], mistakes: Mistakes) -> float:
    is_given = "gradient_clipping" in given
    if config.gradient_clipping is None:
        return recipe.gradient_clipping if is_given else DEFAULT_GRADIENT_CLIPPING
    if is_given and config.gradient_clipping != recipe.gradient_clipping:
        mistakes.add(_conflict("gradient_clipping", config.gradient_clipping, recipe.gradient_clipping))
    return config.gradient_clipping


def _conflict(name: str, said: Any, current: Any) -> str:
    said_text, current_text = (str(getattr(value, "value", value)) for value in (said, current))
    current_text = "none" if current is None else current_text
    return (
        f"{KEY_OF_FIELD[name]} is {said_text}, but {option_name(name)} {current_text} was given; "
        f"one of the two has to change"
    )


def batch_sizes(
    config: DsConfig, recipe: Recipe, *, num_gpus: int, given: Collection[str] = (), global_batch: int | None = None
) -> tuple[int, int]:
    """(samples per GPU in a micro batch, micro batches per optimizer step) of file and command line together.

    What neither says follows from the samples per step, as DeepSpeed infers it (``_set_batch_related_parameters``); a
    micro batch that is "auto" is the recipe's, as transformers takes the trainer's, unless the others make it.
    """
    known: dict[str, int] = {}
    mistakes = Mistakes(config.source)
    for name in ("micro_batch", "grad_accum"):
        said, current = getattr(config, name), getattr(recipe, name)
        if said is not None and name in given and said != current:
            mistakes.add(_conflict(name, said, current))
        if said is not None or name in given:
            known[name] = current if said is None else said
    if "train_micro_batch_size_per_gpu" in config.autos and "grad_accum" not in known:
        known.setdefault("micro_batch", recipe.micro_batch)
    mistakes.report()
    total = config.train_batch_size
    if total is not None and global_batch is not None and total != global_batch:
        raise InputError(
            f"{config.source}: train_batch_size is {total}, but --global-batch {global_batch} was given; "
            f"one of the two has to change"
        )
    total_name = "train_batch_size"
    if total is None:
        known.setdefault("micro_batch", recipe.micro_batch)
        total, total_name = global_batch, "--global-batch"
    if total is None:
        return known["micro_batch"], known.get("grad_accum", 1)
    if "micro_batch" in known:
        micro_batch = known["micro_batch"]
        grad_accum = known.get("grad_accum", max(1, total // (micro_batch * num_gpus)))
    else:
        grad_accum = known.get("grad_accum", 1)
        micro_batch = max(1, total // (grad_accum * num_gpus))
    if micro_batch * grad_accum * num_gpus != total:
        raise InputError(
            f"{config.source}: {total} samples per step ({total_name}) are not {num_gpus} GPU(s) x "
            f"{micro_batch} (train_micro_batch_size_per_gpu) x {grad_accum} (gradient_accumulation_steps) = "
            f"{num_gpus * micro_batch * grad_accum}"
        )
    return micro_batch, grad_accum


__all__ = [
    "KEYS",
    "DsConfig",
    "Effect",
    "Key",
    "auto_text",
    "batch_sizes",
    "deepspeed_config",
    "find_key",
    "fixed_by_file",
    "merged_recipe",
    "settings_from_ds_config",
]
