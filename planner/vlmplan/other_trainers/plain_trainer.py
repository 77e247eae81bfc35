"""``TrainingArguments`` alone, for a script of one's own around Hugging Face's Trainer (transformers 5.23)."""

from typing import Final

from vlmplan.other_trainers.assembled import Meaning, Surroundings, assembled
from vlmplan.other_trainers.hugging_face import Defaults, read_arguments
from vlmplan.other_trainers.record import TrainerConfig
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe import LossKind, Method, Precision, WeightDtype

TRAINER: Final = "Hugging Face Trainer 5.23"


def read_plain_trainer(settings: Settings, around: Surroundings) -> TrainerConfig:
    """What the Trainer makes of these keys; the model, its adapters and its samples are the script's."""
    arguments = read_arguments(settings, Defaults())
    settings.note(
        "model, samples and what is trained are not in TrainingArguments: say them with options; weights are taken as "
        "in the checkpoint, in 16 bit (transformers' default), which --weight-dtype float32 changes"
    )
    meaning = Meaning(
        trainer=TRAINER,
        method=Method.FULL,
        options={"loss": LossKind.MODEL.value},
        weights=WeightDtype.MODEL,
        without_autocast=Precision.BF16_PURE,
        upcasts_frozen=None,
    )
    return assembled(settings, arguments, meaning, around)
