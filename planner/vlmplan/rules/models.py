"""Attention, loss, adapters and batch: what cannot be combined with a model or a method."""

from vlmplan.evaluation import Kept
from vlmplan.lora_targets import (
    CLAMPING_TYPES,
    GROUPED_LINEAR,
    INDEXER_LINEARS,
    INDEXING_TYPES,
    READ_WEIGHT,
    STATE_OUTPUT,
    TYPES_WITHOUT_OUT_PROJ,
    pattern_of,
)
from vlmplan.recipe_choices import (
    ALL_LINEAR,
    REGEX,
    AdapterDtype,
    AttentionImplementation,
    LossKind,
    Method,
    Precision,
    WeightDtype,
)
from vlmplan.recipe_settings import option_name
from vlmplan.rules.base import ModelFacts, RuleBook, RuleContext
from vlmplan.thinkers import NUMBERED, PATCH_CONVOLUTION
from vlmplan.units import DType

MODEL_RULES = RuleBook()

TYPES_WITHOUT_SDPA = frozenset({"deepseek_v4", "gemma2", "gpt_oss", "mamba2"})
TYPES_WITHOUT_FLASH_ATTENTION = frozenset(
    {"blip-2", "deepseek_v4", "gemma3n", "gpt_oss", "lfm2_vl", "llama4", "llama4_text", "mamba2", "mllama"}
)
"""deepseek_v4: its heads are wider than the kernels take. gpt_oss: transformers puts kernels that it downloads in the
place of every other flash implementation. gemma3n and lfm2_vl: the class of the tower refuses it."""
TYPES_WITH_A_ROUTER_OF_TWO_RESULTS = frozenset({"llama4", "llama4_text"})
ROUTER = "router"
"""Their name for it."""
HEAD = "lm_head"
"""The output head's name in every family."""
ADAPTER_OPTIONS = (
    *("lora_rank", "lora_targets", "lora_exclude", "lora_alpha", "lora_dropout", "use_rslora", "use_dora"),
    *("lora_init", "loraplus_lr_ratio", "adapter_dtype", "train_embeddings"),
)


def attention_implementations(model: ModelFacts) -> tuple[AttentionImplementation, ...]:
    """What transformers takes for the model, the fastest first; what a card supports is another question."""
    refused = {
        AttentionImplementation.SDPA: TYPES_WITHOUT_SDPA,
        AttentionImplementation.FLASH_ATTENTION_2: TYPES_WITHOUT_FLASH_ATTENTION,
    }
    order = (AttentionImplementation.FLASH_ATTENTION_2, AttentionImplementation.SDPA, AttentionImplementation.EAGER)
    if model.attention is not None:
        return tuple(kind for kind in order if kind.value in model.attention)
    return tuple(kind for kind in order if not refused.get(kind, frozenset()) & model.model_types)


def default_attention(model: ModelFacts) -> AttentionImplementation:
    """sdpa, or eager for the models to which transformers refuses it."""
    known = attention_implementations(model)
    return AttentionImplementation.SDPA if AttentionImplementation.SDPA in known else AttentionImplementation.EAGER


@MODEL_RULES.error("transformers modeling_utils.py _sdpa_can_dispatch, _flash_attn_can_dispatch (seen)")
def attention_is_one_the_model_has(context: RuleContext) -> str | None:
    model, attention = context.model, context.recipe.attention
    if model is None:
        return None
    known = attention_implementations(model)
    if attention in known:
        return None
    return (
        f"--attention {attention.value} is refused by transformers for {model.id}; "
        f"give --attention {' or '.join(kind.value for kind in reversed(known))}"
    )


DEQUANTISED = {"mxfp4": "MXFP4", "fp8": "FP8"}
"""What checkpoints may be packed with that are trained all the same, in 16 bits."""
BITSANDBYTES = "bitsandbytes"


@MODEL_RULES.error("transformers quantizers/auto.py merge_quantization_configs: a checkpoint's own method stays")
def packed_checkpoints_are_not_quantised_again(context: RuleContext) -> str | None:
    model = context.model
    if model is None or context.recipe.method is not Method.QLORA or model.quant_method not in DEQUANTISED:
        return None
    return (
        f"--method qlora is refused by transformers for {model.id}, whose checkpoint is quantised to "
        f"{DEQUANTISED[model.quant_method]} already; give --method lora, or a folder with its weights in bfloat16"
    )


@MODEL_RULES.error("transformers quantizers/: how each method's weights are held and trained; NF4 is planned (seen)")
def packed_checkpoints_are_known(context: RuleContext) -> str | None:
    model = context.model
    if model is None or model.quant_method is None or model.quant_method in DEQUANTISED:
        return None
    if model.quant_method == BITSANDBYTES:
        if context.recipe.method is Method.QLORA:
            return None
        return (
            f"the checkpoint of {model.id} is in 4 or 8 bits of bitsandbytes, but --method is "
            f"{context.recipe.method.value}; give --method qlora, or the model's checkpoint in 16 bits"
        )
    return (
        f"the checkpoint of {model.id} is quantised with {model.quant_method}, and training on that is not planned; "
        f"give the model's checkpoint in 16 bits, with --method qlora for 4-bit weights"
    )


@MODEL_RULES.warning("arithmetic: float16 ends at 65,504; config.json says the weights were trained in bfloat16")
def fp16_may_overflow(context: RuleContext) -> str | None:
    model = context.model
    if model is None or model.weights_dtype != "bfloat16" or context.recipe.precision is not Precision.FP16:
        return None
    return (
        f"--precision fp16: {model.id} was trained in bfloat16, whose range is wider; activations may overflow, "
        f"so watch the loss scale"
    )


@MODEL_RULES.error("vlmplan_trainer: the chunked loss multiplies by the head's own weight and would skip the adapter")
def chunked_loss_has_no_adapter_on_the_head(context: RuleContext) -> str | None:
    recipe = context.recipe
    skips_adapters = recipe.loss in (LossKind.CHUNKED, LossKind.LIGER)
    if not recipe.trains_adapters or not skips_adapters or not recipe.train_language:
        return None
    targets = [name.strip() for name in recipe.lora_targets.split(",")]
    adapted = [name for name in targets if name.rpartition(".")[2] == HEAD]
    if recipe.lora_targets.startswith(REGEX):
        adapted = [recipe.lora_targets] if pattern_of(recipe.lora_targets, "--lora-targets").fullmatch(HEAD) else []
    if not adapted:
        return None
    return (
        f"--lora-targets {adapted[0]} does not go with --loss {recipe.loss.value}, which skips the head's adapter; "
        f"give --loss full"
    )


@MODEL_RULES.error("peft tuners/tuners_utils.py _check_lora_target_modules_mamba")
def mamba_has_no_adapter_on_its_output(context: RuleContext) -> str | None:
    model, recipe = context.model, context.recipe
    if model is None or not recipe.trains_adapters or not model.model_types & TYPES_WITHOUT_OUT_PROJ:
        return None
    targets, excluded = recipe.lora_targets, recipe.lora_exclude or ""
    is_left_out = STATE_OUTPUT in _last_parts(excluded) or excluded.startswith(REGEX)
    if is_left_out or (targets != ALL_LINEAR and STATE_OUTPUT not in _last_parts(targets)):
        return None
    return (
        f"--lora-targets {targets} is refused by peft for {model.id}, on whose {STATE_OUTPUT} it puts no adapters; "
        f"give --lora-exclude {STATE_OUTPUT} with it, or other --lora-targets"
    )


def default_lora_exclude(model: ModelFacts) -> str | None:
    """What adapters on all Linears leave out where the user names neither: layers that peft cannot adapt."""
    without_output = (TYPES_WITHOUT_OUT_PROJ, STATE_OUTPUT)
    for types, name in ((TYPES_WITH_A_ROUTER_OF_TWO_RESULTS, ROUTER), without_output, (CLAMPING_TYPES, READ_WEIGHT)):
        if model.model_types & types:
            return name
    if model.model_types & INDEXING_TYPES:
        return ",".join((GROUPED_LINEAR, *(INDEXER_LINEARS if model.has_indexer else ())))
    numbered = _numbered(model)
    return ",".join((*numbered, PATCH_CONVOLUTION)) if numbered else None


def _numbered(model: ModelFacts) -> tuple[str, ...]:
    """Linears whose names are numbers, where they cannot be told from layers; mostly none."""
    return tuple(name for kind in sorted(model.model_types) for name in NUMBERED.get(kind, ()))


@MODEL_RULES.error(
    "transformers modeling_llama4.py Llama4Router: a Linear of two results; peft tuners/lora/layer.py Linear.forward "
    "(seen: it fails with LoRA and with QLoRA)"
)
def a_router_of_two_results_stays_as_it_is(context: RuleContext) -> str | None:
    model, recipe = context.model, context.recipe
    if model is None or not recipe.trains_adapters or not model.model_types & TYPES_WITH_A_ROUTER_OF_TWO_RESULTS:
        return None
    excluded = _last_parts(recipe.lora_exclude or "")
    if recipe.lora_targets != ALL_LINEAR or ROUTER in excluded or (recipe.lora_exclude or "").startswith(REGEX):
        return None
    return (
        f"--lora-targets all-linear adapts the router of {model.id}, whose two results peft cannot add to; give "
        f"--lora-exclude router with it, or --lora-targets attention"
    )


@MODEL_RULES.warning("transformers modeling_gemma3n.py Gemma3nTextAltUp.correct: in training it reads the weight")
def a_layer_that_is_not_called_has_no_adapter(context: RuleContext) -> str | None:
    model, recipe = context.model, context.recipe
    if model is None or not recipe.trains_adapters or not model.model_types & CLAMPING_TYPES:
        return None
    excluded = _last_parts(recipe.lora_exclude or "")
    if recipe.lora_targets != ALL_LINEAR or READ_WEIGHT in excluded or (recipe.lora_exclude or "").startswith(REGEX):
        return None
    return (
        f"--lora-targets all-linear adapts {READ_WEIGHT} of {model.id}, which no training step calls: these adapters "
        f"stay as they begin, and DDP refuses weights without a gradient; give --lora-exclude {READ_WEIGHT} with it"
    )


@MODEL_RULES.error("peft tuners/lora/layer.py Linear.forward: the adapter is as wide as all groups (seen: it fails)")
def a_projection_in_groups_has_no_adapter(context: RuleContext) -> str | None:
    model, recipe = context.model, context.recipe
    if model is None or not recipe.trains_adapters or not model.model_types & INDEXING_TYPES:
        return None
    targets, excluded = (_last_parts(text) for text in (recipe.lora_targets, recipe.lora_exclude or ""))
    is_adapted = recipe.lora_targets == ALL_LINEAR or GROUPED_LINEAR in targets
    if not is_adapted or GROUPED_LINEAR in excluded or (recipe.lora_exclude or "").startswith(REGEX):
        return None
    return (
        f"--lora-targets {recipe.lora_targets} adapts {GROUPED_LINEAR} of {model.id}, a projection in groups of heads "
        f"to which peft cannot add; give --lora-exclude {default_lora_exclude(model)} with it, or --lora-targets "
        f"attention"
    )


@MODEL_RULES.warning("transformers modeling_deepseek_v4.py DeepseekV4Indexer.forward: it returns positions (seen)")
def an_indexer_has_no_adapter(context: RuleContext) -> str | None:
    model, recipe = context.model, context.recipe
    if model is None or not recipe.trains_adapters or not model.has_indexer:
        return None
    excluded = _names(recipe.lora_exclude or "")
    if recipe.lora_targets != ALL_LINEAR or excluded.issuperset(INDEXER_LINEARS):
        return None
    if (recipe.lora_exclude or "").startswith(REGEX):
        return None
    return (
        f"--lora-targets all-linear adapts the indexer of {model.id}, to which no gradient comes: these adapters stay "
        f"as they begin, and DDP refuses weights without a gradient; give --lora-exclude "
        f"{default_lora_exclude(model)} with it"
    )


def _names(text: str) -> set[str]:
    """Those between commas."""
    return {name.strip() for name in text.split(",")}


def _last_parts(text: str) -> set[str]:
    """The last part of each name between commas."""
    return {name.rpartition(".")[2] for name in _names(text)}


@MODEL_RULES.error(
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


@MODEL_RULES.error("vlmplan: full fine-tuning adds no adapters, and its language model includes the embeddings")
def adapter_options_need_adapters(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.method is not Method.FULL:
        return None
    named = [name for name in ADAPTER_OPTIONS if name in context.given]
    if recipe.train_embeddings and "train_embeddings" not in named:
        named.append("train_embeddings")
    if not named:
        return None
    return f"{option_name(named[0])} is for --method lora and qlora, but --method is full"


@MODEL_RULES.error(
    "peft 0.21 tuners/lora/layer.py pissa_init: 'Please initialize PiSSA under float32, float16, or bfloat16'; "
    "olora_init packs what is left anew and keeps its whole R"
)
def packed_weights_are_not_taken_apart(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.method is not Method.QLORA or not recipe.changes_base:
        return None
    return (
        f"--lora-init {recipe.lora_init} takes adapters out of the weights, which --method qlora has packed in 4 bit; "
        f"give --method lora, or --lora-init default"
    )


@MODEL_RULES.error("deepspeed runtime/engine.py _cast_module_mixed_precision: every weight becomes 16 bit (seen)")
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


@MODEL_RULES.error("torch amp/grad_scaler.py unscale_: 'Attempting to unscale FP16 gradients.' (seen)")
def fp16_gradients_cannot_be_unscaled(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.precision is not Precision.FP16 or recipe.uses_deepspeed:
        return None
    if not recipe.trains_adapters:
        return (
            "--weight-dtype model does not go with --precision fp16, which needs float32 gradients in plain PyTorch; "
            "give --precision bf16, or leave it off"
            if recipe.trained_dtype is DType.FLOAT16
            else None
        )
    has_copies = recipe.train_embeddings and recipe.copy_dtype is DType.FLOAT16
    if recipe.trained_dtype is DType.FLOAT32 and not has_copies:
        return None
    what = "trained copies of embeddings" if recipe.trained_dtype is DType.FLOAT32 else "adapters"
    return (
        f"--precision fp16 needs float32 gradients in plain PyTorch, but {what} would be float16; give --precision "
        f"bf16, or leave --adapter-dtype {recipe.adapter_dtype.value} off"
    )


@MODEL_RULES.error(
    "deepspeed runtime/engine.py _cast_module_mixed_precision; arithmetic: other precisions have one type"
)
def weight_types_are_of_autocast(context: RuleContext) -> str | None:
    recipe = context.recipe
    kind = recipe.weight_dtype
    if kind is WeightDtype.TABLE:
        return None
    if recipe.uses_deepspeed and kind is WeightDtype.MODEL:
        return f"--weight-dtype {kind.value} has no effect under DeepSpeed, which casts every weight; leave it off"
    computes_in_one = recipe.precision in (Precision.FP32, Precision.BF16_PURE)
    if computes_in_one or (recipe.autocast is None and not recipe.uses_deepspeed):
        return (
            f"--weight-dtype {kind.value} is for --precision bf16 and fp16 with autocast or DeepSpeed: elsewhere all "
            f"weights have one type, which --precision fp32 or bf16-pure names; leave it off"
        )
    if kind is WeightDtype.MODEL and recipe.trains_adapters:
        return (
            f"--weight-dtype model is for --method full, but --method is {recipe.method.value}, whose own weights are "
            f"in the model's type anyway; leave it off, or say --adapter-dtype model"
        )
    return None


@MODEL_RULES.error("torch: a product of float32 and 16-bit matrices is refused (seen)")
def without_autocast_all_but_adapters_has_one_type(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.uses_autocast or not recipe.can_autocast:
        return None
    if not recipe.trains_adapters:
        return (
            "--no-autocast does not go with --method full, whose trained weights are float32 beside 16-bit ones; "
            "give --precision bf16-pure, or fp32"
        )
    if recipe.upcasts_frozen:
        return (
            "--no-autocast does not go with --kbit-upcast, whose float32 weights would be multiplied with 16-bit ones; "
            "give --no-kbit-upcast"
        )
    return None


@MODEL_RULES.error("vlmplan_trainer evaluates for the loss alone; its chunked loss makes no logits")
def kept_logits_are_made(context: RuleContext) -> str | None:
    recipe = context.recipe
    evaluation = recipe.evaluation
    if evaluation is None or evaluation.kept is Kept.LOSS or recipe.loss is not LossKind.CHUNKED:
        return None
    return (
        f"--eval-keeps {evaluation.kept.value} does not go with --loss chunked, which never has all logits; "
        f"give --loss model, as Hugging Face's Trainer makes them"
    )


@MODEL_RULES.error("deepspeed runtime/config.py _batch_assertion")
def batch_is_the_product(context: RuleContext) -> str | None:
    recipe, num_gpus, global_batch = context.recipe, context.num_gpus, context.global_batch
    if num_gpus is None or global_batch is None:
        return None
    product = recipe.samples_per_step(num_gpus)
    if product == global_batch:
        return None
    shared = f" / --sequence-parallel {recipe.sequence_parallel}" if recipe.sequence_parallel > 1 else ""
    return (
        f"--global-batch is {global_batch}, but {num_gpus} GPU(s){shared} x --micro-batch {recipe.micro_batch} x "
        f"--grad-accum {recipe.grad_accum} are {product}"
    )
