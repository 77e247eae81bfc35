"""The options of ``openrlhf.cli.train_dpo`` (OpenRLHF@3c3be623).

Sources there: ``openrlhf/cli/train_dpo.py``, which makes the reference a second model whether or not there are
adapters; ``DPOTrainer`` in ``trainer/dpo_trainer.py``; ``RewardDataset`` in ``datasets/reward_dataset.py``;
``get_eval_ds_config`` in ``utils/deepspeed/deepspeed_utils.py`` for the reference's engine.
"""

from typing import Final

from vlmplan.other_trainers.assembled import assembled
from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.meaning import Meaning, Surroundings
from vlmplan.other_trainers.openrlhf.common import (
    OPENRLHF,
    arguments_of,
    data_rules_of,
    model_options,
    refuse_what_has_no_plan,
)
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import Batching
from vlmplan.recipe.task_choices import Reference, ReferenceShards, TaskKind, TaskTrainer
from vlmplan.workload import ModelFiles

MAX_EPOCHS: Final = 1
MAX_LEN: Final = 512
SHARDS_WEIGHTS: Final = 3
"""The stage of ZeRO that shards weights, and offloads them."""


def read_openrlhf_dpo(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``train_dpo`` makes of these options. Raises InputError with everything that is wrong."""
    arguments = arguments_of(settings, max_epochs=MAX_EPOCHS)
    options, method = model_options(settings, model)
    options |= {"seq_len": settings.count("data.max_len", MAX_LEN, least=1), **_preferences(settings)}
    refuse_what_has_no_plan(settings, arguments, around)
    meaning = Meaning(trainer=OPENRLHF, method=method, options=options, model=model, use_double_quant=True)
    packs = options.get("batching") == Batching.PADDING_FREE.value
    meaning.data_rules = data_rules_of(settings, packs=packs, prefers=True)
    return assembled(settings, arguments, meaning, around)


def _preferences(settings: Settings) -> dict[str, Value]:
    name = settings.text("ref.model_name_or_path", "") if "ref.model_name_or_path" in settings else ""
    settings.ignore(("ref.model_name_or_path",))
    if name and name != settings.text("model.model_name_or_path", ""):
        settings.refuse("ref.model_name_or_path", "a reference other than model.model_name_or_path is not planned")
    offloads = settings.flag("ref.offload", False)
    if offloads and settings.count("ds.zero_stage", 2) != SHARDS_WEIGHTS:
        settings.refuse("ref.offload", f"with ds.zero_stage other than {SHARDS_WEIGHTS}: {NOT_PLANNED}")
    return {
        **({"reference_shards": ReferenceShards.HOST.value} if offloads else {}),
        "task": TaskKind.DPO.value,
        "task_trainer": TaskTrainer.OPENRLHF.value,
        "reference": Reference.COPY.value,
    }
