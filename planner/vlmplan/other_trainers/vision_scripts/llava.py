"""haotian-liu/LLaVA (commit c121f04): options of ``llava/train/train_mem.py``.

Sources there: ``llava/train/train.py`` for keys, defaults, what is trained and in which types, and for samples;
``llava/model/llava_arch.py`` and ``language_model/llava_llama.py`` for its own model class, around transformers 4.37.
"""

from pathlib import PurePath
from typing import Any, Final, cast

from vlmplan.data_rules import DataRules, LearntRule, Order
from vlmplan.errors import InputError
from vlmplan.notes import listed
from vlmplan.other_trainers.assembled import assembled
from vlmplan.other_trainers.hugging_face import NOT_PLANNED, Arguments, Defaults, read_arguments
from vlmplan.other_trainers.meaning import Meaning, Surroundings
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import (
    ALL_LINEAR,
    AttentionImplementation,
    InputGradients,
    LossKind,
    Method,
    Precision,
    WeightDtype,
)
from vlmplan.workload import ModelFiles

LLAVA: Final = "LLaVA"
KEYS: Final = frozenset(
    """tune_mm_mlp_adapter freeze_mm_mlp_adapter pretrain_mm_mlp_adapter mm_projector_type mm_vision_select_layer
    mm_use_im_start_end mm_use_im_patch_token mm_projector_lr vision_tower image_aspect_ratio
    group_by_modality_length""".split()
)
"""That tell its options from those of other scripts."""
FLASH_SCRIPTS = ("train_mem",)
XFORMERS_SCRIPTS = ("train_xformers",)
"""By their names: what attention they ask for."""
OTHERS: Final = {
    name: frozenset(keys.split())
    for name, keys in {
        "LLaVA-NeXT": "mm_tunable_parts mm_vision_tower_lr image_grid_pinpoints unfreeze_mm_vision_tower "
        "frames_upbound mm_newline_position mm_spatial_pool_stride mm_spatial_pool_mode add_time_instruction "
        "force_sample",
        "TinyLLaVA Factory": "tune_type_llm tune_type_vision_tower tune_type_connector tune_vision_tower_from_layer "
        "connector_type training_recipe conv_version pretrained_model_path",
    }.items()
}
"""Options of scripts that were made of it (LLaVA-VL/LLaVA-NeXT, TinyLLaVA/TinyLLaVA_Factory): models of
other towers, and parts of their own."""
MODELS: Final = {
    name: f"llava-hf/llava-1.5-{size}-hf"
    for size in ("7b", "13b")
    for name in (f"vicuna-{size}-v1.3", f"vicuna-{size}-v1.5", f"llava-v1.5-{size}")
}
"""Decoders that it makes LLaVA-1.5 of (lmsys) and its own checkpoints (liuhaotian), by the last part of their names:
transformers' own of the same model."""
MODEL_TYPE = "llava"
TOWERS: Final = {"openai/clip-vit-large-patch14-336": 336, "openai/clip-vit-large-patch14": 224}
"""Towers, which are ViT-L/14 of CLIP, and the side of their images."""
TOWER_WIDTH, TOWER_PATCH = 1024, 14
PROJECTOR = "mlp2x_gelu"
DEFAULTS = Defaults(optimizer="adamw_torch")
DEFAULT_SEQ_LEN = 512
LORA_RANK, LORA_ALPHA, LORA_DROPOUT = 64, 16, 0.05
OF_4_37 = (
    "it has a model class of its own around transformers 4.37, and is planned as transformers 5.23 runs "
    "LlavaForConditionalGeneration: the same decoder, tower and projector, with 64 rows more in embedding and head "
    "(for the image token); its frozen tower runs with whole attention scores (eager), which are gone before the "
    "decoder runs, and logits are copied for the loss, which makes forward take as much of them as backward does"
)
WITHOUT_EFFECT = (
    "version data_path lazy_preprocess is_multimodal image_aspect_ratio cache_dir mpt_attn_impl mm_projector_lr "
    "pretrain_mm_mlp_adapter mm_vision_select_layer mm_use_im_patch_token lora_weight_path double_quant quant_type"
).split()


def llava_name(name: str, source: str) -> str:
    """The packaged model of a name. Raises InputError for names of which it is not known which model they are."""
    found = _same_model(name)
    if found is not None:
        return found
    raise InputError(
        f"{source}: model_name_or_path is {name}; of {', '.join(MODELS)} it is known which LLaVA-1.5 they make: name "
        "yours with --model, such as llava-1.5-7b or a config.json of transformers' llava"
    )


def _same_model(name: str) -> str | None:
    return MODELS.get(PurePath(name).name)


def _refuse_others(settings: Settings) -> None:
    """Raise InputError for options of a script that is another by now."""
    for name, keys in OTHERS.items():
        found = [key for key in settings.keys if key in keys]
        if found:
            are = "is an option" if len(found) == 1 else "are options"
            raise InputError(
                f"{settings.source}: {listed(found)} {are} of {name}, whose models, towers and trained parts are not "
                f"read from a script; say them with options of vlmplan estimate, such as --model llava-onevision-7b "
                f"--freeze-vision"
            )


def read_llava(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``train.py`` makes of these options. Raises InputError with everything that is wrong."""
    _refuse_others(settings)
    arguments = read_arguments(settings, DEFAULTS)
    name = settings.text("model_name_or_path", "")
    if not name and model is None and "model_name_or_path" not in settings:
        settings.refuse_whole("model_name_or_path is missing; one is needed, or --model")
    method = _method(settings)
    parts = _adapters(settings) if method is Method.LORA else _parts(settings)
    trains_embedding = bool(parts.get("train_language"))  # whose result needs gradients by itself
    options: dict[str, Value] = {
        **({"model": same} if (same := _same_model(name)) else {}),
        "loss": LossKind.MODEL.value,
        "attention": _attention(settings, around).value,
        "input_gradients": (InputGradients.NONE if trains_embedding else InputGradients.LANGUAGE).value,
        "seq_len": settings.count("model_max_length", DEFAULT_SEQ_LEN, least=1),
        **_images(settings, model),
        **parts,
    }
    _check_projector(settings)
    settings.only("use_liger_kernel liger_kernel_config", "transformers 4.37, which the script is for, has no such key")
    settings.ignore(("lora_r", "lora_alpha", "lora_dropout", "lora_bias", *WITHOUT_EFFECT))
    settings.note(OF_4_37)
    if settings.flag("group_by_modality_length", False):
        arguments.order = Order.BY_LENGTH
    is_wide = not _is_16_bit(arguments, method)
    meaning = Meaning(
        trainer=LLAVA,
        model=model,
        method=method,
        options=options,
        weights=WeightDtype.FLOAT32 if is_wide else WeightDtype.MODEL,
        without_autocast=Precision.FP32,
        casts_zero3_adapters=True,  # DeepSpeed 0.12.6, which it asks for, casts all weights (``module.bfloat16()``)
    )
    folder = settings.text("image_folder", "")
    learns = LearntRule(heeds_turns=False)
    meaning.data_rules = DataRules(pads_to=1, image_folder=folder or None, learns=learns)
    return assembled(settings, arguments, meaning, around)


def _is_16_bit(arguments: Arguments, method: Method) -> bool:
    """With ``bf16`` weights are loaded so, with ``fp16`` in float32, which are cast beside adapters alone."""
    return arguments.precision is Precision.BF16 or (arguments.precision is Precision.FP16 and method is Method.LORA)


def _method(settings: Settings) -> Method:
    adapts = settings.flag("lora_enable", False)
    bits = settings.count("bits", 16)
    if bits not in (4, 8, 16):
        settings.refuse("bits", "16, 8 or 4 is needed")
    elif bits != 16:
        settings.refuse(
            "bits",
            f"it packs the output head too and leaves the tower in 16 bits: {NOT_PLANNED}; 16 is planned, and "
            "--method qlora or lora-8bit beside bits 16, with all Linears packed but the head",
        )
    return Method.LORA if adapts else Method.FULL


def _attention(settings: Settings, around: Surroundings) -> AttentionImplementation:
    """``train_mem.py`` asks for flash attention, ``train.py`` leaves it to transformers, which takes sdpa."""
    if around.script in FLASH_SCRIPTS:
        return AttentionImplementation.FLASH_ATTENTION_2
    if around.script in XFORMERS_SCRIPTS:
        settings.note("attention of xformers is planned as sdpa, which keeps as much for backward")
    return AttentionImplementation.SDPA


def _images(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """Every image is one tile of the tower's size: padded to a square, or cut to one."""
    tower = _tower(settings)
    if not tower:
        settings.refuse_whole("vision_tower is missing: without one the script trains a model that sees no images")
    elif tower not in TOWERS:
        settings.refuse("vision_tower", f"{NOT_PLANNED}; {listed(list(TOWERS))} are planned")
    elif model is not None:
        _check_tower(settings, model, TOWERS[tower])
    settings.only("mm_patch_merge_type", NOT_PLANNED, "flat")
    settings.only("mm_vision_select_feature", f"{NOT_PLANNED}; patch is planned", "patch")
    settings.only("mm_use_im_start_end", f"embeddings of two tokens more, which are trained: {NOT_PLANNED}")
    side = TOWERS.get(tower, max(TOWERS.values()))
    return {"image_size": f"{side}x{side}"}


def _tower(settings: Settings) -> str:
    """The tower, by the last part of its name where it is a folder."""
    said = settings.text("vision_tower", "")
    last = PurePath(said).name.replace("_", "-")
    same = next((name for name in TOWERS if name != said and PurePath(name).name == last), None)
    if same is None:
        return said
    settings.note(f"vision_tower is {said}: taken for {same} by its name")
    return same


def _check_tower(settings: Settings, model: ModelFiles, side: int) -> None:
    """Refuse a model that is no LLaVA, or has another tower than the script."""
    if model.model_type != MODEL_TYPE:
        settings.refuse_whole(
            f"the model is of type {model.model_type}; this script trains a Llama behind CLIP, which is {MODEL_TYPE}: "
            "--model llava-1.5-7b, llava-1.5-13b or a config.json of that type"
        )
        return
    section = model.config.get("vision_config")
    vision = cast(dict[str, Any], section) if isinstance(section, dict) else {}
    found = tuple(vision.get(key) for key in ("hidden_size", "patch_size", "image_size"))
    if found != (TOWER_WIDTH, TOWER_PATCH, side):
        settings.refuse(
            "vision_tower",
            f"whose images have {side} pixels a side, and the model's tower takes {found[2]}: give --model a "
            f"config.json with vision_config.image_size {side}",
        )


def _check_projector(settings: Settings) -> None:
    kind = settings.text("mm_projector_type", "linear")
    if kind != PROJECTOR:
        settings.refuse_whole(
            f"mm_projector_type is {kind}; {PROJECTOR} is planned, as transformers' class has two Linears and a GELU"
        )


def _parts(settings: Settings) -> dict[str, Value]:
    """What is trained without adapters: the decoder and the projector, or with ``tune_mm_mlp_adapter`` that alone; the
    tower never is."""
    tunes, freezes = (settings.flag(key, False) for key in ("tune_mm_mlp_adapter", "freeze_mm_mlp_adapter"))
    if settings.flag("freeze_backbone", False) and not tunes:
        settings.refuse("freeze_backbone", f"and the output head is trained all the same: {NOT_PLANNED}")
    if tunes and freezes:
        settings.refuse("freeze_mm_mlp_adapter", "and beside tune_mm_mlp_adapter nothing is left to train")
    if tunes:
        settings.note("its checkpoints hold the projector alone, planned as the model's and the optimizer's states")
    return {"train_vision": False, "train_projector": not freezes, "train_language": not tunes}


def _adapters(settings: Settings) -> dict[str, Value]:
    """Adapters on every Linear of the decoder but the head (``find_all_linear_names``). The projector is made after
    them, or its gradients are switched on again, so that it is trained in full unless it is frozen."""
    settings.ignore(("freeze_backbone",))  # adapters freeze the decoder too
    if settings.flag("tune_mm_mlp_adapter", False):
        settings.refuse("tune_mm_mlp_adapter", "and beside lora_enable it freezes the adapters: leave one of them out")
    settings.only("lora_bias", NOT_PLANNED, "none")
    trains_projector = not settings.flag("freeze_mm_mlp_adapter", False)
    return {
        "lora_rank": settings.count("lora_r", LORA_RANK, least=1),
        "lora_alpha": settings.count("lora_alpha", LORA_ALPHA, least=1),
        "lora_dropout": settings.number("lora_dropout", LORA_DROPOUT),
        "lora_targets": ALL_LINEAR,
        "train_vision": False,
        "train_projector": trains_projector,
        "full_projector": trains_projector,
    }
