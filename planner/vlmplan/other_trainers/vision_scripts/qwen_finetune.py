"""``qwen-vl-finetune`` of QwenLM/Qwen3-VL (commit 9658872): options of ``qwenvl/train/train_qwen.py``.

Sources there: ``qwenvl/train/argument.py`` for keys and defaults, ``train_qwen.py`` for what is trained and in which
types, ``qwenvl/data/data_processor.py`` for batches.
"""

from typing import Any, Final, cast

from vlmplan.data_rules import OF_EVERY_IMAGE, DataRules
from vlmplan.other_trainers.assembled import assembled, largest_image
from vlmplan.other_trainers.hugging_face import NOT_PLANNED, Arguments, Defaults, read_arguments
from vlmplan.other_trainers.liger import liger_options
from vlmplan.other_trainers.meaning import Meaning, Surroundings, sees
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import AttentionImplementation, Batching, LossKind, Method, Precision, WeightDtype
from vlmplan.workload import ModelFiles

QWEN_FINETUNE: Final = "qwen-vl-finetune"
KEYS: Final = frozenset("dataset_use data_flatten data_packing tune_mm_vision tune_mm_mlp tune_mm_llm".split())
"""That tell its options from those of other scripts."""
DEFAULT_MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"
DEFAULTS = Defaults(optimizer="adamw_torch")
DEFAULT_SEQ_LEN = 512
DEFAULT_PIXELS = 28 * 28 * 16, 28 * 28 * 576
LORA_RANK, LORA_ALPHA, LORA_DROPOUT = 64, 128, 0.05
"""Also in place of 0, which Python takes for nothing there."""
LORA_TARGETS = "q_proj,k_proj,v_proj,o_proj"
OF_4_57 = "it asks for transformers 4.57, and is planned as transformers 5.23 runs its models"
WITHOUT_EFFECT = (
    "dataset_use cache_dir mm_projector_lr vision_tower_lr base_interval video_max_frames video_min_frames "
    "video_max_pixels video_min_pixels video_fps video_max_frame_pixels video_min_frame_pixels video_max_total_pixels "
    "video_min_total_pixels"
).split()
"""The last four were those of its first releases, in 2025."""


def read_qwen_finetune(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What the script makes of these options. Raises InputError with everything that is wrong."""
    arguments = read_arguments(settings, DEFAULTS)
    refuse_other_models(settings, model)
    name = settings.text("model_name_or_path", DEFAULT_MODEL)
    method = Method.LORA if settings.flag("lora_enable", False) else Method.FULL
    options: dict[str, Value] = {
        "model": name,
        "loss": LossKind.MODEL.value,
        "attention": AttentionImplementation.FLASH_ATTENTION_2.value,
        **liger_options(settings),
        **_samples(settings),
        **(_adapters(settings) if method is Method.LORA else _parts(settings, model)),
    }
    settings.ignore(("lora_r", "lora_alpha", "lora_dropout", "tune_mm_vision", "tune_mm_mlp", "tune_mm_llm"))
    settings.ignore(WITHOUT_EFFECT)
    settings.note(OF_4_57)
    fewest, most = (
        settings.count(key, pixels, least=1)
        for key, pixels in zip(("min_pixels", "max_pixels"), DEFAULT_PIXELS, strict=True)
    )
    options["image_size"] = largest_image(most)
    settings.note(f"{OF_EVERY_IMAGE} max_pixels allows, {largest_image(most)}")
    meaning = Meaning(trainer=QWEN_FINETUNE, model=model, method=method, options=options, weights=WeightDtype.MODEL)
    meaning.without_autocast = Precision.BF16_PURE
    meaning.data_rules = DataRules(pads_to=1, min_pixels=fewest, max_pixels=most)
    _check_types(settings, arguments)
    return assembled(settings, arguments, meaning, around)


def refuse_other_models(settings: Settings, model: ModelFiles | None) -> None:
    """Refuse a model that no script of Qwen-VL trains: copies of them for others have the same options."""
    if model is not None and not (model.model_type.startswith("qwen") and sees(model)):
        settings.refuse_whole(f"the model is of type {model.model_type}; these options are of a script for Qwen-VL")


def _check_types(settings: Settings, arguments: Arguments) -> None:
    """With ``bf16`` weights are loaded so, and else as they are in the checkpoint, which is bfloat16 of all Qwen-VL."""
    if arguments.precision is Precision.FP16:
        settings.refuse("fp16", f"weights stay in bfloat16 then: {NOT_PLANNED}")


def _samples(settings: Settings) -> dict[str, Value]:
    """Samples are cut at ``model_max_length`` where they are padded to one length; flattened ones are not cut
    (``FlattenedDataCollatorForSupervisedDataset``)."""
    options: dict[str, Value] = {"seq_len": settings.count("model_max_length", DEFAULT_SEQ_LEN, least=1)}
    flattens, packs = settings.flag("data_flatten", False), settings.flag("data_packing", False)
    if flattens or packs:
        options["batching"] = Batching.PADDING_FREE.value
        what = "rows that tools/pack_data.py has put together" if packs else "samples"
        settings.note(
            f"{what} are not cut at model_max_length where they are flattened: planned for {what} of so many tokens; "
            "give --seq-len for the longest of yours"
        )
    return options


def _adapters(settings: Settings) -> dict[str, Value]:
    for key in ("tune_mm_vision", "tune_mm_mlp", "tune_mm_llm"):
        if settings.is_on(key):
            settings.note(f"{key} has no effect beside lora_enable, with which adapters alone are trained")
    return {
        "lora_rank": settings.count("lora_r", LORA_RANK) or LORA_RANK,
        "lora_alpha": settings.count("lora_alpha", LORA_ALPHA) or LORA_ALPHA,
        "lora_dropout": settings.number("lora_dropout", 0.0) or LORA_DROPOUT,
        "lora_targets": LORA_TARGETS,
    }


def _parts(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """What ``set_model`` freezes. It sets ``requires_grad`` of the head's module, not of its weight, which is trained
    whatever ``tune_mm_llm`` says unless it is the embedding's."""
    vision, projector = settings.flag("tune_mm_vision", False), settings.flag("tune_mm_mlp", False)
    language = settings.flag("tune_mm_llm", False)
    if model is not None and not language and not ties_weights(model):
        settings.refuse(
            "tune_mm_llm" if "tune_mm_llm" in settings else "tune_mm_mlp",
            "and without tune_mm_llm the script trains the output head all the same, whose module it freezes and not "
            f"its weight: {NOT_PLANNED}; tune_mm_llm True is",
        )
    if model is not None and vision != projector and "deepstack_visual_indexes" in vision_config(model):
        settings.note(
            f"deepstack_merger_list is {'trained' if vision else 'frozen'} with the tower there (tune_mm_vision), and "
            f"planned with the merger, {'frozen' if vision else 'trained'}"
        )
    return {"train_vision": vision, "train_projector": projector, "train_language": language}


def vision_config(model: ModelFiles) -> dict[str, Any]:
    section = model.config.get("vision_config")
    return cast(dict[str, Any], section) if isinstance(section, dict) else {}


def ties_weights(model: ModelFiles) -> bool:
    """Whether the head of a Qwen-VL is its embedding, as its configuration or that of its text says."""
    text = model.config.get("text_config")
    own = model.config.get("tie_word_embeddings")
    inner = cast(dict[str, Any], text).get("tie_word_embeddings") if isinstance(text, dict) else None
    return bool(inner if own is None else own)
