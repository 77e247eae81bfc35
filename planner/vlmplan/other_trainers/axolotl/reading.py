"""axolotl's supervised fine-tuning (0.19.0): the YAML of ``axolotl train FILE.yaml``.

Sources: ``utils/config/__init__.py`` (``normalize_config``, ``resolve_dtype``) and ``utils/schemas/`` for what becomes
of keys, ``core/builders/`` for the Trainer's arguments, ``loaders/model.py`` for types.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from vlmplan.data_rules import Order
from vlmplan.model_types.liger import CUT_LOSS_TYPES, FUSED_LOSS_TYPES
from vlmplan.notes import listed
from vlmplan.other_trainers.assembled import assembled
from vlmplan.other_trainers.axolotl.adapters import (
    adapter_options,
    adapters_without_effect,
    double_quant,
    packed_storage,
)
from vlmplan.other_trainers.axolotl.contradictions import refuse_contradictions
from vlmplan.other_trainers.axolotl.keys import (
    ATTENTION_FLAGS,
    CUT_CROSS_ENTROPY,
    DROPPED,
    HARMLESS_PLUGINS,
    LIGER,
    LIGER_LAYERS,
    OF_PLUGINS,
    WITHOUT_EFFECT,
    refuse_techniques,
)
from vlmplan.other_trainers.axolotl.preferences import (
    OF_REWARDS,
    check_kind,
    has_experts,
    preference_options,
    read_pairs,
)
from vlmplan.other_trainers.axolotl.rewards import read_answers, reward_options
from vlmplan.other_trainers.axolotl.runs import derive_runs, evaluates, evaluates_every, num_evaluated
from vlmplan.other_trainers.axolotl.samples import data_rules, samples, sees_images
from vlmplan.other_trainers.axolotl.sharding import SHARDING, derive_fsdp
from vlmplan.other_trainers.batching import axolotl_batching
from vlmplan.other_trainers.evaluated import EvaluationRules, loss_alone, make_logits
from vlmplan.other_trainers.hugging_face import (
    ATTENTION,
    NOT_PLANNED,
    Arguments,
    Defaults,
    attention_option,
    read_arguments,
)
from vlmplan.other_trainers.liger import HEAD_IS_READ
from vlmplan.other_trainers.meaning import ALLOCATOR_VARIABLES, Meaning, Surroundings, sees
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import (
    AttentionImplementation,
    LossKind,
    Method,
    Precision,
    WeightDtype,
)
from vlmplan.workload import ModelFiles

AXOLOTL: Final = "axolotl 0.19.0"
WITH_ITS_DEEPSPEED: Final = (
    "use_reentrant is false: with adapters under ZeRO-3 DeepSpeed before 0.19, which it installs, ends such a run with "
    "torch's CheckpointError; leave gradient_checkpointing_kwargs out"
)
"""As of LLaMA-Factory (``llama_factory/checkpoints.py``)."""
DEFAULTS: Final = Defaults(
    optimizer_tables=True,
    hands_on=False,
    more_schedulers=("one_cycle", "rex"),
    micro_batch=1,
    epochs=1.0,
    bf16=None,
    evaluation=EvaluationRules(
        batch=1,
        runs=evaluates,
        when=evaluates_every,
        on_start=True,
        kept=loss_alone,
        samples=num_evaluated,
        patience="early_stopping_patience",
    ),
)
ATTENTION_NAMES: Mapping[str, AttentionImplementation] = {
    **ATTENTION,
    "kernels-community/flash-attn2": AttentionImplementation.FLASH_ATTENTION_2,
}
LANGUAGE_ALONE: Final = frozenset(("model.language_model.*", "lm_head.*", "lm_head.weight$"))
"""Patterns of ``unfrozen_parameters`` that mean the language model of one that sees."""


def read_axolotl(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What axolotl makes of these keys. Raises InputError with everything that is wrong."""
    around = replace(around, environment=_environment(around))
    kind = check_kind(settings)
    refuse_contradictions(settings)
    derive_runs(settings)
    _derive_precision(settings)
    copies = derive_fsdp(settings, around)
    offloads = _derive_checkpointing(settings)
    arguments = read_arguments(settings, replace(DEFAULTS, loader_workers=_loader_workers(settings, around)))
    _amend(arguments, settings, model)
    method = _method(settings)
    options: dict[str, Value] = {"loss": LossKind.MODEL.value, **_plugins(settings, model), **copies}
    name = settings.text("base_model", "")
    options |= {"model": name} if name else {}
    _derive_attention(settings)
    options |= attention_option(settings, "attn_implementation", ATTENTION_NAMES)
    options |= {} if kind else _rows(settings, model, options.get("attention"))
    options |= _parts(settings, model, method)
    options |= adapter_options(settings, model, around, kind) if method is not Method.FULL else {}
    if kind:
        options |= _task_options(kind, settings, arguments, method, model, around)
    adapters_without_effect(settings)
    options |= _offloaded(settings, offloads, method)
    doubles = double_quant(settings) if method is Method.QLORA else None
    refuse_techniques(settings)
    _refuse_class(settings, model)
    _note_routers(settings, model)
    _ignore(settings)
    meaning = _types(settings, arguments, method, options, casts_back=_casts_back(settings, arguments, around))
    meaning.use_double_quant, meaning.model = doubles, model
    meaning.sharding, meaning.packed_storage = SHARDING, packed_storage(settings)
    if kind:
        return (read_answers if kind in OF_REWARDS else read_pairs)(settings, arguments, meaning, around)
    meaning.data_rules = data_rules(settings, model)
    meaning.is_reentrant = bool(arguments.options.get("activation_checkpointing"))
    meaning.unless_reentrant = WITH_ITS_DEEPSPEED
    return assembled(settings, arguments, meaning, around)


def _ignore(settings: Settings) -> None:
    settings.ignore(WITHOUT_EFFECT | DROPPED | {"processor_type"})
    settings.ignore_all_of(*OF_PLUGINS)
    settings.of_dropped = _of_dropped


def _of_dropped(keys: list[str]) -> str:
    """The note on keys that its schema does not have."""
    are, them = ("is no key", "it") if len(keys) == 1 else ("are no keys", "them")
    return f"{listed(keys)} {are} of {AXOLOTL}, which drops {them} without a word"


def _task_options(
    kind: str,
    settings: Settings,
    arguments: Arguments,
    method: Method,
    model: ModelFiles | None,
    around: Surroundings,
) -> dict[str, Value]:
    if kind in OF_REWARDS:
        return reward_options(settings, arguments, method, model, around)
    return preference_options(settings, arguments, method, model)


def _rows(settings: Settings, model: ModelFiles | None, attention: Value | None) -> dict[str, Value]:
    """How samples as they are become rows."""
    batching = axolotl_batching(settings, attention, sees_images=sees_images(settings, model))
    return {**batching, **samples(settings, model)}


def _environment(around: Surroundings) -> Mapping[str, str]:
    """Where nobody says otherwise it lets the allocator's segments grow (``set_pytorch_cuda_alloc_conf`` in
    ``utils/__init__.py``, of torch 2.9 and later)."""
    environment = dict(around.environment)
    environment.setdefault(ALLOCATOR_VARIABLES[1], "expandable_segments:True")
    return environment


def _derive_precision(settings: Settings) -> None:
    """``bf16: auto``, the default, is true on cards that have it, unless fp16 is on (``resolve_dtype``)."""
    has_fp16 = bool(settings.maybe_flag("fp16"))
    is_null = settings.is_null("bf16")
    said = "false" if is_null else settings.text("bf16", "auto").casefold()
    settings.ignore(("bf16",))
    if said == "auto":
        settings.make("bf16", not has_fp16)
        said = str(not has_fp16).casefold()
    elif is_null:
        settings.make("bf16", False)
    if settings.maybe_flag("bfloat16"):
        settings.make("bf16", True)
        said = "true"
    if said == "true" and has_fp16:
        settings.make("fp16", False)
        settings.note("bf16 and fp16 are both true: axolotl takes bf16")
    if said == "false" and not has_fp16:
        settings.only("float16", f"16-bit weights without autocast: {NOT_PLANNED}; set bf16: true")
    settings.ignore(("float16",))


def _derive_checkpointing(settings: Settings) -> str:
    """What is moved to host memory: ``activation_offloading``, or ``offload`` of ``gradient_checkpointing``, which is
    the same (``check_gradient_checkpointing_w_offload``); empty for nothing."""
    moved = settings.text("activation_offloading", "false").casefold()
    said = settings.text("gradient_checkpointing", "false").casefold()
    if said in ("offload", "offload_disk"):
        settings.make("gradient_checkpointing", True)
        moved = "disk" if said == "offload_disk" else "true"
    return "" if moved == "false" else moved


def _offloaded(settings: Settings, moved: str, method: Method) -> dict[str, Value]:
    """Of a wholly trained model the inputs of checkpointed layers are moved; with adapters everything that is saved is,
    and nothing is checkpointed (``_apply_activation_checkpointing`` in ``loaders/model.py``)."""
    if not moved:
        return {}
    if not settings.flag("gradient_checkpointing", False):
        settings.refuse("activation_offloading", "axolotl takes it with gradient_checkpointing alone")
    elif moved == "disk" or (method is not Method.FULL and moved != "hidden_states"):
        settings.refuse_whole(
            f"activations are moved to {'disk' if moved == 'disk' else 'host memory, and none is computed again'}: "
            f"{NOT_PLANNED}; gradient_checkpointing: true without activation_offloading is planned"
        )
    settings.note(
        "activation_offloading: what the last norm and the head save is counted on the GPU; copies run beside "
        "computation, and are counted as if they did not"
    )
    return {"offload_activations": True}


def _loader_workers(settings: Settings, around: Surroundings) -> int:
    """As many as there are processes, where nothing is said of loaders (``default_dataloader_opts``)."""
    is_said = any(f"dataloader_{name}" in settings for name in ("num_workers", "pin_memory", "prefetch_factor"))
    return 0 if is_said else around.num_gpus or 1


def _method(settings: Settings) -> Method:
    kind = settings.text("adapter", "")
    in_4_bits, in_8_bits = settings.flag("load_in_4bit", False), settings.flag("load_in_8bit", False)
    if kind not in ("", "lora", "qlora"):
        settings.refuse("adapter", f"{NOT_PLANNED}; lora and qlora are planned")
    elif kind == "qlora" and not in_4_bits:
        settings.refuse("adapter", "axolotl takes it with load_in_4bit: true alone")
    elif in_4_bits and kind != "qlora":
        settings.refuse("load_in_4bit", "4-bit weights are loaded for adapter: qlora alone")
    if in_8_bits and kind != "lora":
        settings.refuse("load_in_8bit", "8-bit weights are loaded for adapter: lora alone")
    if kind == "lora":
        return Method.LORA_8BIT if in_8_bits else Method.LORA
    return Method.QLORA if kind else Method.FULL


def _amend(arguments: Arguments, settings: Settings, model: ModelFiles | None) -> None:
    """What keys of its own mean for the arguments of the Trainer, which does not know of Liger's loss."""
    if settings.maybe_flag("curriculum_sampling"):
        arguments.order = Order.SEQUENTIAL
    if not _cuts(settings) and (model is None or model.model_type in FUSED_LOSS_TYPES):
        make_logits(arguments.options)


def _plugins(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """What plugins do to layers and the loss. Without its plugin a key of one is not read."""
    plugins = settings.names("plugins") if "plugins" in settings else []
    for name in plugins:
        if name not in (LIGER, CUT_CROSS_ENTROPY, *HARMLESS_PLUGINS):
            settings.refuse("plugins", f"{name}: {NOT_PLANNED}")
    options = _liger(settings, model) if LIGER in plugins else {}
    settings.ignore_all_of("liger_")
    if _cuts(settings):
        options |= _cut_cross_entropy(settings, model)
    settings.ignore(("cut_cross_entropy",))
    return options


def _cuts(settings: Settings) -> bool:
    return CUT_CROSS_ENTROPY in settings.names("plugins") and settings.flag("cut_cross_entropy", True)


def _cut_cross_entropy(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """``LinearCrossEntropyFunction`` of axolotl's fork of cut-cross-entropy (5f0c7a7 ``cce.py``) makes no logits:
    hidden states and one number a token are kept, and backward makes the gradients of hidden states and head. Liger's
    loss makes these too, and logits of a chunk beside them."""
    if model is not None and model.model_type not in CUT_LOSS_TYPES:
        settings.refuse("plugins", f"cut_cross_entropy of {model.model_type}: {NOT_PLANNED}")
    settings.note(
        "cut_cross_entropy: planned as Liger's fused loss, which beside it makes a chunk of logits, up to twice the "
        "size of the last hidden states"
    )
    return {"loss": LossKind.LIGER.value}


def _liger(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """``LigerPlugin.pre_model_load``: each key is one argument of Liger's function for the model."""
    if "liger_swiglu" in settings:
        settings.make("liger_glu_activation", settings.flag("liger_swiglu", False))
    own_rope = model is not None and model.model_type in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
    on = {key: settings.flag(key, own_rope and key == "liger_rope") for key in LIGER_LAYERS}
    fuses = settings.flag("liger_fused_linear_cross_entropy", False)
    settings.ignore(("liger_layer_norm", "liger_swiglu"))
    if len(set(on.values())) > 1:
        off = ", ".join(key for key, value in on.items() if not value)
        settings.refuse_whole(f"some of Liger's layers without others ({off}): {NOT_PLANNED}")
    if fuses and not all(on.values()):
        settings.note(HEAD_IS_READ)
    return {"liger_layers": all(on.values()), **({"loss": LossKind.LIGER.value} if fuses else {})}


def _derive_attention(settings: Settings) -> None:
    """Older flags, the most special first (``normalize_attn_implementation``)."""
    named = [name for key, name in ATTENTION_FLAGS.items() if settings.maybe_flag(key)]
    if named and "attn_implementation" in settings:
        settings.refuse("attn_implementation", "and an older key of attention is set too; one of the two is needed")
    elif named:
        settings.make("attn_implementation", named[0])


def _parts(settings: Settings, model: ModelFiles | None, method: Method) -> dict[str, Value]:
    """What is trained of a model that sees: all of it, unless ``freeze_mm_modules`` or ``unfrozen_parameters`` say
    otherwise (``load_model_and_tokenizer`` in ``train.py``)."""
    patterns = [name.removeprefix("^") for name in settings.names("unfrozen_parameters")]
    is_language = sees(model) and "model.language_model.*" in patterns and LANGUAGE_ALONE.issuperset(patterns)
    if patterns and not is_language:
        settings.refuse("unfrozen_parameters", f"other parts than the whole language model: {NOT_PLANNED}")
    freezes = bool(settings.maybe_flag("freeze_mm_modules")) or is_language
    if not sees(model) or (not freezes and method is Method.FULL):
        return {}
    return {"train_vision": not freezes, "train_projector": not freezes, "train_language": True}


def _types(
    settings: Settings, arguments: Arguments, method: Method, options: dict[str, Value], *, casts_back: bool
) -> Meaning:
    """Weights are loaded in the type of the computation. Norms and embeddings become float32, and are cast back where
    there are adapters, attention is flash's, or the loss asks for it; FSDP leaves them as they are
    (``_configure_embedding_dtypes``)."""
    meaning = Meaning(trainer=AXOLOTL, method=method, options=options, without_autocast=Precision.FP32)
    meaning.fused_loss_types = CUT_LOSS_TYPES if _cuts(settings) else FUSED_LOSS_TYPES
    precision, is_plain = arguments.precision, arguments.deepspeed is None
    meaning.weights = WeightDtype.FLOAT32 if precision is None else WeightDtype.MODEL
    meaning.casts_zero3_adapters = not settings.flag("peft_autocast_adapter_dtype", True)
    meaning.adapters = "model" if meaning.casts_zero3_adapters else "float32"
    if method is Method.FULL and precision is Precision.FP16 and is_plain:
        settings.refuse_whole("fp16 is set, whose scaled gradients 16-bit weights cannot have; set bf16: true instead")
    if method is Method.LORA_8BIT and precision is None:
        settings.refuse_whole(
            f"without bf16 or fp16 what is not in 8 bits is float16, without autocast: {NOT_PLANNED}; set bf16: true"
        )
    is_flash = options.get("attention") == AttentionImplementation.FLASH_ATTENTION_2.value
    if method is Method.FULL and precision is not None and is_plain and not is_flash and not casts_back:
        settings.refuse_whole(
            f"without flash attention embeddings and norms stay float32 beside 16-bit weights: {NOT_PLANNED}; set "
            f"attn_implementation: flash_attention_2"
        )
    return meaning


def _casts_back(settings: Settings, arguments: Arguments, around: Surroundings) -> bool:
    """Whether norms and embeddings are in the type of the computation whatever attention is."""
    cuts = _cuts(settings)
    if cuts and arguments.precision is None:
        settings.refuse("plugins", "axolotl takes cut_cross_entropy with bf16 or fp16 alone")
    return cuts or arguments.fsdp is not None or around.shards is True


def _refuse_class(settings: Settings, model: ModelFiles | None) -> None:
    """``type_of_model``, or ``model_type``, is the class that is loaded."""
    for key in ("type_of_model", "model_type"):
        name = settings.text(key, "")
        if sees(model) and name and not name.startswith("AutoModel") and "ForConditionalGeneration" not in name:
            settings.refuse(key, f"a part of the model alone: {NOT_PLANNED}")


def _note_routers(settings: Settings, model: ModelFiles | None) -> None:
    """Modules called gate stay float32 (``_convert_embedding_modules_dtype``)."""
    if has_experts(model):
        settings.note("routers of experts that are called gate become float32, which is not counted")
