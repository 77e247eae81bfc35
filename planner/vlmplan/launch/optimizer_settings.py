"""What a ds_config.json says of the optimizer, beside what the trainer will run: the trainer builds its own."""

from collections.abc import Iterator, Mapping
from math import isclose
from typing import TYPE_CHECKING, Any

from vlmplan.errors import InputError
from vlmplan.files.json_reader import shown
from vlmplan.recipe.choices import OptimizerKind
from vlmplan.recipe.muon import LR_RATIO
from vlmplan.run.training import ADAM_BETAS, ADAM_EPSILON, TrainerOptions, flag

if TYPE_CHECKING:
    from vlmplan.deepspeed_config import DsConfig


def refuse_other_settings(config: "DsConfig", trainer: TrainerOptions) -> None:
    """Raise InputError where the file's optimizer would train with other numbers than this run.

    transformers refuses the same ("Please correct the following DeepSpeed config values that mismatch", 5.23); "auto"
    takes the options'.
    """
    params: Mapping[str, Any] = config.optimizer_params
    problems: list[str] = []
    for key, name in (("lr", "learning_rate"), ("adam_lr", "learning_rate"), ("weight_decay", "weight_decay")):
        said, taken = params.get(key), getattr(trainer, name)
        if key == "lr" and config.optimizer is OptimizerKind.MUON and {"adam_lr", "muon_lr"} <= set(params):
            continue  # of neither group
        if said is not None and said != taken:
            instead = f"{flag(name)} is {shown(taken)}" if taken is not None else f"{flag(name)} is not given"
            problems.append(f"optimizer.params.{key} is {shown(said)}, but {instead}: add {flag(name)} {shown(said)}")
    if config.optimizer is OptimizerKind.MUON:
        problems += _of_muon(params, trainer.learning_rate)
    fixed = {"betas": list(ADAM_BETAS), "eps": ADAM_EPSILON}
    for key, taken in fixed.items():
        if key in params and params[key] != taken:
            problems.append(f"optimizer.params.{key} is {shown(params[key])}, but the trainer's is {shown(taken)}")
    if problems:
        raise InputError(f"{config.source}: {'; '.join(problems)}")


def _of_muon(params: Mapping[str, Any], learning_rate: float | None) -> Iterator[str]:
    """Muon's learning rate is ``LR_RATIO`` times AdamW's, which the option says."""
    key = "muon_lr" if "muon_lr" in params else "lr"
    if learning_rate is not None and key in params and not isclose(params[key], LR_RATIO * learning_rate):
        yield (
            f"optimizer.params.{key} is {shown(params[key])} for Muon, but the trainer's is {LR_RATIO:g} times "
            f"{flag('learning_rate')}, {LR_RATIO * learning_rate:g}"
        )
