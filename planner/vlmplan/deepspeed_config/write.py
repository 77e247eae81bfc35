"""The ds_config.json of a recipe.

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

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

from vlmplan.deepspeed_config.content import NEVER_PLANNED
from vlmplan.deepspeed_config.file import DsConfig
from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload, OptimizerKind, Precision
from vlmplan.recipe.muon import LR_RATIO as MUON_LR_RATIO
from vlmplan.recipe.muon import MOMENTUM as MUON_MOMENTUM
from vlmplan.run.training import ADAM_BETAS, ADAM_EPSILON, LEARNING_RATES

NVME_BUFFER_ELEMENTS = 100_000_000
"""``offload_param.buffer_size``: a buffer has to hold the largest shard of one weight
(``swap_tensor/partitioned_param_swapper.py``)."""
NVME_PARAM_BUFFERS, NVME_OPTIMIZER_BUFFERS = 5, 4
NVME_ELEMENTS_IN_CPU = 1_000_000_000
"""``buffer_count`` of both and ``max_in_cpu``: DeepSpeed's defaults (``zero/offload_config.py``), written out."""
AIO = {
    "block_size": 1_048_576,
    "queue_depth": 8,
    "intra_op_parallelism": 1,
    "single_submit": False,
    "overlap_events": True,
}
"""DeepSpeed's defaults (``swap_tensor/constants.py``), written out."""


def deepspeed_config(
    recipe: Recipe, *, num_gpus: int, base: DsConfig | None = None, largest_parameter: int = 0
) -> JsonDict | None:
    """The ds_config of ``recipe`` on ``num_gpus`` GPUs; None for plain PyTorch.

    ``base`` is a file whose other keys are kept, but for ``NEVER_PLANNED``. ``largest_parameter`` is the number of
    elements of the largest weight, which buffers for NVMe have to hold. Raises InputError for offload to NVMe without a
    place for it.
    """
    if recipe.zero_stage is None:
        return None
    said: Mapping[str, Any] = {} if base is None else base.content
    kept = {name: value for name, value in said.items() if name not in NEVER_PLANNED}
    return _filled(_filled(_decided(recipe, num_gpus, kept), kept), _defaults(recipe, num_gpus, largest_parameter))


def _filled(values: Mapping[str, Any], more: Mapping[str, Any]) -> JsonDict:
    """``values`` with what only ``more`` says added, object by object."""
    result = dict(values)
    for key, value in more.items():
        mine = result.setdefault(key, value)
        if isinstance(mine, dict) and isinstance(value, dict):
            result[key] = _filled(cast(JsonDict, mine), cast(JsonDict, value))
    return result


def _decided(recipe: Recipe, num_gpus: int, base: Mapping[str, Any]) -> JsonDict:
    """The keys that the recipe decides."""
    is_pure = recipe.precision is Precision.BF16_PURE
    uses_bf16 = is_pure or recipe.precision is Precision.BF16
    bf16: JsonDict = {"enabled": uses_bf16}
    if uses_bf16:
        bf16 |= {"bf16_master_weights_and_grads": is_pure, "bf16_optimizer_states": is_pure}
    zero: JsonDict = {"stage": recipe.zero_stage}
    zero |= {field.name: getattr(recipe.zero, field.name) for field in fields(recipe.zero)}
    zero["reduce_scatter"] = recipe.scatters_gradients
    if recipe.hpz > 1 or "zero_hpz_partition_size" in base.get("zero_optimization", {}):
        zero["zero_hpz_partition_size"] = recipe.hpz
    devices = {"offload_optimizer": recipe.offload_optimizer, "offload_param": recipe.offload_params}
    for key, device in devices.items():
        if device is not Offload.NONE or key in base.get("zero_optimization", {}):
            zero[key] = {"device": device.value}
    shares: JsonDict = {}
    if recipe.sequence_parallel > 1 or "sequence_parallel_size" in base:
        shares["sequence_parallel_size"] = recipe.sequence_parallel
    optimizer = {"optimizer": muon_section(recipe)} if recipe.optimizer is OptimizerKind.MUON else {}
    return {
        **shares,
        **optimizer,
        "train_batch_size": recipe.samples_per_step(num_gpus),
        "train_micro_batch_size_per_gpu": recipe.micro_batch,
        "gradient_accumulation_steps": recipe.grad_accum,
        "gradient_clipping": recipe.gradient_clipping,
        "bf16": bf16,
        "fp16": {"enabled": recipe.precision is Precision.FP16},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": recipe.optimizer not in (OptimizerKind.ADAMW, OptimizerKind.MUON),
        "zero_force_ds_cpu_optimizer": True,
    }


def muon_section(recipe: Recipe) -> JsonDict:
    """What tells DeepSpeed which weights are Muon's, with the settings that the trainer builds it with. AdamW's
    learning rate is the trainer's own default, which ``launch --learning-rate`` changes."""
    rate = LEARNING_RATES[recipe.method.value]
    params = {"muon_lr": MUON_LR_RATIO * rate, "adam_lr": rate, "momentum": MUON_MOMENTUM, "ns_method": "gram"}
    return {"type": "Muon", "params": params | {"betas": list(ADAM_BETAS), "eps": ADAM_EPSILON, "weight_decay": 0.0}}


def _defaults(recipe: Recipe, num_gpus: int, largest_parameter: int) -> JsonDict:
    """The other keys, where no file says them."""
    zero: JsonDict = {}
    if recipe.zero_stage == 3:
        zero = {"stage3_gather_16bit_weights_on_model_save": True}
    if recipe.offload_optimizer is not Offload.NONE:
        zero["offload_optimizer"] = {"pin_memory": True}
    if recipe.offload_params is not Offload.NONE:
        zero["offload_param"] = {"pin_memory": True}
    config: JsonDict = {"zero_optimization": zero, "wall_clock_breakdown": False, "dump_state": False}
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


def _add_nvme(zero: JsonDict, recipe: Recipe, largest_shard: int) -> None:
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
