"""Attention, checkpoints, types of weights, loss and batch: what cannot be combined with a model or a method."""

from vlmplan.architecture.attention_backend import LARGE_HEAD_DIM
from vlmplan.model_types.encoder_decoder import OWN_LOSS_TYPES
from vlmplan.recipe.choices import (
    SEARCHED_LOSSES,
    AttentionImplementation,
    LossKind,
    Method,
    Precision,
    WeightDtype,
)
from vlmplan.recipe.evaluation import Kept
from vlmplan.recipe.libraries import PLANNED_TRANSFORMERS, TransformersVersion
from vlmplan.rules.base import ModelFacts, RuleBook, RuleContext
from vlmplan.units import DType
from vlmplan.workload import BITSANDBYTES

MODEL_RULES = RuleBook()

TYPES_WITHOUT_SDPA = frozenset(
    """bloom codegen deepseek_v4 falcon_mamba flint gemma2 got_ocr2 gpt_neo gpt_neox_japanese gpt_oss gptj granite_swa
    granitemoe_swa mamba mamba2 megatron-bert mimo_v2_flash mpt openai-gpt pp_chart2table rembert roformer vaultgemma
    xglm""".split()
)
TYPES_WITHOUT_FLASH_ATTENTION: frozenset[str] = frozenset(
    """axk2 blip-2 bloom codegen deepseek_ocr2 deepseek_v32 deepseek_v4 deepseek_vl_hybrid doge falcon_mamba
    fast_vlm flint gemma3n glm_moe_dsa got_ocr2 gpt_neox_japanese gpt_oss granite_swa granitemoe_swa lfm2_vl llama4
    llama4_text mamba mamba2 megatron-bert mimo_v2_flash mllama mpt openai-gpt pp_chart2table qwen4_exp qwen4_exp_text
    rembert roformer xglm""".split()
)
"""deepseek_v4: its heads are wider than the kernels take. gpt_oss, Flint, Granite SWA and MiMo: transformers puts
kernels that it downloads in the place of every other flash implementation. deepseek_ocr2, deepseek_vl_hybrid,
fast_vlm, gemma3n and lfm2_vl: the class of the tower refuses it."""
GPTJ_TYPES = frozenset({"codegen", "gptj"})
"""Which take both from 5.24 on."""
TYPES_WHOSE_IMAGES_SEE_THEMSELVES = frozenset({"gemma3", "gemma4", "gemma4_unified", "paligemma"})
"""By a mask that flash attention drops."""
LATENT_TYPES = frozenset(
    """axk1 axk2 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 dots3_note_text glm4_moe_lite glm5_next_text
    glm_moe_dsa hy_v4 kimi_linear longcat_flash minicpm3 mistral4 mistral_large4_text sarvam_mla youtu""".split()
)
"""Whose ``kv_b_proj`` gets latents of one head, four axes (``expand_kv``)."""
TYING_TYPES = frozenset({"zamba", "zamba2"})
"""Of which several layers have Linears with one weight."""
THREE_AXES_TYPES = frozenset({"ernie4_5_vl_moe", "glm4v_moe"})
"""Whose layers get positions of three axes, which flash attention looks at."""
SAM_TYPES = frozenset({"deepseek_ocr2", "deepseek_vl_hybrid", "got_ocr2", "pp_chart2table"})
"""Whose tower gives its Linears rows and columns of patches, four axes."""
FLASH_CAPABILITY = (8, 0)
"""The compute capability from which on torch has a flash kernel, which alone takes grouped heads."""


def attention_implementations(
    model: ModelFacts, release: TransformersVersion = PLANNED_TRANSFORMERS
) -> tuple[AttentionImplementation, ...]:
    """What transformers takes for the model, the fastest first; what a card supports is another question."""
    types = model.model_types - GPTJ_TYPES if release.shares_gptj_positions else model.model_types
    without_flash = TYPES_WITHOUT_FLASH_ATTENTION
    if release.refuses_flash_with_masks:
        without_flash |= TYPES_WHOSE_IMAGES_SEE_THEMSELVES
    refused: dict[AttentionImplementation, frozenset[str]] = {
        AttentionImplementation.SDPA: TYPES_WITHOUT_SDPA,
        AttentionImplementation.FLASH_ATTENTION_2: without_flash,
    }
    order = (AttentionImplementation.FLASH_ATTENTION_2, AttentionImplementation.SDPA, AttentionImplementation.EAGER)
    has_flash = not model.is_encoder_decoder and model.widest_head <= LARGE_HEAD_DIM  # see rules.encoder_decoder
    order = order if has_flash else order[1:]
    if model.attention is not None:
        return tuple(kind for kind in order if kind.value in model.attention)
    return tuple(kind for kind in order if not refused.get(kind, frozenset()) & types)


def default_attention(
    model: ModelFacts, release: TransformersVersion = PLANNED_TRANSFORMERS
) -> AttentionImplementation:
    """sdpa, or eager for the models to which transformers refuses it."""
    known = attention_implementations(model, release)
    return AttentionImplementation.SDPA if AttentionImplementation.SDPA in known else AttentionImplementation.EAGER


def losses(model: ModelFacts) -> tuple[LossKind, ...]:
    """What a search chooses from for the model; the last, which takes least memory, is the default."""
    has_own = model.is_encoder_decoder and model.model_type in OWN_LOSS_TYPES
    return (LossKind.MODEL,) if has_own else SEARCHED_LOSSES


@MODEL_RULES.error("transformers modeling_utils.py _sdpa_can_dispatch, _flash_attn_can_dispatch (seen)")
def attention_is_one_the_model_has(context: RuleContext) -> str | None:
    model, attention = context.model, context.recipe.attention
    if model is None:
        return None
    known = attention_implementations(model, context.recipe.transformers_version)
    if attention in known:
        return None
    if attention is AttentionImplementation.FLASH_ATTENTION_2 and model.widest_head > LARGE_HEAD_DIM:
        return (
            f"--attention flash_attention_2 takes attention heads of at most {LARGE_HEAD_DIM}; "
            f"those of this model are {model.widest_head} wide: give --attention sdpa"
        )
    return (
        f"--attention {attention.value} is refused by transformers for {model.id}; "
        f"give --attention {' or '.join(kind.value for kind in reversed(known))}"
    )


@MODEL_RULES.warning("torch sdp_utils.cpp: flash needs 8.0, the efficient kernel takes no grouped heads; attention.cpp")
def grouped_heads_have_no_fused_kernel_before_ampere(context: RuleContext) -> str | None:
    model, gpu, recipe = context.model, context.gpu, context.recipe
    if model is None or gpu is None or gpu.compute_capability is None or gpu.compute_capability >= FLASH_CAPABILITY:
        return None
    is_text_alone = len(model.model_types) == 1
    if not is_text_alone or model.has_windows or model.num_heads == model.num_kv_heads:
        return None
    if recipe.attention is not AttentionImplementation.SDPA or recipe.precision is Precision.FP32:
        return None
    return (
        f"--attention sdpa: torch has no fused kernel for the grouped heads of {model.id} on "
        f"{gpu.name}{context.capability_text} and computes attention in float32; --attention eager takes less time, "
        f"but its scores in 16 bit may overflow"
    )


@MODEL_RULES.error("transformers modeling_utils.py: gradient_checkpointing is an attribute of the models that have it")
def layers_run_again_where_the_model_can(context: RuleContext) -> str | None:
    model = context.model
    if model is None or model.can_checkpoint or not context.recipe.activation_checkpointing:
        return None
    return f"transformers has no activation checkpointing for {model.id}; give --no-activation-checkpointing"


@MODEL_RULES.error("bitsandbytes 0.50 autograd/_functions.py MatMul8bitLt: flattens inputs of three axes alone (seen)")
def inputs_of_eight_bit_products_are_flattened(context: RuleContext) -> str | None:
    model = context.model
    if model is None or context.recipe.method is not Method.LORA_8BIT:
        return None
    is_latent = bool(model.model_types & LATENT_TYPES)
    if not is_latent and not model.model_types & SAM_TYPES:
        return None
    whose = "kv_b_proj" if is_latent else "Linears of the vision tower"
    return (
        f"--method lora-8bit does not go with {model.id}: transformers gives inputs of four axes to its {whose}, and "
        f"bitsandbytes takes outliers out of inputs of two or three; give --method lora or qlora"
    )


@MODEL_RULES.error("bitsandbytes 0.50 nn/modules.py Linear8bitLt.init_8bit_state: empties the weight it shares (seen)")
def weights_of_eight_bits_have_one_linear(context: RuleContext) -> str | None:
    model = context.model
    if model is None or context.recipe.method is not Method.LORA_8BIT or not model.model_types & TYING_TYPES:
        return None
    return (
        f"--method lora-8bit does not go with {model.id}: several of its layers share a weight, whose scales "
        f"bitsandbytes hands to the first Linear that uses it; give --method lora or qlora"
    )


DEQUANTISED = {"mxfp4": "MXFP4", "fp8": "FP8"}
"""What checkpoints may be packed with that are trained all the same, in 16 bits."""


@MODEL_RULES.error("transformers quantizers/auto.py merge_quantization_configs: a checkpoint's own method stays")
def packed_checkpoints_are_not_quantised_again(context: RuleContext) -> str | None:
    model = context.model
    if model is None or not context.recipe.method.packs_weights or model.quant_method not in DEQUANTISED:
        return None
    return (
        f"--method {context.recipe.method.value} is refused by transformers for {model.id}, whose checkpoint is "
        f"quantised to {DEQUANTISED[model.quant_method]} already; give --method lora, or a folder with its weights "
        f"in bfloat16"
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


@MODEL_RULES.warning("transformers modeling_glm4v_moe.py: layers get positions of 3 axes; _is_packed_sequence (seen)")
def positions_of_three_axes_are_taken_for_a_packed_row(context: RuleContext) -> str | None:
    model, recipe = context.model, context.recipe
    uses_flash = recipe.attention is AttentionImplementation.FLASH_ATTENTION_2
    if model is None or not THREE_AXES_TYPES & model.model_types or not uses_flash or recipe.micro_batch > 1:
        return None
    return (
        f"--attention flash_attention_2 with --micro-batch 1: transformers takes the positions of {model.id}, of "
        f"three axes, for those of a packed row three times as long, so that attention reads beyond its tensors; give "
        f"--attention sdpa, or --micro-batch 2 or more"
    )


PIXEL_EFFECTS = {
    "ernie4_5_vl_moe": "and little is left of what they show",
    "muse_glimmer": "and its forward ends in an error",
}
"""What follows where the pixels of a model_type are cast to bytes."""


@MODEL_RULES.warning(
    "transformers modeling_{muse_glimmer,ernie4_5_vl_moe}.py: pixels.to(...weight.dtype) (seen)",
    bars_search=True,
)
def pixels_are_not_cast_to_packed_bytes(context: RuleContext) -> str | None:
    model, method = context.model, context.recipe.method
    if model is None or not PIXEL_EFFECTS.keys() & model.model_types or not method.packs_weights:
        return None
    effect = next(text for name, text in PIXEL_EFFECTS.items() if name in model.model_types)
    return (
        f"--method {method.value}: with images transformers casts the pixels of {model.id} to the type of a weight "
        f"that is packed then, bytes, {effect}; give --method lora, or train on text alone"
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
    beside = [
        *(["trained copies of embeddings"] if recipe.train_embeddings and recipe.copy_dtype is DType.FLOAT16 else []),
        *(["parts trained in full"] if recipe.trains_full_parts and recipe.full_part_dtype is DType.FLOAT16 else []),
    ]
    if recipe.trained_dtype is DType.FLOAT32 and not beside:
        return None
    what = beside[0] if recipe.trained_dtype is DType.FLOAT32 else "adapters"
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
    if recipe.uses_deepspeed and recipe.method.packs_weights:
        return (
            f"--weight-dtype {kind.value} does not go with --method {recipe.method.value} under DeepSpeed, which "
            f"trains beside packed weights with 16-bit ones: it would only load these in float32 and cast them; "
            f"leave it off"
        )
    if recipe.fsdp:  # see rules/fsdp.py
        return None
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
    if recipe.uses_autocast or recipe.casts_weights or not recipe.can_autocast:
        return None
    if not recipe.trains_adapters:
        return (
            "--no-autocast does not go with --method full, whose trained weights are float32 beside 16-bit ones; "
            "give --precision bf16-pure, or fp32"
        )
    if recipe.upcasts_frozen and recipe.train_embeddings:
        return (
            "--no-autocast does not go with --kbit-upcast and --train-embeddings, whose trained copies stay in 16 bit "
            "beside float32; give --no-kbit-upcast, or leave --train-embeddings off"
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


@MODEL_RULES.error("deepspeed runtime/config.py _batch_assertion", counts_gpus=True)
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


@MODEL_RULES.error("transformers configuration_auto.py CONFIG_MAPPING_NAMES")
def transformers_knows_the_model(context: RuleContext) -> str | None:
    model, release = context.model, context.recipe.transformers_version
    if model is None or not release.unknown_types & model.model_types:
        return None
    newest = [*TransformersVersion][-1].value
    return f"transformers {release.value} does not know {model.id}; {newest} does (--transformers-version {newest})"


@MODEL_RULES.warning("transformers 5.24.0 modeling_llama4.py: its text model's output has no image_outputs (seen)")
def transformers_can_run_llama_4(context: RuleContext) -> str | None:
    model, version = context.model, context.recipe.transformers_version
    if model is None or "llama4" not in model.model_types or version is TransformersVersion.V5_23:
        return None
    return (
        f"{model.id} stops with an AttributeError in transformers {version.value}.0; train it with 5.23 "
        f"(--transformers-version 5.23)"
    )


@MODEL_RULES.error(
    "transformers 5.23 modeling_smolvlm.py: features in self.dtype, and masked_scatter takes one type (seen)"
)
def smolvlm_has_its_tower_in_the_type_of_its_embeddings(context: RuleContext) -> str | None:
    model, recipe = context.model, context.recipe
    if model is None or model.model_type != "smolvlm" or recipe.casts_weights:
        return None
    if recipe.trains_adapters:
        tower = recipe.full_part_dtype if recipe.full_vision else recipe.frozen_dtype
        embeddings = recipe.copy_dtype if recipe.train_embeddings else recipe.frozen_dtype
        option = "--full-vision" if recipe.full_vision else "--train-embeddings"
        instead = "--adapter-dtype model"
    else:
        tower = recipe.held_dtype if recipe.train_vision else recipe.frozen_dtype
        embeddings = recipe.held_dtype if recipe.train_language else recipe.frozen_dtype
        option = "--freeze-language" if recipe.train_vision else "--freeze-vision"
        instead = "--weight-dtype model or float32"
    if tower == embeddings:
        return None
    return (
        f"{option} leaves the vision tower of {model.id} in another type than its embeddings, and its class puts the "
        f"features of images in the tower's among them; give {instead}, or --zero-stage 1, 2 or 3"
    )
