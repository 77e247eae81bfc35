"""``TrainingArguments`` alone, for a script of one's own around Hugging Face's Trainer (transformers 5.23)."""

from collections.abc import Mapping
from typing import Final

from vlmplan.models import stored_dtype
from vlmplan.notes import listed
from vlmplan.other_trainers.assembled import Meaning, Surroundings, assembled
from vlmplan.other_trainers.hugging_face import Defaults, read_arguments
from vlmplan.other_trainers.liger import liger_options
from vlmplan.other_trainers.record import TrainerConfig
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import LossKind, Method, Precision, WeightDtype
from vlmplan.units import DType
from vlmplan.workload import ModelFiles

TRAINER: Final = "Hugging Face Trainer 5.23"
OPTIONS_OF_SCRIPTS: Mapping[str, str] = {
    key: option
    for option, keys in {
        "model": "model_id model_id_or_path model_path",
        "method": "lora_enable use_lora use_peft use_llm_lora use_backbone_lora vision_lora bits",
        "lora-rank": "lora_r lora_rank",
        "lora-alpha": "lora_alpha",
        "lora-dropout": "lora_dropout",
        "lora-targets": "lora_target_modules",
        "lora-exclude": "lora_namespan_exclude",
        "use-dora": "use_dora",
        "use-rslora": "use_rslora",
        "freeze-vision": "tune_mm_vision freeze_vision_tower unfreeze_mm_vision_tower freeze_backbone freeze_vit",
        "freeze-projector": "tune_mm_mlp freeze_merger freeze_mlp tune_mm_mlp_adapter freeze_mm_mlp_adapter",
        "freeze-language": "tune_mm_llm freeze_llm",
        "seq-len": "model_max_length max_seq_length max_seq_len max_length block_size cutoff_len seq_length",
        "image-size": "max_pixels image_max_pixels force_image_size",
        "num-samples": "max_train_samples max_samples",
        "batching": "data_flatten data_packing packing use_packed_ds padding_free",
        "attention": "attn_implementation use_flash_attn use_flash_attention_2 disable_flash_attn2",
        "weight-dtype": "torch_dtype dtype",
        "activation-checkpointing": "grad_checkpoint",
        "liger-layers": "use_liger",
    }.items()
    for key in keys.split()
}
"""The option that says what scripts mean by keys of their own: of Qwen-VL, LLaVA, InternVL, Qwen2-VL-Finetune,
transformers' examples and open-instruct."""
MAX_NAMED = 30
"""Keys of a script that are named. A choice."""


def of_script(keys: list[str]) -> str:
    """The sentence on keys that only a script of one's own knows, with the options that say what they mean."""
    named = [f"{key} (--{OPTIONS_OF_SCRIPTS[key]})" if key in OPTIONS_OF_SCRIPTS else key for key in keys[:MAX_NAMED]]
    more = [f"{len(keys) - MAX_NAMED} more"] if len(keys) > MAX_NAMED else []
    are, they = ("is no argument", "it") if len(keys) == 1 else ("are no arguments", "them")
    return (
        f"{listed([*named, *more])} {are} of Hugging Face's Trainer, and what a script of one's own makes of {they} "
        "is not known: say it with options, the model with --model, and check a copy without such keys"
    )


def read_plain_trainer(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What the Trainer makes of these keys; the model, its adapters and its samples are the script's."""
    arguments = read_arguments(settings, Defaults())
    settings.of_script = of_script
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
        packed_storage=None,
    )
    return assembled(settings, arguments, meaning, around)
