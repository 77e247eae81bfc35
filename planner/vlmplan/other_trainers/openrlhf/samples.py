"""The options of ``openrlhf.cli.train_sft`` (OpenRLHF@3c3be623).

Sources there: ``openrlhf/cli/train_sft.py``; ``SFTTrainer`` in ``trainer/sft_trainer.py``; ``SFTDataset`` in
``datasets/sft_dataset.py``.
"""

from typing import Final

from vlmplan.other_trainers.assembled import assembled
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
from vlmplan.recipe.choices import Batching
from vlmplan.workload import ModelFiles

MAX_EPOCHS: Final = 2
MAX_LEN: Final = 2048


def read_openrlhf_sft(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``train_sft`` makes of these options. Raises InputError with everything that is wrong."""
    arguments = arguments_of(settings, max_epochs=MAX_EPOCHS)
    options, method = model_options(settings, model)
    options["seq_len"] = settings.count("data.max_len", MAX_LEN, least=1)
    refuse_what_has_no_plan(settings, arguments, around)
    meaning = Meaning(trainer=OPENRLHF, method=method, options=options, model=model, use_double_quant=True)
    packs = options.get("batching") == Batching.PADDING_FREE.value
    meaning.data_rules = data_rules_of(settings, packs=packs)
    return assembled(settings, arguments, meaning, around)
