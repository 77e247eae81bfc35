"""Adapters: on what peft cannot put them, and which of their options have no effect."""

from collections.abc import Set
from functools import lru_cache

from vlmplan.model_types.thinkers import NUMBERED, PATCH_CONVOLUTION, PATCH_CONVOLUTION_TYPES
from vlmplan.models.tree import model_tree
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import ALL_LINEAR, BITS, REGEX, AdapterDtype, LossKind, Method, Precision
from vlmplan.recipe.lora_targets import (
    CLAMPING_TYPES,
    CLASSIFIER,
    CLASSIFYING_TYPES,
    GROUPED_LINEAR,
    INDEXING_TYPES,
    READ_WEIGHT,
    SELECTIVE_TYPES,
    STATE_OUTPUT,
    STEP_PROJECTION,
    TYPES_WITHOUT_OUT_PROJ,
    listed_targets,
    pattern_of,
    stacked_targets,
)
from vlmplan.recipe.settings import ADAPTER_FIELDS, option_name
from vlmplan.rules.base import ModelFacts, RuleBook, RuleContext
from vlmplan.workload import ModelFiles

ADAPTER_RULES = RuleBook()

TYPES_WITH_LINEAR_ROUTERS = frozenset({"llama4", "llama4_text", "phimoe"})
TYPES_OF_EXPERTS_ALONE = frozenset({"mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text"})
EXPERT_NAMES = frozenset({"w1", "w2", "w3", "gate_proj", "up_proj", "down_proj"})
"""What peft takes for weights of their experts, which are in every layer."""
ROUTER = "router"
"""Their name for it."""
UNCALLED = ((CLAMPING_TYPES, READ_WEIGHT), (SELECTIVE_TYPES, STEP_PROJECTION), (CLASSIFYING_TYPES, CLASSIFIER))
"""Types with a Linear that no training step calls, and its name."""
HEADS = ("decoder", "embed_out", "generator_lm_head", "lm_head", "output_projection", "proj_out")
"""What the output head is called in every family: of ModernBERT's decoder, GPT-NeoX Japanese, ELECTRA, most, BioGPT and
Whisper."""


@ADAPTER_RULES.error("vlmplan_trainer: the chunked loss multiplies by the head's own weight and would skip the adapter")
def chunked_loss_has_no_adapter_on_the_head(context: RuleContext) -> str | None:
    recipe = context.recipe
    skips_adapters = recipe.loss in (LossKind.CHUNKED, LossKind.LIGER)
    if not recipe.trains_adapters or not skips_adapters or not recipe.train_language:
        return None
    targets = [name.strip() for name in recipe.lora_targets.split(",")]
    adapted = [name for name in targets if name.rpartition(".")[2] in HEADS]
    if recipe.lora_targets.startswith(REGEX):
        pattern = pattern_of(recipe.lora_targets, "--lora-targets")
        adapted = [recipe.lora_targets] if any(map(pattern.fullmatch, HEADS)) else []
    if not adapted:
        return None
    return (
        f"--lora-targets {adapted[0]} does not go with --loss {recipe.loss.value}, which skips the head's adapter; "
        f"give --loss full"
    )


@ADAPTER_RULES.error("peft tuners/tuners_utils.py _check_lora_target_modules_mamba")
def mamba_has_no_adapter_on_its_output(context: RuleContext) -> str | None:
    model, recipe = _adapted(context, TYPES_WITHOUT_OUT_PROJ), context.recipe
    if model is None or not _adapts(recipe, STATE_OUTPUT, model):
        return None
    return (
        f"--lora-targets {recipe.lora_targets} is refused by peft for {model.id}, on whose {STATE_OUTPUT} it puts no "
        f"adapters; give --lora-exclude {STATE_OUTPUT} with it, or other --lora-targets"
    )


def default_lora_exclude(model: ModelFacts) -> str | None:
    """What adapters on all Linears leave out where the user names neither: layers that peft cannot adapt."""
    named = (
        (TYPES_WITH_LINEAR_ROUTERS, ROUTER),
        (TYPES_WITHOUT_OUT_PROJ, STATE_OUTPUT),
        *UNCALLED,
    )
    names = [name for types, name in named if model.model_types & types]
    if names:
        return ",".join(names)
    if model.model_types & INDEXING_TYPES:
        return ",".join((GROUPED_LINEAR, *model.indexer_linears))
    if model.indexer_linears:
        return ",".join(model.indexer_linears)
    if not model.model_types & PATCH_CONVOLUTION_TYPES:
        return None
    return ",".join((*_numbered(model), PATCH_CONVOLUTION))


def _numbered(model: ModelFacts) -> tuple[str, ...]:
    """Linears whose names are numbers, where they cannot be told from layers; mostly none."""
    return tuple(name for kind in sorted(model.model_types) for name in NUMBERED.get(kind, ()))


@ADAPTER_RULES.error(
    "transformers modeling_llama4.py Llama4Router and modeling_phimoe.py PhimoeTopKRouter: Linears of several results; "
    "peft tuners/lora/layer.py Linear.forward (seen: it fails with LoRA and with QLoRA)"
)
def a_router_of_several_results_stays_as_it_is(context: RuleContext) -> str | None:
    model, recipe = _adapted(context, TYPES_WITH_LINEAR_ROUTERS), context.recipe
    if model is None or recipe.lora_targets != ALL_LINEAR or _leaves_out(recipe, ROUTER):
        return None
    return (
        f"--lora-targets all-linear adapts the router of {model.id}, whose several results peft cannot add to; give "
        f"--lora-exclude router with it, or --lora-targets attention"
    )


@ADAPTER_RULES.warning(
    "transformers modeling_gemma3n.py Gemma3nTextAltUp.correct, modeling_mamba.py MambaMixer.forward, "
    "modeling_longcat_flash.py LongcatFlashTopkRouter.forward: in training they read the weight"
)
def a_layer_that_is_not_called_has_no_adapter(context: RuleContext) -> str | None:
    for types, name in UNCALLED:
        model, recipe = _adapted(context, types), context.recipe
        if model is not None and _adapts(recipe, name, model):
            return (
                f"--lora-targets {recipe.lora_targets} adapts {name} of {model.id}, which no training step calls: "
                f"these adapters stay as they begin, and DDP refuses weights without a gradient; give --lora-exclude "
                f"{name} with it"
            )
    return None


@ADAPTER_RULES.error("peft tuners/lora/layer.py Linear.forward: the adapter is as wide as all groups (seen: it fails)")
def a_projection_in_groups_has_no_adapter(context: RuleContext) -> str | None:
    model, recipe = _adapted(context, INDEXING_TYPES), context.recipe
    if model is None or not _adapts(recipe, GROUPED_LINEAR, model):
        return None
    return (
        f"--lora-targets {recipe.lora_targets} adapts {GROUPED_LINEAR} of {model.id}, a projection in groups of heads "
        f"to which peft cannot add; give --lora-exclude {default_lora_exclude(model)} with it, or --lora-targets "
        f"attention"
    )


@ADAPTER_RULES.warning("transformers modeling_deepseek_v4.py DeepseekV4Indexer.forward: it returns positions (seen)")
def an_indexer_has_no_adapter(context: RuleContext) -> str | None:
    model, recipe = context.model, context.recipe
    if model is None or not recipe.trains_adapters or not model.indexer_linears:
        return None
    if recipe.lora_targets != ALL_LINEAR or _leaves_out(recipe, *model.indexer_linears):
        return None
    return (
        f"--lora-targets all-linear adapts the indexer of {model.id}, to which no gradient comes: these adapters stay "
        f"as they begin, and DDP refuses weights without a gradient; give --lora-exclude "
        f"{default_lora_exclude(model)} with it"
    )


@ADAPTER_RULES.error(
    "peft 0.21 utils/transformers_weight_conversion.py _resolve_string_target_modules: all-linear becomes the last "
    "parts of names where names mean experts too, and 0 is the first layer of every stack (seen: it refuses the layer)"
)
def numbered_linears_have_no_adapters(context: RuleContext) -> str | None:
    model, recipe = context.model, context.recipe
    numbered = () if model is None else _numbered(model)
    excluded = _names(recipe.lora_exclude or "")
    if not recipe.trains_adapters or recipe.lora_targets != ALL_LINEAR or excluded.issuperset(numbered):
        return None
    assert model is not None
    return (
        f"--lora-targets all-linear is refused by peft for {model.id}: it takes the Linears of the mergers by their "
        f"names, {' and '.join(numbered)}, which are those of layers too; give --lora-exclude "
        f"{default_lora_exclude(model)} with it, or --lora-targets attention"
    )


@ADAPTER_RULES.error(
    "deepspeed runtime/zero/parameter_offload.py: weights go with the backward hook of their module, which torch runs "
    "first where no input needs a gradient; the gradient of a stack's adapter is then copied to a shape of none (seen)"
)
def sharded_adapters_of_experts_alone_have_no_gradient(context: RuleContext) -> str | None:
    model, recipe = context.model, context.recipe
    if model is None or not recipe.trains_adapters or recipe.zero_stage != 3 or recipe.train_embeddings:
        return None
    names = set(listed_targets(recipe.lora_targets))
    of_experts = set(stacked_targets(recipe.lora_targets))
    if model.model_types & TYPES_OF_EXPERTS_ALONE:
        of_experts |= names & EXPERT_NAMES
    if recipe.lora_targets.startswith(REGEX) or not names or names != of_experts:
        return None
    return (
        f"--lora-targets {recipe.lora_targets} under --zero-stage 3 ends in the first backward: what goes into the "
        f"first experts of {model.id} needs no gradient, and DeepSpeed takes their adapters away before theirs is "
        f"added; name a projection of attention too, such as q_proj, or give --zero-stage 2"
    )


@ADAPTER_RULES.error(
    "peft 0.21 tuners/lora/layer.py _ConvNd: it counts the dimensions of the kernel, of which ZeRO-3 leaves one (seen)"
)
def a_sharded_convolution_has_no_adapter(context: RuleContext) -> str | None:
    model, recipe = _adapted(context, PATCH_CONVOLUTION_TYPES), context.recipe
    if model is None or recipe.zero_stage != 3 or recipe.lora_targets != ALL_LINEAR or not recipe.train_vision:
        return None
    if any(_leaves_out(recipe, name) for name in (PATCH_CONVOLUTION, PATCH_CONVOLUTION.rpartition(".")[2])):
        return None
    return (
        f"--lora-targets all-linear means {PATCH_CONVOLUTION} of {model.id} too, a convolution that peft cannot adapt "
        f"where ZeRO-3 has sharded it; give --lora-exclude {default_lora_exclude(model)} with it, or --freeze-vision"
    )


@ADAPTER_RULES.error("vlmplan: full fine-tuning adds no adapters, and its language model includes the embeddings")
def adapter_options_need_adapters(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.method is not Method.FULL:
        return None
    named = [name for name in ADAPTER_FIELDS if name in context.given]
    if recipe.train_embeddings and "train_embeddings" not in named:
        named.append("train_embeddings")
    if not named:
        return None
    return f"{option_name(named[0])} is for --method lora, lora-8bit and qlora, but --method is full"


@ADAPTER_RULES.error(
    "peft 0.21 tuners/lora/layer.py pissa_init: 'Please initialize PiSSA under float32, float16, or bfloat16'; "
    "olora_init packs what is left anew and keeps its whole R"
)
def packed_weights_are_not_taken_apart(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.method.packs_weights or not recipe.changes_base:
        return None
    return (
        f"--lora-init {recipe.lora_init} takes adapters out of the weights, which --method {recipe.method.value} has "
        f"packed in {BITS[recipe.method]} bit; give --method lora, or --lora-init default"
    )


@ADAPTER_RULES.error("deepspeed runtime/engine.py _cast_module_mixed_precision: every weight becomes 16 bit (seen)")
def float32_adapters_are_of_plain_pytorch(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.adapter_dtype is not AdapterDtype.FLOAT32 or recipe.can_autocast or recipe.precision is Precision.FP32:
        return None
    if recipe.keeps_adapters_wide:
        return None
    if recipe.uses_deepspeed:
        return (
            f"--adapter-dtype float32 has no effect under ZeRO-{recipe.zero_stage}, which casts every weight to 16 bit "
            f"and updates float32 copies of trained ones; leave it off, or give --zero-stage none or 3"
        )
    return (
        "--adapter-dtype float32 does not go with --precision bf16-pure, which trains in 16 bit; "
        "give --precision bf16, with --no-autocast if that is meant"
    )


@ADAPTER_RULES.error("deepspeed runtime/zero/utils.py defragment: trained shards of one rank have one type (seen)")
def wide_adapters_have_no_narrow_weights_beside_them(context: RuleContext) -> str | None:
    recipe = context.recipe
    beside = [name for name in ("train_embeddings", "full_vision", "full_projector") if getattr(recipe, name)]
    if not recipe.keeps_adapters_wide or not beside or recipe.copy_dtype is recipe.trained_dtype:
        return None
    what = "peft's copies of embeddings are" if beside[0] == "train_embeddings" else "those of the model are"
    in_files = "modules_to_save" if beside[0] == "train_embeddings" else "a part that is not frozen"
    return (
        f"--adapter-dtype float32, as peft makes adapters, does not go with {option_name(beside[0])} (in a file: "
        f"{in_files}) under ZeRO-3, whose trained weights are of one type, and {what} 16 bit; leave one of them off, "
        f"or take ZeRO-2"
    )


@ADAPTER_RULES.error("vlmplan: a part is trained in full or not at all")
def a_frozen_part_is_not_trained_in_full(context: RuleContext) -> str | None:
    recipe = context.recipe
    for part in ("vision", "projector"):
        if getattr(recipe, f"full_{part}") and not getattr(recipe, f"train_{part}"):
            return f"--full-{part} does not go with --freeze-{part}; leave one of them off"
    return None


def _adapted(context: RuleContext, types: Set[str]) -> ModelFacts | None:
    """The model, where it is of one of these types and gets adapters."""
    model = context.model
    return model if model is not None and model.model_types & types and context.recipe.trains_adapters else None


def _adapts(recipe: Recipe, name: str, model: ModelFacts) -> bool:
    """Whether adapters are put on Linears whose name is ``name`` or ends in it, as all Linears, because they are named
    or because a regular expression means one."""
    targets = recipe.lora_targets
    if _leaves_out(recipe, name):
        return False
    if targets.startswith(REGEX):
        return model.files is not None and name in _meant(model.files, targets)
    return targets == ALL_LINEAR or name in _last_parts(targets)


@lru_cache(maxsize=16)
def _meant(files: ModelFiles, targets: str) -> frozenset[str]:
    """The last parts of the names of what a regular expression means."""
    pattern = pattern_of(targets, option_name("lora_targets"))
    modules = {entry.name.rpartition(".")[0] for entry in model_tree(files).parameters()}
    return frozenset(name.rpartition(".")[2] for name in modules if pattern.fullmatch(name))


def _leaves_out(recipe: Recipe, *names: str) -> bool:
    """Whether ``--lora-exclude`` has every one of ``names``, alone or as the last part of a longer name. A regular
    expression is taken to: whoever writes one knows the model."""
    excluded = recipe.lora_exclude or ""
    return excluded.startswith(REGEX) or (_names(excluded) | _last_parts(excluded)).issuperset(names)


def _names(text: str) -> set[str]:
    """The names between commas."""
    return {name.strip() for name in text.split(",")}


def _last_parts(text: str) -> set[str]:
    """The last part of each name between commas."""
    return {name.rpartition(".")[2] for name in _names(text)}
