"""2U1/Qwen-VL-Series-Finetune (commit 93fef86): options of ``src/train/train_sft.py``.

Sources there: ``src/params.py`` for keys and defaults, ``src/train/train_sft.py`` for what is trained and in which
types, ``src/dataset/sft_dataset.py`` for samples.
"""

from typing import Final

from vlmplan.data_rules import OF_EVERY_IMAGE, DataRules
from vlmplan.other_trainers.assembled import assembled, largest_image, without_limit
from vlmplan.other_trainers.hugging_face import NOT_PLANNED, Defaults, read_arguments
from vlmplan.other_trainers.meaning import Meaning, Surroundings
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.vision_scripts.qwen_finetune import OF_4_57, refuse_other_models
from vlmplan.other_trainers.vision_scripts.series import (
    OF_ADAPTERS,
    SHARED_KEYS,
    WITHOUT_EFFECT,
    adapters_without,
    adapts_tower,
    excluded_words,
)
from vlmplan.recipe.choices import AttentionImplementation, LossKind, Method, Precision, WeightDtype
from vlmplan.workload import ModelFiles

QWEN_SERIES: Final = "Qwen-VL-Series-Finetune"
KEYS: Final = SHARED_KEYS | {"freeze_merger", "image_max_pixels", "image_min_pixels"}
"""That tell its options from those of other scripts."""
DEFAULT_MODEL = "Qwen/Qwen2-VL-7B-Instruct"
DEFAULTS = Defaults(optimizer="adamw_torch")
DEFAULT_PIXELS = 3136, 12845056
LORA_ALPHA = 16
OLDER: Final = {"image_min_pixels": "min_pixels", "image_max_pixels": "max_pixels"}
"""What releases of 2024 call options, by their names today; they have ``tune_merger`` too, in place of
``freeze_merger``."""
TOWER = "visual"
CAST_BACK = (
    "beside packed weights the script casts adapters, embedding and head back to bfloat16, which are planned "
    "in float32, as peft's prepare_model_for_kbit_training leaves what is not packed: its run takes less"
)
OWN_WITHOUT_EFFECT = (
    "eval_path eval_image_folder merger_lr video_min_pixels video_max_pixels video_resized_width "
    "video_resized_height fps nframes"
).split()


def read_qwen_series(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``train_sft.py`` makes of these options. Raises InputError with everything that is wrong."""
    arguments = read_arguments(settings, DEFAULTS)
    refuse_other_models(settings, model)
    if "tune_merger" in settings:
        settings.make("freeze_merger", not settings.flag("tune_merger", False))
    name = settings.text("model_id", DEFAULT_MODEL)
    method = _method(settings)
    no_flash = settings.flag("disable_flash_attn2", False)
    attention = AttentionImplementation.SDPA if no_flash else AttentionImplementation.FLASH_ATTENTION_2
    options: dict[str, Value] = {
        "model": name,
        "attention": attention.value,
        **_loss(settings, name),
        **_images(settings),
        **(_parts(settings) if method is Method.FULL else _adapters(settings)),
    }
    if "seq_len" not in options:
        settings.note(f"samples are not cut, whatever max_seq_length says, so {without_limit(model)}")
    settings.only("unfreeze_topk_llm unfreeze_topk_vision", NOT_PLANNED)
    settings.only("use_liger_kernel liger_kernel_config", "beside the script's own use_liger it patches twice")
    settings.ignore((*OF_ADAPTERS, *WITHOUT_EFFECT, *OWN_WITHOUT_EFFECT))
    settings.note(OF_4_57)
    wide = arguments.precision is None
    meaning = Meaning(
        trainer=QWEN_SERIES,
        model=model,
        method=method,
        options=options,
        weights=WeightDtype.FLOAT32 if wide else WeightDtype.MODEL,
        without_autocast=Precision.FP32,
        upcasts_frozen=True,
    )
    # train_sft.py sets them whatever is said; not reentrant beside vision_lora alone, where no weight is of 8 bits
    settings.make("gradient_checkpointing_kwargs", {"use_reentrant": True})
    if method.packs_weights and arguments.deepspeed is None and arguments.precision is Precision.BF16:
        settings.note(CAST_BACK)
    doubles = settings.flag("double_quant", True)
    meaning.use_double_quant = doubles if method is Method.QLORA else None
    fewest, most = _pixels(settings)
    folder = settings.text("image_folder", "")
    meaning.data_rules = DataRules(pads_to=1, min_pixels=fewest, max_pixels=most, image_folder=folder or None)
    return assembled(settings, arguments, meaning, around)


def _method(settings: Settings) -> Method:
    adapts = settings.flag("lora_enable", False)
    bits = settings.count("bits", 16)
    if bits not in (4, 8, 16):
        settings.refuse("bits", "16, 8 or 4 is needed")
    if bits in (4, 8) and not adapts:
        settings.refuse("bits", f"{bits}-bit weights are trained by adapters alone, with lora_enable True")
    if bits in (4, 8) and settings.flag("freeze_vision_tower", False):
        settings.refuse(
            "bits",
            f"the tower is not quantised there, and frozen in 16 bits beside {bits}-bit weights: {NOT_PLANNED}; "
            "freeze_vision_tower False is planned, and bits 16",
        )
    if bits == 4:
        settings.only("quant_type", f"{NOT_PLANNED}; nf4 is", "nf4")
    if not adapts:
        return Method.FULL
    return {4: Method.QLORA, 8: Method.LORA_8BIT}.get(bits, Method.LORA)


def _loss(settings: Settings, name: str) -> dict[str, Value]:
    """``use_liger`` patches the class of Qwen2-VL or Qwen2.5-VL with all of Liger's kernels, its loss among them; of
    Qwen3-VL the script refuses it."""
    if not settings.flag("use_liger", True):
        return {"loss": LossKind.MODEL.value}
    if "Qwen3" in name:
        settings.refuse("use_liger", "the script raises ValueError for Qwen3-VL; use_liger False is needed")
    return {"loss": LossKind.LIGER.value, "liger_layers": True}


def _pixels(settings: Settings) -> tuple[int, int]:
    fewest, most = (
        settings.count(key, pixels, least=1)
        for key, pixels in zip(("image_min_pixels", "image_max_pixels"), DEFAULT_PIXELS, strict=True)
    )
    return fewest, most


def _images(settings: Settings) -> dict[str, Value]:
    """Every image has the size that is said, else any up to the most pixels."""
    width = settings.maybe_count("image_resized_width", least=1)
    height = settings.maybe_count("image_resized_height", least=1)
    if width is not None and height is not None:
        return {"image_size": f"{width}x{height}"}
    _, most = _pixels(settings)
    if "image_max_pixels" not in settings:
        return {}
    settings.note(f"{OF_EVERY_IMAGE} image_max_pixels allows, {largest_image(most)}")
    return {"image_size": largest_image(most)}


def _parts(settings: Settings) -> dict[str, Value]:
    """What ``configure_vision_tower`` and ``configure_llm`` freeze."""
    settings.only("vision_lora", "the script takes it with lora_enable alone")
    frozen = {
        "vision": settings.flag("freeze_vision_tower", False),
        "projector": settings.flag("freeze_merger", False),
        "language": settings.flag("freeze_llm", False),
    }
    return {f"train_{part}": not is_frozen for part, is_frozen in frozen.items()}


def _adapters(settings: Settings) -> dict[str, Value]:
    """Adapters on every Linear that no excluded word is in the name of. The tower and the merger that are not frozen
    are trained in full beside them: after peft every weight with ``visual`` or ``merger`` in its name needs
    gradients."""
    of_tower = adapts_tower(settings)
    trains_tower = not settings.flag("freeze_vision_tower", False)
    trains_merger = not settings.flag("freeze_merger", False) or trains_tower
    if of_tower and trains_merger and not trains_tower:
        settings.refuse_whole(f"vision_lora beside a merger that is trained too, with its adapters: {NOT_PLANNED}")
    return {
        **adapters_without(settings, excluded_words(settings), (TOWER,), LORA_ALPHA),
        "use_dora": settings.flag("use_dora", False),
        "train_vision": of_tower or trains_tower,
        "train_projector": of_tower or trains_merger,
        "full_vision": trains_tower,
        "full_projector": trains_merger,
    }
