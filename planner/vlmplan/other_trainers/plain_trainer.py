"""``TrainingArguments`` alone, for a script of one's own around Hugging Face's Trainer (transformers 5.23)."""

from typing import Final

from vlmplan.models import stored_dtype
from vlmplan.other_trainers.assembled import Meaning, Surroundings, assembled
from vlmplan.other_trainers.hugging_face import Defaults, read_arguments
from vlmplan.other_trainers.liger import liger_options
from vlmplan.other_trainers.record import TrainerConfig
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe_choices import LossKind, Method, Precision, WeightDtype
from vlmplan.units import DType
from vlmplan.workload import ModelFiles

TRAINER: Final = "Hugging Face Trainer 5.23"
OF_SCRIPT: Final = (
    "it is read as TrainingArguments of Hugging Face's Trainer, and what a script of one's own takes besides is not "
    "known: say the model with --model and the samples with options, and check a copy without such keys"
)


def read_plain_trainer(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What the Trainer makes of these keys; the model, its adapters and its samples are the script's."""
    arguments = read_arguments(settings, Defaults())
    settings.of_unknown = OF_SCRIPT
    name = settings.text("model_name_or_path", "") if "model_name_or_path" in settings else ""
    is_wide = model is not None and stored_dtype(model.config) is DType.FLOAT32
    settings.note(
        ("model_name_or_path is taken for the model; " if name else "model, ")
        + "samples and what is trained are not in TrainingArguments: say them with options; weights are taken as "
        f"in the checkpoint, in {'32' if is_wide else '16'} bit (transformers' default)"
        + ("" if is_wide else ", which --weight-dtype float32 changes")
    )
    meaning = Meaning(
        trainer=TRAINER,
        model=model,
        method=Method.FULL,
        options={"loss": LossKind.MODEL.value, **({"model": name} if name else {}), **liger_options(settings)},
        weights=WeightDtype.FLOAT32 if is_wide else WeightDtype.MODEL,
        without_autocast=Precision.FP32 if is_wide else Precision.BF16_PURE,
        upcasts_frozen=None,
    )
    return assembled(settings, arguments, meaning, around)
