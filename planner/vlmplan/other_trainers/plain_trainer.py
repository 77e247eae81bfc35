"""``TrainingArguments`` alone, for a script of one's own around Hugging Face's Trainer (transformers 5.23)."""

import re
from collections.abc import Collection, Mapping
from typing import Final

from vlmplan.models import stored_dtype
from vlmplan.notes import listed
from vlmplan.other_trainers.assembled import assembled
from vlmplan.other_trainers.hugging_face import Defaults, read_arguments
from vlmplan.other_trainers.liger import liger_options
from vlmplan.other_trainers.meaning import Meaning, Surroundings
from vlmplan.other_trainers.record import TrainerConfig, Value
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
        "lora-targets": "lora_target_modules target_modules",
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
MODEL_OF_SCRIPTS = tuple(key for key, option in OPTIONS_OF_SCRIPTS.items() if option == "model")
DATA_KEYS = frozenset("cache_dir lazy_preprocess model_revision overwrite_cache use_fast_tokenizer".split())
OF_DATA = re.compile(
    r"(?:train|eval|val|valid|validation|dev|test|data|dataset|datasets|image|video)"
    r"(?:_(?:data|dataset|set|split))?_(?:path|paths|file|files|filename|dir|folder|name|split|format|id|id_or_path)|"
    r"(?:train|eval|val|valid|validation|dev|test)_(?:data|dataset)|preprocessing_num_workers|max_eval_samples"
)
"""Keys by which published scripts name data and tokenizers: stanford_alpaca's, FastChat's, Qwen's ``finetune.py``,
transformers' examples, and those like them."""
LENGTH_KEYS = tuple(key for key, option in OPTIONS_OF_SCRIPTS.items() if option == "seq-len")
METHOD_KEYS = (*(key for key, option in OPTIONS_OF_SCRIPTS.items() if option == "method"), "q_lora", "qlora")
RANK_KEYS = tuple(key for key, option in OPTIONS_OF_SCRIPTS.items() if option == "lora-rank")
TARGET_KEYS = tuple(key for key, option in OPTIONS_OF_SCRIPTS.items() if option == "lora-targets")
ADAPTER_KEYS = (*METHOD_KEYS, *RANK_KEYS, *TARGET_KEYS, "lora_alpha", "lora_dropout", "lora_bias")
MAX_NAMED = 30
"""Keys of a script that are named. A choice."""


def of_script(keys: list[str]) -> str:
    """The sentence on keys that only a script of one's own knows, with the options that say what they mean."""
    named = [f"{key} (--{OPTIONS_OF_SCRIPTS[key]})" if key in OPTIONS_OF_SCRIPTS else key for key in keys[:MAX_NAMED]]
    more = [f"{len(keys) - MAX_NAMED} more"] if len(keys) > MAX_NAMED else []
    are, they = ("is no argument", "it") if len(keys) == 1 else ("are no arguments", "them")
    return (
        f"{listed([*named, *more])} {are} of Hugging Face's Trainer, and what a script of one's own makes of {they} "
        "is not known: say it with options (beside --method its keys of LoRA are taken), the model with --model; "
        "a comment in the file, # vlmplan: ignore KEY KEY, says which change neither memory nor time"
    )


def leave_data(settings: Settings, keys: list[str]) -> None:
    """Pass by keys that say which data a script of one's own reads."""
    if keys:
        settings.note(f"{listed(keys)}: taken for what says which data the script reads, and how")
    settings.ignore(keys)


def _own_options(settings: Settings, around: Surroundings) -> dict[str, Value]:
    """What keys mean that scripts have alike: data, how long samples may be, and adapters where the user says so."""
    leave_data(settings, [key for key in settings.keys if key in DATA_KEYS or OF_DATA.fullmatch(key)])
    options = longest_sample(settings)
    switches = [key for key in METHOD_KEYS if key in settings]
    if around.method is not None and around.method is not Method.FULL:
        options |= _adapters(settings)
    if around.method is not None or (switches and not any(map(settings.is_on, switches))):
        settings.ignore(ADAPTER_KEYS)
    return options


def longest_sample(settings: Settings, keys: Collection[str] = LENGTH_KEYS) -> dict[str, Value]:
    """How long samples may be, by those ``keys`` that scripts have alike."""
    length = next((key for key in LENGTH_KEYS if key in settings and key in keys), None)
    if length is None:
        return {}
    settings.note(f"{length} is taken for --seq-len: samples are taken to be as long as the script lets them be")
    return {"seq_len": settings.count(length, 1, least=1)}


def _adapters(settings: Settings) -> dict[str, Value]:
    """LoRA's sizes by the keys that scripts have alike."""
    options: dict[str, Value] = {}
    rank = next((key for key in RANK_KEYS if key in settings), None)
    if rank is not None:
        options["lora_rank"] = settings.count(rank, 1, least=1)
    if "lora_alpha" in settings:
        options["lora_alpha"] = settings.count("lora_alpha", 1, least=1)
    if "lora_dropout" in settings:
        options["lora_dropout"] = settings.number("lora_dropout", 0.0)
    targets = next((key for key in TARGET_KEYS if key in settings), None)
    if targets is not None:
        options["lora_targets"] = ",".join(settings.names(targets))
    return options


def read_plain_trainer(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What the Trainer makes of these keys; the model, its adapters and its samples are the script's."""
    arguments = read_arguments(settings, Defaults())
    settings.of_script = of_script
    name = settings.text("model_name_or_path", "") if "model_name_or_path" in settings else ""
    own = _own_options(settings, around)
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
        options={"loss": LossKind.MODEL.value, **({"model": name} if name else {}), **liger_options(settings), **own},
        weights=WeightDtype.FLOAT32 if is_wide else WeightDtype.MODEL,
        without_autocast=Precision.FP32 if is_wide else Precision.BF16_PURE,
        upcasts_frozen=None,
        packed_storage=None,
    )
    return assembled(settings, arguments, meaning, around)
