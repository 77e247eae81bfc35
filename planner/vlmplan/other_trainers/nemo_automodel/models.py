"""Which model a recipe trains: whose implementation, in which type its weights are, its attention and what is frozen.

Source: Automodel@36044ad3 ``nemo_automodel/_transformers/auto_model.py``, ``model_init.py``, ``registry.py`` and
``kernel_patches.py``; ``apply_parameter_freezing`` in ``components/utils/model_utils.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vlmplan.architecture.families import has_family
from vlmplan.architecture.families.build import build_model
from vlmplan.model_types.liger import LAYER_TYPES
from vlmplan.other_trainers.hugging_face import ATTENTION
from vlmplan.other_trainers.nemo_automodel.keys import NEMO_AUTOMODEL, NOT_PLANNED
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import AttentionImplementation, Part
from vlmplan.rules.nemo import COMPILED_NORMS
from vlmplan.workload import ModelFiles

AUTO_CLASSES: Final = (
    *("NeMoAutoModelForCausalLM", "NeMoAutoModelForImageTextToText", "NeMoAutoModelForMultimodalLM"),
)
NAMES: Final = (*("model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path", "model.config"),)
"""Keys that name the model."""
LOADERS: Final = ("from_pretrained", "from_config")
OWN_TYPES: Final = frozenset(
    """bagel baichuan bailing_moe bailing_moe_v2 deepseek_v3 deepseek_v32 deepseek_v4 diffusion_gemma ernie4_5_moe
    gemma4 gemma4_assistant gemma4_unified glm4_moe glm4_moe_lite glm_moe_dsa gpt_oss hunyuan_v3 hy_v3 hyv3
    inkling_mm_model kimi_k2 kimi_k25 kimi_k3 kimi_linear kimi_linear_48b_a3b kimi_vl laguna llama llavaonevision1_5
    mimo_v2_flash minimax_m2 minimax_m3_vl ministral3 mistral4 muse_glimmer nemotron_h nemotron_parse qwen2 qwen2_5_omni
    qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe
    step3p5
    step3p5v step3p6 step3p7""".split()
)
"""Types of models of which it has an implementation of its own (``MODEL_ARCH_MAPPING``)."""
PLANNED_OWN: Final = COMPILED_NORMS | {"qwen3", "qwen3_vl"}
"""Of Qwen3 its own is made of transformers' classes, of Qwen3-VL it is transformers' unless GPUs share samples. So is
that of a dense Gemma 4 whose layers share no keys."""
ENCODER_GROUPS: Final = frozenset(
    """gemma3 llama4 llava llava_next llava_next_video llava_onevision mistral3 qwen2_5_vl qwen2_vl smolvlm""".split()
)
"""Models whose encoders' layers are known to its checkpoints (``_get_model_layer_group_specs``); of others the longest
list of modules is."""
LANGUAGE_GROUPS: Final = frozenset(("gemma4",))
"""Models that see of which it knows the language model's layers, transformers' own, alone."""
OTHER_LISTS: Final = frozenset(("qwen3_vl",))
"""Models whose encoders have lists of modules beside their layers."""
TYPES: Final = {"bfloat16": False, "bf16": False, "float32": True, "fp32": True}
"""Names of types of weights, and whether they are float32."""
FROZEN_NAMES: Final = ("vision", "visual", "image_encoder")
"""What the name of a module has in it that ``freeze_vision_tower`` freezes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NemoModel:
    """``is_wide``: weights are float32. ``freezes_vision``: nothing of the encoder is trained when the model is
    sharded."""

    options: Mapping[str, Value]
    is_wide: bool
    freezes_vision: bool
    sees: bool
    checkpoints_whole: bool
    """Whether whole layers run again, unless DDP has the model."""
    checkpoints_vision: bool
    """Whether the encoder's layers do too."""
    has_other_lists: bool
    is_own: bool
    """Whether the implementation is its own."""


def read_model(settings: Settings, model: ModelFiles | None, *, is_vision_recipe: bool) -> NemoModel:
    name = next((settings.text(key, "") for key in NAMES if key in settings), "")
    if not name and model is None:
        settings.refuse_whole(f"{NAMES[0]} is missing; one is needed, or --model")
    settings.only("model.config._target_", f"a configuration that the recipe makes: {NOT_PLANNED}; name a model")
    settings.only(
        "model.output_hidden_states model.text_config.output_hidden_states",
        f"results of all layers that stay: {NOT_PLANNED}",
    )
    _check_target(settings)
    is_own = _is_own(settings, model)
    is_wide = _is_wide(settings, model, is_own=is_own)
    options: dict[str, Value] = {
        **({"model": name} if name else {}),
        "attention": _attention(settings).value,
        **_kernels(settings, model, is_own=is_own),
    }
    frozen = _frozen(settings, model) if is_vision_recipe else {}
    kind = "" if model is None else model.model_type
    if is_vision_recipe and model is not None and kind not in ENCODER_GROUPS | LANGUAGE_GROUPS:
        _check_longest(settings, model)
    settings.ignore_all_of("freeze_config.")
    return NemoModel(
        options=options | frozen,
        is_wide=is_wide,
        freezes_vision=frozen.get("train_vision") is False,
        sees=is_vision_recipe,
        checkpoints_whole=kind in LANGUAGE_GROUPS or not (is_own or is_vision_recipe),
        checkpoints_vision=kind in ENCODER_GROUPS and frozen.get("train_vision") is not False,
        has_other_lists=kind in OTHER_LISTS,
        is_own=is_own,
    )


def _check_target(settings: Settings) -> None:
    target = settings.text("model._target_", "NeMoAutoModelForCausalLM.from_pretrained").split(".")
    if len(target) < 2 or target[-2] not in AUTO_CLASSES or target[-1] not in LOADERS:
        settings.refuse("model._target_", f"{NOT_PLANNED}; {' and '.join(LOADERS)} of {', '.join(AUTO_CLASSES)} are")


def _is_own(settings: Settings, model: ModelFiles | None) -> bool:
    is_own = not settings.flag("model.force_hf", False) and model is not None and model.model_type in OWN_TYPES
    is_planned = model is not None and (model.model_type in PLANNED_OWN or _is_plain_gemma4(model.config))
    if is_own and model is not None and not is_planned:
        settings.refuse_whole(
            f"the model is of type {model.model_type}, of which {NEMO_AUTOMODEL} has an implementation of its own: "
            f"{NOT_PLANNED}; transformers' is, with model.force_hf: true"
        )
    return is_own


def _is_plain_gemma4(config: Mapping[str, Any]) -> bool:
    text: Mapping[str, Any] = config.get("text_config") or {}
    others = ("num_kv_shared_layers", "enable_moe_block")
    return config.get("model_type") == "gemma4" and bool(text) and not any(text.get(key) for key in others)


def _check_longest(settings: Settings, model: ModelFiles) -> None:
    """The language model has to have the longest list, whose layers run again (``_find_largest_module_list``)."""
    if not settings.is_on("distributed.activation_checkpointing") or not has_family(model.config):
        return
    longest = max(build_model(model.config).stacks(), key=lambda one: len(one[1].pattern))
    if longest[0] is not Part.LANGUAGE:
        settings.refuse("distributed.activation_checkpointing", f"of {model.id} it checkpoints others: {NOT_PLANNED}")


def _is_wide(settings: Settings, model: ModelFiles | None, *, is_own: bool) -> bool:
    """Whether weights are loaded in float32. Of transformers' own models a checkpoint in float32 stays so whatever else
    is asked for (``_restore_loaded_model_dtype`` takes the wider type)."""
    name = settings.text("model.torch_dtype", "auto").removeprefix("torch.")
    if name not in (*TYPES, "auto"):
        settings.refuse("model.torch_dtype", f"{NOT_PLANNED}; auto, bfloat16 and float32 are")
    in_file = _type_of_checkpoint(model)
    if in_file is None and name == "auto":
        settings.note("model.torch_dtype is auto: the checkpoint's type is taken to be bfloat16")
    wide_file = TYPES.get(in_file or "", False)
    return wide_file if name == "auto" else TYPES.get(name, False) or (wide_file and not is_own)


def _type_of_checkpoint(model: ModelFiles | None) -> str | None:
    config: Mapping[str, Any] = {} if model is None else model.config
    text: Any = config.get("text_config")
    places: list[Mapping[str, Any]] = [config, *([text] if isinstance(text, Mapping) else [])]
    found = [place.get(key) for place in places for key in ("dtype", "torch_dtype")]
    return next((one for one in found if isinstance(one, str)), None)


def _attention(settings: Settings) -> AttentionImplementation:
    name = settings.text("model.attn_implementation", "")
    if not name:
        settings.note(
            "model.attn_implementation is not said: planned with sdpa; where flash-attn is installed it is "
            "flash_attention_2"
        )
        return AttentionImplementation.SDPA
    if name not in ATTENTION:
        settings.refuse("model.attn_implementation", f"{NOT_PLANNED}; one of {', '.join(ATTENTION)} is planned")
    return ATTENTION.get(name, AttentionImplementation.SDPA)


def _kernels(settings: Settings, model: ModelFiles | None, *, is_own: bool) -> dict[str, Value]:
    """Liger's are put into transformers' models where that is installed, which it is not by itself."""
    settings.only("model.backend.attn", f"attention of Transformer Engine and others: {NOT_PLANNED}", "sdpa", "te")
    settings.only("model.backend.rms_norm", f"{NOT_PLANNED}; torch_fp32 is", "torch_fp32")
    settings.only("model.backend.rope", f"{NOT_PLANNED}; torch is", "torch")
    settings.only("model.backend.compile_attn", f"attention that is compiled: {NOT_PLANNED}")
    says_liger = "model.use_liger_kernel" in settings
    is_on = settings.flag("model.use_liger_kernel", True)
    if is_own:
        compiles = model is not None and model.model_type in COMPILED_NORMS
        return {"compiled_norms": True} if compiles else {}
    if not is_on:
        return {}
    if not says_liger:
        settings.note(
            "model.use_liger_kernel is not said: planned without Liger's kernels; where liger-kernel is installed "
            "transformers' layers are Liger's"
        )
        return {}
    if model is not None and model.model_type not in LAYER_TYPES:
        settings.refuse("model.use_liger_kernel", f"of {model.model_type} Liger's layers are {NOT_PLANNED}; set false")
        return {}
    return {"liger_layers": True}


def _frozen(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """``apply_parameter_freezing``, which goes by names. Without the section nothing is frozen."""
    if not any(key.startswith("freeze_config.") for key in settings.keys):
        return {}
    if settings.flag("freeze_config.freeze_language_model", False):
        settings.refuse("freeze_config.freeze_language_model", f"a frozen language model: {NOT_PLANNED}")
    if "freeze_config.freeze_embeddings" in settings and settings.flag("freeze_config.freeze_embeddings", False):
        settings.note(
            f"freeze_config.freeze_embeddings is true, but {NEMO_AUTOMODEL} reads it nowhere: embeddings are trained"
        )
    if not settings.flag("freeze_config.freeze_vision_tower", True):
        return {}
    return {"train_vision": False, "train_projector": not _freezes_projector(settings, model)}


def _freezes_projector(settings: Settings, model: ModelFiles | None) -> bool:
    """Whether the projector is inside of what is called so."""
    if model is None or not has_family(model.config):
        return False
    tree = build_model(model.config)
    names = [name for name, _ in tree.named_parameters() if tree.part_of(name) is Part.PROJECTOR]
    frozen = [any(word in name.rpartition(".")[0].lower() for word in FROZEN_NAMES) for name in names]
    if any(frozen) and not all(frozen):
        settings.refuse_whole(f"freeze_config freezes a part of the projector of {model.id}: {NOT_PLANNED}")
    return bool(frozen) and all(frozen)
