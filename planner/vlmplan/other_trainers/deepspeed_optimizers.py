"""The optimizer that DeepSpeed makes of its file's ``optimizer`` in other trainers' runs."""

from vlmplan.deepspeed_config import DsConfig
from vlmplan.errors import InputError
from vlmplan.other_trainers.record import Value
from vlmplan.recipe.choices import OptimizerKind


def deepspeed_optimizer(ds_config: DsConfig) -> dict[str, Value]:
    """The options of a DeepSpeed file's optimizer, which goes before ``optim`` (``deepspeed_optim_sched`` in
    transformers 5.23 ``integrations/deepspeed.py``). Raises InputError for one that is not planned.

    Of ``AdamW`` and ``Adam`` it is DeepSpeed's ``FusedAdam``, with ``torch_adam`` torch's AdamW as torch chooses by
    itself: foreach (``get_optimizer_configuration`` in deepspeed 0.19.8 ``runtime/engine.py``).
    """
    if ds_config.optimizer is None:
        return {}
    if ds_config.optimizer is OptimizerKind.SGD and not ds_config.optimizer_params.get("momentum"):
        raise InputError(
            f"{ds_config.source}: optimizer.type is SGD without optimizer.params.momentum, which has no state: not "
            f"planned; a momentum of 0.9 is"
        )
    options: dict[str, Value] = {
        "optimizer": ds_config.optimizer.value,
        "fuses_optimizer": not ds_config.has_torch_adam,
    }
    is_own = ds_config.optimizer is OptimizerKind.ADAMW and not ds_config.has_torch_adam
    return {**options, "deepspeed_adam": True} if is_own else options
