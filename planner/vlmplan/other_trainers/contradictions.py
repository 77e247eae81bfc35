"""Where a trainer's configuration and its DeepSpeed file say different things, with which the Trainer does not start
(``trainer_config_finalize`` of transformers 5.23, ``integrations/deepspeed.py``)."""

from collections.abc import Collection
from typing import Final

from vlmplan.deepspeed_config import DsConfig
from vlmplan.errors import InputError
from vlmplan.other_trainers.axolotl.keys import RENAMED
from vlmplan.other_trainers.record import TrainerConfig

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
