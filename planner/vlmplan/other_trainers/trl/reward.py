"""TRL's reward models: ``RewardConfig``, ``ModelConfig`` and ``ScriptArguments`` of TRL 1.16.0, as YAML for
``trl reward --config`` or as options of ``trl/scripts/reward.py``."""

from collections.abc import Mapping
from typing import Any, Final

from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.meaning import Surroundings
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.trl.dpo import dropout_options, of_written_answers
from vlmplan.other_trainers.trl.sft import method_of
from vlmplan.recipe.choices import ALL_LINEAR, LossKind, Method
from vlmplan.recipe.task_choices import TaskKind
from vlmplan.workload import ModelFiles

OWN_KEY: Final = "center_rewards_coefficient"
"""Of ``RewardConfig`` alone; a number of the loss, which is made of two numbers for each pair."""
TASK_TYPE, SEQ_CLS = "lora_task_type", "SEQ_CLS"
SCORE: Final = "score"


def is_reward(values: Mapping[str, Any]) -> bool:
    """Whether keys of TRL are those of ``trl reward`` rather than of ``trl sft``."""
    return OWN_KEY in values or values.get(TASK_TYPE) == SEQ_CLS


def read_trl_reward(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``trl reward`` makes of these keys. Raises InputError with everything that is wrong."""
    return of_written_answers(settings, model, around, reward_options(settings))


def reward_options(settings: Settings) -> dict[str, Value]:
    """What the keys of ``RewardConfig`` mean, and of adapters beside a head that scores."""
    own: dict[str, Value] = {"task": TaskKind.REWARD.value, "loss": LossKind.BRADLEY_TERRY.value}
    settings.only("use_liger_kernel", f"Liger's kernels in a model that scores: {NOT_PLANNED}")
    own |= dropout_options(settings, is_usual=True)
    if method_of(settings) is not Method.FULL:
        _take_head(settings)
    settings.ignore((OWN_KEY, "disable_dropout"))
    return own


def _take_head(settings: Settings) -> None:
    """Adapters leave the head as it was drawn at random, unless peft is told to train it: by the task, or by its name
    (``PeftModelForSequenceClassification`` in peft 0.21 ``peft_model.py``). By its name alone it is a target of all
    Linears, too."""
    is_of_task = settings.text(TASK_TYPE, "CAUSAL_LM") == SEQ_CLS
    copies = settings.names("lora_modules_to_save")
    if copies == [SCORE]:
        settings.ignore(("lora_modules_to_save",))
        settings.make("lora_modules_to_save", None)
    if is_of_task or (copies == [SCORE] and settings.names("lora_target_modules") != [ALL_LINEAR]):
        return
    found = settings.text(TASK_TYPE, "CAUSAL_LM")
    settings.refuse_whole(
        f"{TASK_TYPE} {found} leaves the head that scores as it is drawn at random; {TASK_TYPE}: {SEQ_CLS} is needed"
    )
