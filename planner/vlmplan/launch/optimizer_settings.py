"""What a ds_config.json says of the optimizer, beside what the trainer will run: the trainer builds its own."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vlmplan.errors import InputError
from vlmplan.json_reader import shown
from vlmplan.training import ADAM_BETAS, ADAM_EPSILON, TrainerOptions, flag

if TYPE_CHECKING:
    from vlmplan.deepspeed_config import DsConfig


def refuse_other_settings(config: "DsConfig", trainer: TrainerOptions) -> None:
    """Raise InputError where the file's optimizer would train with other numbers than this run.

    transformers refuses the same ("Please correct the following DeepSpeed config values that mismatch", 5.23); "auto"
    takes the options'.
    """
    params: Mapping[str, Any] = config.optimizer_params
    problems: list[str] = []
    for key, name in (("lr", "learning_rate"), ("weight_decay", "weight_decay")):
        said, taken = params.get(key), getattr(trainer, name)
        if said is not None and said != taken:
            instead = f"{flag(name)} is {shown(taken)}" if taken is not None else f"{flag(name)} is not given"
            problems.append(f"optimizer.params.{key} is {shown(said)}, but {instead}: add {flag(name)} {shown(said)}")
    fixed = {"betas": list(ADAM_BETAS), "eps": ADAM_EPSILON}
    for key, taken in fixed.items():
        if key in params and params[key] != taken:
            problems.append(f"optimizer.params.{key} is {shown(params[key])}, but the trainer's is {shown(taken)}")
    if problems:
        raise InputError(f"{config.source}: {'; '.join(problems)}")
