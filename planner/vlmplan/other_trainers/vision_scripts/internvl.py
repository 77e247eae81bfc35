"""OpenGVLab/InternVL (commit 2410d1d): options of ``internvl_chat/internvl/train/internvl_chat_finetune.py``, and of
``internvl_chat_pretrain.py``, which has the same; in ``internvl_chat_gpt_oss``, of InternVL 3.5, two more.

Sources there: those two for keys, defaults, what is trained and in which types; ``model/internvl_chat`` for its own
model class, around transformers 4.37; ``train/dataset.py`` and ``dataset_packed.py`` for tiles, samples and rows.
"""

import math
from pathlib import PurePath
from typing import Any, Final, cast

from vlmplan.data_rules import OF_EVERY_IMAGE, DataRules, LearntRule
from vlmplan.errors import InputError
from vlmplan.other_trainers.assembled import assembled
from vlmplan.other_trainers.hugging_face import NOT_PLANNED, Arguments, Defaults, read_arguments
from vlmplan.other_trainers.meaning import Meaning, Surroundings
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import (
    ALL_LINEAR,
    AttentionImplementation,
    Batching,
    InputGradients,
    LossKind,
    Method,
    Precision,
    WeightDtype,
)
from vlmplan.workload import ModelFiles

INTERNVL: Final = "InternVL"
KEYS: Final = frozenset(
    """conv_style meta_path max_dynamic_patch down_sample_ratio freeze_backbone freeze_mlp use_llm_lora
    vision_select_layer ps_version dynamic_image_size use_thumbnail use_packed_ds grad_checkpoint""".split()
)
"""That tell its options from those of other scripts."""
OWNER = "OpenGVLab/"
ENDINGS: Final = {"InternVL2_5-": "-MPO-hf", "InternVL3-": "-hf", "InternVL3_5-": "-HF"}
"""How its repositories' names begin, and what transformers' own of the same model end with."""
OWN_ENDINGS = ("-MPO", "-Instruct", "-Pretrained")
PACKAGED: Final = {"InternVL2_5-1B": "internvl2.5-1b"}
"""Those that are packaged and of which transformers' own repository is not known."""
OF_SAME_SHAPE: Final = {
    **{f"InternVL2-{size}": f"InternVL2_5-{size}" for size in ("1B", "2B", "8B")},
    "Mini-InternVL-Chat-2B-V1-5": "InternVL2_5-2B",
}
"""Older models, of InternViT-300M and Qwen2 0.5B, InternLM2 1.8B or InternLM2.5 7B, whose decoders have the shape of
their successors', but for rows of the vocabulary."""
MODEL_TYPE = "internvl"
DEFAULTS = Defaults(optimizer="adamw_torch", checkpointing=None)
DEFAULT_SEQ_LEN = 8192
TILE = 448
DEFAULT_TILES, MOST_TILES = 12, 12
"""The script's, and those of transformers' processor."""
DEFAULT_RATIO = 0.5
DEFAULT_IMAGES_OF_ROW = 40
LORA_DROPOUT = 0.05
OF_4_37 = (
    "it has a model class of its own around transformers 4.37, and is planned as transformers 5.23 runs "
    "InternVLForConditionalGeneration: the same decoder, tower and projector; logits are copied for the loss there, "
    "which makes forward take as much of them as backward does"
)
OF_INTERNLM2 = "InternLM2's q, k and v are one Linear there, with one adapter for the three"
WITHOUT_EFFECT = (
    "conv_style meta_path use_data_resampling pad2square normalize_type ps_version use_fast_tokenizer mlp_path "
    "min_dynamic_patch min_num_frame max_num_frame max_buffer_size log_freq replacement allow_overflow "
    "loss_reduction loss_reduction_all_gather strict_mode split_annotations"
).split()


def internvl_name(name: str, source: str) -> str:
    """What transformers' own repository of a model is called. Raises InputError for names that are of none.

    >>> internvl_name("./pretrained/InternVL3-2B-Instruct", "run.sh")
    'OpenGVLab/InternVL3-2B-hf'
    """
    found = _same_model(name)
    if found is not None:
        return found
    known = ", ".join([*(f"{beginning}..." for beginning in ENDINGS), *OF_SAME_SHAPE])
    raise InputError(
        f"{source}: model_name_or_path is {name}; of {known} it is known which model of transformers is the same: name "
        "yours with --model, such as internvl2.5-8b or internvl3-8b"
    )


def _same_model(name: str) -> str | None:
    """By the last part of a name, which may be a folder's."""
    repository = PurePath(name).name
    repository = OF_SAME_SHAPE.get(repository, repository)
    repository = next((repository.removesuffix(one) for one in OWN_ENDINGS if repository.endswith(one)), repository)
    if repository in PACKAGED:
        return PACKAGED[repository]
    return next((f"{OWNER}{repository}{ending}" for one, ending in ENDINGS.items() if repository.startswith(one)), None)


def read_internvl(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What the script makes of these options. Raises InputError with everything that is wrong."""
    arguments = read_arguments(settings, DEFAULTS)
    name = settings.text("model_name_or_path", "")
    if not name and model is None:
        settings.refuse_whole(
            "model_name_or_path is missing, and a model that is put together of vision_path and llm_path is not known: "
            "name one that is the same with --model, such as internvl2.5-8b"
        )
    if (older := PurePath(name).name) in OF_SAME_SHAPE:
        settings.note(f"{older} is planned as {OF_SAME_SHAPE[older]}, whose decoder has the same shape")
    settings.ignore(("vision_path", "llm_path"))
    rank = settings.count("use_llm_lora", 0)
    method = Method.LORA if rank else Method.FULL
    options: dict[str, Value] = {
        **({"model": same} if (same := _same_model(name)) else {}),
        **_kernels(settings),
        "activation_checkpointing": settings.flag("grad_checkpoint", True)
        or bool(arguments.options["activation_checkpointing"]),
        "input_gradients": (InputGradients.LANGUAGE if rank else InputGradients.NONE).value,
        **_samples(settings, model),
        **_parts(settings, rank),
    }
    if method is Method.LORA:
        options |= {"lora_rank": rank, "lora_alpha": 2 * rank, "lora_dropout": LORA_DROPOUT, "lora_targets": ALL_LINEAR}
    _check_tower(settings, model)
    _check_types(settings, arguments)
    settings.only("use_liger_kernel liger_kernel_config", "the script has use_liger for it")
    settings.ignore(WITHOUT_EFFECT)
    settings.note(OF_4_37)
    if method is Method.LORA and _has_one_query(model):
        settings.note(OF_INTERNLM2)
    meaning = Meaning(trainer=INTERNVL, model=model, method=method, options=options, weights=WeightDtype.MODEL)
    meaning.without_autocast = Precision.BF16_PURE
    meaning.casts_zero3_adapters = True  # DeepSpeed of its time casts all weights (``module.bfloat16()``)
    meaning.data_rules = DataRules(pads_to=1, learns=LearntRule(heeds_turns=False))
    return assembled(settings, arguments, meaning, around)


def _has_one_query(model: ModelFiles | None) -> bool:
    """Whether q, k and v are one Linear in its decoder there, which is InternLM2, of the shape of a Llama here."""
    return model is not None and _section(model, "text_config").get("model_type") == "llama"


def _section(model: ModelFiles, name: str) -> dict[str, Any]:
    section = model.config.get(name)
    return cast(dict[str, Any], section) if isinstance(section, dict) else {}


def _kernels(settings: Settings) -> dict[str, Value]:
    """Flash attention whatever is asked for. ``use_liger`` takes Liger's kernels of Llama's and Qwen2's layers; the
    loss is the script's own, of whole logits."""
    options: dict[str, Value] = {
        "loss": LossKind.MODEL.value,
        "attention": AttentionImplementation.FLASH_ATTENTION_2.value,
    }
    settings.only("use_custom_flash_attn", f"a kernel for gpt-oss: {NOT_PLANNED}")
    return options | ({"liger_layers": True} if settings.flag("use_liger", False) else {})


def _check_types(settings: Settings, arguments: Arguments) -> None:
    """Weights are loaded in bfloat16, which DeepSpeed alone casts."""
    if arguments.precision is Precision.FP16 and arguments.deepspeed is None:
        settings.refuse("fp16", f"weights stay in bfloat16 then: {NOT_PLANNED}")


def _samples(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """A row of at most ``max_seq_length`` tokens with one image, or rows of samples put together, told apart by their
    positions (``use_packed_ds``): as many tokens and tiles as one may have, and each tile an image."""
    seq_len = settings.count("max_seq_length", DEFAULT_SEQ_LEN, least=1)
    if not settings.flag("use_packed_ds", False):
        settings.ignore(("max_packed_tokens", "num_images_expected"))
        return {"seq_len": seq_len, "image_size": _image_size(settings, model)}
    row_len = settings.count("max_packed_tokens", DEFAULT_SEQ_LEN, least=1)
    tiles_of_row = settings.count("num_images_expected", DEFAULT_IMAGES_OF_ROW, least=1)
    settings.ignore(("dynamic_image_size", "max_dynamic_patch", "use_thumbnail"))
    settings.note(
        f"rows that use_packed_ds puts together are planned with the {row_len:,} tokens and {tiles_of_row} tiles that "
        "one may have, as one sample each, and each tile as an image; attention within samples takes less time"
    )
    return {
        "seq_len": row_len,
        "batching": Batching.PADDING_FREE.value,
        "images_per_sample": tiles_of_row,
        "image_size": f"{TILE}x{TILE}",
    }


def _image_size(settings: Settings, model: ModelFiles | None) -> str:
    """An image of as many tiles as one may have: ``max_dynamic_patch``, and a small one of the whole."""
    is_dynamic = settings.flag("dynamic_image_size", False)
    tiles = settings.count("max_dynamic_patch", DEFAULT_TILES, least=1)
    has_thumbnail = settings.flag("use_thumbnail", False)
    most = model.preprocessor.get("max_patches", MOST_TILES) if model is not None and model.preprocessor else MOST_TILES
    if not is_dynamic:
        return f"{TILE}x{TILE}"
    if tiles > most:
        settings.refuse("max_dynamic_patch", f"transformers' processor makes {most} tiles at the most of an image")
    if tiles > 1 and not has_thumbnail:
        settings.note(
            "an image of several tiles is planned with a small one of the whole, which use_thumbnail leaves out"
        )
    rows, columns = _grid(tiles)
    settings.note(
        f"{OF_EVERY_IMAGE} max_dynamic_patch allows, {columns} x {rows} tiles; with --data tiles are those of "
        f"transformers' processor, {most} at the most"
    )
    return f"{columns * TILE}x{rows * TILE}"


def _grid(tiles: int) -> tuple[int, int]:
    """Rows and columns of so many tiles that are nearest to a square.

    >>> _grid(12), _grid(6), _grid(7)
    ((3, 4), (2, 3), (1, 7))
    """
    rows = next(rows for rows in range(math.isqrt(tiles), 0, -1) if tiles % rows == 0)
    return rows, tiles // rows


def _check_tower(settings: Settings, model: ModelFiles | None) -> None:
    """Refuse a model that is no InternVL, and a tower or projector that is made otherwise than the model's."""
    side = settings.count("force_image_size", TILE, least=1)
    ratio = settings.number("down_sample_ratio", DEFAULT_RATIO)
    settings.only("vision_select_layer", f"{NOT_PLANNED}; -1 is planned", "-1")
    if model is not None and model.model_type != MODEL_TYPE:
        settings.refuse_whole(
            f"the model is of type {model.model_type}; this script trains InternVL, which is {MODEL_TYPE}: --model "
            "internvl2.5-8b, internvl3-8b or a config.json of that type"
        )
    if side != TILE:
        settings.refuse("force_image_size", f"position embeddings are made anew for it: {NOT_PLANNED}; {TILE} is")
    if ratio != DEFAULT_RATIO:
        settings.refuse("down_sample_ratio", f"the script needs that of the model, {DEFAULT_RATIO}")


def _parts(settings: Settings, rank: int) -> dict[str, Value]:
    """What is trained: parts that are not frozen, in full beside adapters too, which the decoder alone gets."""
    trains_vision, trains_projector, trains_language = (
        not settings.flag(key, False) for key in ("freeze_backbone", "freeze_mlp", "freeze_llm")
    )
    settings.only("use_backbone_lora", f"adapters of the tower get no gradient behind its checkpoints: {NOT_PLANNED}")
    if not trains_vision:
        settings.only("unfreeze_vit_layers", f"some layers of the tower: {NOT_PLANNED}")
    settings.ignore(("unfreeze_vit_layers", "unfreeze_lm_head", "drop_path_rate"))
    if settings.is_on("unfreeze_lm_head") and not trains_language:
        settings.note("unfreeze_lm_head has no effect: it says requires_grad of the head's module, not of its weight")
    if settings.is_on("drop_path_rate") and trains_vision:
        settings.note("drop_path_rate: a mask and a product more in each layer of the tower are not counted")
    if trains_vision and not settings.flag("grad_checkpoint", True):
        settings.refuse("grad_checkpoint", f"and the tower has activation checkpoints all the same: {NOT_PLANNED}")
    options: dict[str, Value] = {"train_vision": trains_vision, "train_projector": trains_projector}
    if rank:
        return {**options, "full_vision": trains_vision, "full_projector": trains_projector}
    if not (trains_vision or trains_projector or trains_language):
        settings.refuse_whole("freeze_llm, freeze_mlp and freeze_backbone leave nothing to train without use_llm_lora")
    return {**options, "train_language": trains_language}
