"""The options of ``openrlhf.cli.train_rm`` (OpenRLHF@3c3be623).

Sources there: ``openrlhf/cli/train_rm.py``; ``RewardModelTrainer`` in ``trainer/rm_trainer.py``, one forward over both
answers of each pair; ``RewardModel`` in ``models/model.py``: a Linear with one result and without a bias, over the
last hidden states.
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
from vlmplan.other_trainers.record import TrainerConfig
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import Batching, LossKind, Method
from vlmplan.recipe.task_choices import TaskKind, TaskTrainer
from vlmplan.workload import ModelFiles

MAX_EPOCHS: Final = 1
MAX_LEN: Final = 512
MICRO_BATCH: Final = 1
OF_LOSS: Final = ("model.compute_fp32_loss_enable", "model.margin_loss_enable", "model.loss_type")
"""Numbers of two scores for each pair."""


def read_openrlhf_rm(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``train_rm`` makes of these options. Raises InputError with everything that is wrong."""
    arguments = arguments_of(settings, max_epochs=MAX_EPOCHS, micro_batch=MICRO_BATCH)
    options, method = model_options(settings, model)
    if method is not Method.FULL:
        settings.refuse("ds.lora.rank", f"adapters leave the head that scores as it is drawn at random: {NOT_PLANNED}")
    settings.only("ds.value_head_prefix", f"a head of another name: {NOT_PLANNED}; score is", "score")
    packs = options.get("batching") == Batching.PADDING_FREE.value
    options |= {
        "seq_len": settings.count("data.max_len", MAX_LEN, least=1),
        "loss": LossKind.BRADLEY_TERRY.value,
        "task": TaskKind.REWARD.value,
        "task_trainer": TaskTrainer.OPENRLHF.value,
    }
    settings.ignore(OF_LOSS)
    refuse_what_has_no_plan(settings, arguments, around)
    meaning = Meaning(trainer=OPENRLHF, method=method, options=options, model=model, use_double_quant=True)
    meaning.data_rules = data_rules_of(settings, packs=packs, prefers=True)
    return assembled(settings, arguments, meaning, around)
