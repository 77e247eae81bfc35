"""2U1's scripts for other models than Qwen-VL: SmolVLM-Finetune (commit b3c2cfa), Gemma3-Finetune
(5a65b27) and Llama3.2-Vision-Finetune (d50aedf), of each its ``src/train/train_sft.py``.

Sources there: ``src/params.py`` (``src/train/params.py`` for Llama) for keys and defaults, ``train_sft.py`` for what is
trained and in which types, ``src/dataset`` for samples, which are not cut.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from vlmplan.data_rules import DataRules
from vlmplan.other_trainers.assembled import assembled, without_limit
from vlmplan.other_trainers.hugging_face import NOT_PLANNED, Defaults, read_arguments
from vlmplan.other_trainers.liger import HEAD_IS_READ
from vlmplan.other_trainers.meaning import Meaning, Surroundings
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.vision_scripts.series import (
    OF_ADAPTERS,
    SHARED_KEYS,
    WITHOUT_EFFECT,
    adapters_without,
    adapts_tower,
    excluded_words,
)
from vlmplan.recipe.choices import AttentionImplementation, LossKind, Method, Precision, WeightDtype
from vlmplan.units import GIB
from vlmplan.workload import ModelFiles

DEFAULTS: Final = Defaults(optimizer="adamw_torch")
MOST_BYTES_OF_A_TRAINED_WEIGHT: Final = 2 + 2 + 4 + 4 + 4 + 4
"""DeepSpeed's in 16 bit: it and its gradient, and in float32 it, its gradient and both moments."""
OF_EARLIER: Final = "it is made for earlier transformers, and planned as transformers 5.23 runs its models"

LAYERS_OF_TRANSFORMERS: Final = (
    "use_liger is planned for the loss alone, with layers as transformers has them: Liger's norms and MLPs take less"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """``freezes`` and ``tunes``: its key that leaves the projector as it is, and what older releases have for the
    opposite; ``linear``: the projector's Linear that adapters are put on, empty where there is none."""

    name: str
    model: str
    model_types: tuple[str, ...]
    alpha: int
    freezes: str
    freezes_by_default: bool = False
    tunes: str = ""
    rate: str
    tower: str
    linear: str = ""
    uses_liger: bool = True
    attention: tuple[AttentionImplementation, AttentionImplementation]
    """With flash attention, and without it."""
    tables: bool = False
    """Whether its tower has several tables, which ``vision_lora`` adapts with its Linears, and not one of positions."""

    @property
    def keys(self) -> frozenset[str]:
        return SHARED_KEYS | {key for key in (self.freezes, self.rate, self.tunes) if key}


FLASH, EAGER, SDPA = (
    AttentionImplementation.FLASH_ATTENTION_2,
    AttentionImplementation.EAGER,
    AttentionImplementation.SDPA,
)
SMOLVLM: Final = Script(
    name="SmolVLM-Finetune",
    model="HuggingFaceTB/SmolVLM-Instruct",
    model_types=("idefics3", "smolvlm"),
    alpha=64,
    freezes="freeze_connector",
    tunes="tune_connector",
    rate="connector_lr",
    tower="vision_model",
    linear="model.connector.modality_projection.proj",
    uses_liger=False,
    attention=(FLASH, EAGER),
)
GEMMA3: Final = Script(
    name="Gemma3-Finetune",
    model="google/gemma-3-4b-it",
    model_types=("gemma3",),
    alpha=16,
    freezes="freeze_projector",
    rate="projector_lr",
    tower="vision_tower",
    attention=(FLASH, EAGER),
)
LLAMA_VISION: Final = Script(
    name="Llama3.2-Vision-Finetune",
    model="meta-llama/Llama-3.2-11B-Vision-Instruct",
    model_types=("mllama",),
    alpha=16,
    freezes="freeze_img_projector",
    freezes_by_default=True,
    rate="projector_lr",
    tower="vision_model",
    attention=(SDPA, SDPA),
    tables=True,
)
SCRIPTS: Final = (SMOLVLM, GEMMA3, LLAMA_VISION)


def read_series(script: Script, settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What its ``train_sft.py`` makes of these options. Raises InputError with everything that is wrong."""
    arguments = read_arguments(settings, DEFAULTS)
    if model is not None and model.model_type not in script.model_types:
        settings.refuse_whole(
            f"the model is of type {model.model_type}; these options are of {script.name}, which trains "
            f"{' and '.join(script.model_types)}"
        )
    if script.tunes in settings:
        settings.make(script.freezes, not settings.flag(script.tunes, False))
    method = Method.LORA if settings.flag("lora_enable", False) else Method.FULL
    settings.only("bits", f"it packs the output head too and leaves the tower in 16 bits: {NOT_PLANNED}; 16 is", "16")
    options: dict[str, Value] = {
        "model": settings.text("model_id", script.model),
        "attention": script.attention[settings.flag("disable_flash_attn2", False)].value,
        **_loss(script, settings),
        **(_parts(script, settings) if method is Method.FULL else _adapters(script, settings, model)),
    }
    settings.note(f"samples are not cut, whatever max_seq_length says, so {without_limit(model)}")
    settings.only("unfreeze_topk_llm unfreeze_topk_vision", NOT_PLANNED)
    settings.only("use_liger_kernel liger_kernel_config", "beside what the script patches itself it patches twice")
    settings.ignore((*OF_ADAPTERS, *WITHOUT_EFFECT, script.rate, script.freezes, script.tunes))
    settings.ignore(("double_quant", "max_num_frames", "strict_image_validation"))
    settings.note(OF_EARLIER)
    meaning = Meaning(
        trainer=script.name,
        model=model,
        method=method,
        options=options,
        weights=WeightDtype.FLOAT32 if arguments.precision is None else WeightDtype.MODEL,
        without_autocast=Precision.FP32,
    )
    settings.make("gradient_checkpointing_kwargs", {"use_reentrant": True})  # whatever is said
    folder = settings.text("image_folder", "")
    meaning.data_rules = DataRules(pads_to=1, image_folder=folder or None)
    return assembled(settings, arguments, meaning, around)


READERS: Final = {script.name: partial(read_series, script) for script in SCRIPTS}


def _loss(script: Script, settings: Settings) -> dict[str, Value]:
    """``use_liger`` of Gemma 3 patches norms, positions and MLPs of the language model and computes Liger's loss by a
    ``forward`` of the script's own; that of Llama 3.2 Vision is all that Liger has for it."""
    if not script.uses_liger or not settings.flag("use_liger", True):
        return {"loss": LossKind.MODEL.value}
    settings.note(LAYERS_OF_TRANSFORMERS)
    settings.note(HEAD_IS_READ)
    return {"loss": LossKind.LIGER.value}


def _frozen(script: Script, settings: Settings) -> tuple[bool, bool]:
    """Whether tower and projector are left as they are."""
    return settings.flag("freeze_vision_tower", False), settings.flag(script.freezes, script.freezes_by_default)


def _parts(script: Script, settings: Settings) -> dict[str, Value]:
    """What ``configure_vision_tower`` and ``configure_llm`` freeze."""
    settings.only("vision_lora", "the script takes it with lora_enable alone")
    tower, projector = _frozen(script, settings)
    return {
        "train_vision": not tower,
        "train_projector": not projector,
        "train_language": not settings.flag("freeze_llm", False),
    }


def _adapters(script: Script, settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """Adapters on every Linear that no excluded word is in the name of; tower and projector that are not frozen are
    trained in full beside them. ``use_dora`` is handed to nobody."""
    of_tower = adapts_tower(settings)
    tower, projector = (not is_frozen for is_frozen in _frozen(script, settings))
    if of_tower and script.tables:
        settings.refuse_whole(f"vision_lora puts adapters on the tower's tables too: {NOT_PLANNED}; leave it off")
    if settings.is_on("use_dora"):
        settings.note("use_dora has no effect: the script does not hand it on to LoraConfig")
    words = excluded_words(settings)
    adapts_projector = bool(script.linear) and not any(word in script.linear for word in words)
    adapters = adapters_without(settings, words, (script.tower,), script.alpha)
    rank = cast(int, adapters["lora_rank"])
    if adapts_projector and projector and model is not None:
        _leave_out(settings, "the connector, which is trained itself,", rank * _sizes_of_connector(model))
    if of_tower and model is not None:
        _leave_out(settings, "the tower's table of positions", rank * _sizes_of_positions(model))
    return {
        **adapters,
        "train_vision": of_tower or tower,
        "train_projector": adapts_projector or projector,
        "full_vision": tower,
        "full_projector": projector,
    }


def _leave_out(settings: Settings, what: str, num_weights: int) -> None:
    gib = num_weights * MOST_BYTES_OF_A_TRAINED_WEIGHT / GIB
    settings.note(f"adapters of {what} are not counted: {num_weights:,} weights, at most {gib:.2f} GiB")


def _sizes_of_connector(model: ModelFiles) -> int:
    """Rows and columns of its Linear: pixels of ``scale_factor`` squared are one token."""
    vision, text = (_section(model, name) for name in ("vision_config", "text_config"))
    return _size(vision, "hidden_size", 1152) * _size(model.config, "scale_factor", 2) ** 2 + _size(
        text, "hidden_size", 2048
    )


def _sizes_of_positions(model: ModelFiles) -> int:
    """Rows and columns of the table: a row for each patch of the largest image."""
    vision = _section(model, "vision_config")
    side = _size(vision, "image_size", 224) // _size(vision, "patch_size", 32)
    return side**2 + _size(vision, "hidden_size", 1152)


def _section(model: ModelFiles, name: str) -> Mapping[str, Any]:
    section = model.config.get(name)
    return cast(Mapping[str, Any], section) if isinstance(section, dict) else {}


def _size(section: Mapping[str, Any], name: str, usual: int) -> int:
    """``usual`` is the default of ``configuration_idefics3.py`` and ``configuration_siglip.py``."""
    found = section.get(name)
    return found if isinstance(found, int) and found > 0 else usual
