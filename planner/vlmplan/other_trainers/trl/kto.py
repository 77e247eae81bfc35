"""TRL's training on answers that are marked as good or bad: ``KTOConfig``, ``ModelConfig`` and ``ScriptArguments`` of
TRL 1.16.0, as YAML for ``trl kto --config`` or as options of ``trl/scripts/kto.py``."""

from collections.abc import Mapping
from typing import Any, Final

from vlmplan.other_trainers.meaning import Surroundings
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.trl.dpo import OF_REFERENCE, SHARED_WITH_GRPO, of_written_answers, reference_options
from vlmplan.recipe.task_choices import KTO_LOSSES, KTOLoss, TaskKind
from vlmplan.workload import ModelFiles

WEIGHTS: Final = frozenset(("desirable_weight", "undesirable_weight"))
"""Of ``KTOConfig`` alone: numbers of the loss."""
LOSS, ORDER, SEQUENTIAL = "loss_type", "train_sampling_strategy", "sequential"


def is_kto(values: Mapping[str, Any]) -> bool:
    """Whether keys of TRL are those of ``trl kto``."""
    return not WEIGHTS.isdisjoint(values) or values.get(LOSS) in KTO_LOSSES.values()


def read_trl_kto(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``trl kto`` makes of these keys. Raises InputError with everything that is wrong."""
    return of_written_answers(settings, model, around, kto_options(settings))


def kto_options(settings: Settings) -> dict[str, Value]:
    """What the keys of ``KTOConfig`` mean that ``SFTConfig`` has not."""
    own: dict[str, Value] = {"task": TaskKind.KTO.value, **reference_options(settings)}
    names = {name: loss for loss, name in KTO_LOSSES.items()}
    found = settings.text(LOSS, KTO_LOSSES[KTOLoss.KTO])
    if found not in names:
        settings.refuse(LOSS, f"one of {', '.join(names)} is needed")
    loss = names.get(found, KTOLoss.KTO)
    own["kto_loss"] = loss.value
    order = settings.value(ORDER) if ORDER in settings else SEQUENTIAL
    if loss is KTOLoss.KTO and order != SEQUENTIAL:
        settings.refuse(ORDER, f"TRL takes {SEQUENTIAL} alone with {LOSS} {found}, whose batches keep their order")
    settings.ignore(WEIGHTS | OF_REFERENCE | {SHARED_WITH_GRPO})
    return own
