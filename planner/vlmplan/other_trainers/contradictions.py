"""Where a trainer's configuration and its DeepSpeed file say different things, with which the Trainer does not start
(``trainer_config_finalize`` of transformers 5.23, ``integrations/deepspeed.py``), or mean what is not planned."""

from collections.abc import Collection
from typing import Final

from vlmplan.deepspeed_config import DsConfig
from vlmplan.errors import InputError
from vlmplan.other_trainers.axolotl.keys import RENAMED
from vlmplan.other_trainers.record import TrainerConfig
from vlmplan.recipe.choices import OptimizerKind, Precision

KEYS: Final = (
    ("micro_batch", "per_device_train_batch_size", "train_micro_batch_size_per_gpu"),
    ("grad_accum", "gradient_accumulation_steps", "gradient_accumulation_steps"),
    ("gradient_clipping", "max_grad_norm", "gradient_clipping"),
)
"""Fields of a recipe, by the keys of ``TrainingArguments`` and of DeepSpeed."""


def refuse_contradictions(config: TrainerConfig, ds_config: DsConfig, given: Collection[str]) -> None:
    """Raise InputError naming every key of ``config`` that says something else than ``ds_config``, but for the fields
    that are ``given`` in its place."""
    meant = {**config.options, "gradient_clipping": config.gradient_clipping}
    defaults, said_keys = ({setting.key for setting in group} for group in (config.defaults, config.said))
    own = {key: name for key, name in RENAMED.items() if name in defaults | said_keys}
    clashes = [
        f"{own.get(key, key)} is {meant[name]:g}{' by default' * (own.get(key, key) in defaults)}, but {in_deepspeed} "
        f"of {ds_config.source} is {said:g}"
        for name, key, in_deepspeed in KEYS
        if name not in given and (said := getattr(ds_config, name)) is not None and meant.get(name) not in (None, said)
    ]
    precision = meant.get("precision")
    allowed = None if ds_config.precisions is None else [kind.value for kind in ds_config.precisions]
    if "precision" not in given and allowed and precision not in (None, *allowed):
        clashes.append(f"it trains in {precision}, but {ds_config.source} in {' or '.join(allowed)}")
    if clashes:
        raise InputError(f"{config.source}: {'; '.join(clashes)}; one of the two has to change")
    _refuse_flat_gradients(config, ds_config, given)


def _refuse_flat_gradients(config: TrainerConfig, ds_config: DsConfig, given: Collection[str]) -> None:
    """Raise InputError where DeepSpeed makes its own FusedAdam at stage 0.

    ``_configure_fp16_optimizer`` (deepspeed 0.19.8 ``runtime/engine.py``) puts ``FP16_Optimizer`` around it, whose step
    has float32 copies of all gradients of a parameter group beside the flat one that is made of them
    (``runtime/fp16/fused_optimizer.py``); around torch's, and what is planned, it is ``FP16_UnfusedOptimizer``, which
    has no flat copy. In float32 neither is there.
    """
    is_own = ds_config.optimizer is OptimizerKind.ADAMW and not ds_config.has_torch_adam
    is_first = not ds_config.zero_stage and "zero_stage" not in given
    is_wide = ds_config.precisions is None or config.options.get("precision") == Precision.FP32.value
    if is_own and is_first and not is_wide:
        raise InputError(
            f"{config.source}: {ds_config.source} has optimizer.type AdamW at ZeRO stage 0, where DeepSpeed's "
            f"FusedAdam takes two float32 copies of the gradients: not planned; leave optimizer out, set "
            f"optimizer.params.torch_adam to true, or zero_optimization.stage to 1"
        )
