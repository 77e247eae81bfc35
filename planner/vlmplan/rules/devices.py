"""What a card or a processor can do."""

from vlmplan.notes import Caveat
from vlmplan.recipe.choices import AttentionImplementation, Method, Precision
from vlmplan.rules.base import RuleBook, RuleContext

DEVICE_RULES = RuleBook()

FP16_CAPABILITY = (7, 0)
BITSANDBYTES_CAPABILITY = (6, 0)
INT8_CAPABILITY = (7, 5)


@DEVICE_RULES.warning(
    "torch 2.13 cuda/__init__.py is_bf16_supported: true with emulation, so transformers and DeepSpeed begin",
    bars_search=True,
)
def bf16_is_emulated_before_ampere(context: RuleContext) -> str | None:
    gpu, precision = context.gpu, context.recipe.precision
    if precision not in (Precision.BF16, Precision.BF16_PURE) or gpu is None or gpu.supports_bf16:
        return None
    return Caveat(
        f"--precision {precision.value} needs compute capability 8.0 or newer to be fast; torch emulates it on "
        f"{gpu.name}{context.capability_text}, how slowly is not known, and no search plans it; give --precision fp16"
    )


@DEVICE_RULES.error("deepspeed accelerator/cuda_accelerator.py is_fp16_supported: refuses compute capability 6")
def fp16_under_deepspeed_needs_volta(context: RuleContext) -> str | None:
    recipe, gpu = context.recipe, context.gpu
    if recipe.precision is not Precision.FP16 or not recipe.uses_deepspeed or gpu is None:
        return None
    if not context.is_before(FP16_CAPABILITY):
        return None
    return (
        f"--precision fp16 under DeepSpeed needs compute capability 7.0 or newer, but there is "
        f"{gpu.name}{context.capability_text}; give --precision fp32, or --zero-stage none on one GPU"
    )


@DEVICE_RULES.warning("deepspeed accelerator/cpu_accelerator.py is_fp16_supported: asks oneDNN (seen)")
def fp16_on_cpu_needs_new_instructions(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.precision is not Precision.FP16 or not recipe.uses_deepspeed or not context.is_on_cpu:
        return None
    return "--precision fp16 under DeepSpeed runs only on processors with AVX512-FP16; bf16 and fp32 run on any"


@DEVICE_RULES.error("github.com/Dao-AILab/flash-attention README: Ampere or newer; transformers modeling_utils.py")
def flash_attention_needs_ampere(context: RuleContext) -> str | None:
    gpu = context.gpu
    if context.recipe.attention is not AttentionImplementation.FLASH_ATTENTION_2 or gpu is None:
        return None
    if context.is_on_cpu:
        return "--attention flash_attention_2 does not run on a CPU; give --attention sdpa"
    if gpu.supports_flash_attention_2 is not False:
        return None
    return (
        f"--attention flash_attention_2 needs compute capability 8.0 or newer, but there is "
        f"{gpu.name}{context.capability_text}; give --attention sdpa"
    )


@DEVICE_RULES.warning("github.com/Dao-AILab/flash-attention README: on ROCm only some cards, built from source")
def flash_attention_is_unsure_elsewhere(context: RuleContext) -> str | None:
    gpu = context.gpu
    if context.recipe.attention is not AttentionImplementation.FLASH_ATTENTION_2 or gpu is None:
        return None
    if gpu.is_cpu or gpu.supports_flash_attention_2 is not None:
        return None
    return f"--attention flash_attention_2: nothing is known about it on {gpu.name}; --attention sdpa runs anywhere"


@DEVICE_RULES.error("flash_attn: the kernels take fp16 and bf16 only; transformers integrations/flash_attention.py")
def flash_attention_needs_16_bit(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.attention is not AttentionImplementation.FLASH_ATTENTION_2 or recipe.precision is not Precision.FP32:
        return None
    return "--attention flash_attention_2 takes 16-bit tensors only, but --precision is fp32; give --attention sdpa"


@DEVICE_RULES.error("huggingface.co/docs/bitsandbytes/v0.50.2/installation: compute capability 6.0+")
def bitsandbytes_needs_pascal(context: RuleContext) -> str | None:
    recipe, gpu = context.recipe, context.gpu
    uses_it = recipe.method.packs_weights or recipe.optimizer.is_bitsandbytes
    if not uses_it or gpu is None or not context.is_before(BITSANDBYTES_CAPABILITY):
        return None
    option = (
        f"--method {recipe.method.value}" if recipe.method.packs_weights else f"--optimizer {recipe.optimizer.value}"
    )
    return f"{option} needs compute capability 6.0 or newer, but there is {gpu.name}{context.capability_text}"


@DEVICE_RULES.warning("huggingface.co/docs/bitsandbytes/v0.43.0/installation: LLM.int8() is for Turing or newer")
def int8_products_need_turing(context: RuleContext) -> str | None:
    gpu = context.gpu
    if context.recipe.method is not Method.LORA_8BIT or gpu is None or not context.is_before(INT8_CAPABILITY):
        return None
    return (
        f"--method lora-8bit is for compute capability 7.5 or newer, but there is {gpu.name}{context.capability_text}: "
        f"products of 8 bits may not run there"
    )


@DEVICE_RULES.warning("bitsandbytes 0.50 autograd/_functions.py matmul: MatMul8bitFp on CPU")
def int8_products_are_planned_for_gpus(context: RuleContext) -> str | None:
    if context.recipe.method is not Method.LORA_8BIT or not context.is_on_cpu:
        return None
    return (
        "--method lora-8bit on a CPU: bitsandbytes makes weights whole for every product there and quantises no input, "
        "and the plan is of what it does on a GPU"
    )


@DEVICE_RULES.error("peft 0.21 utils/integrations.py dequantize_module_weight, bitsandbytes 0.50 Int8Params.to (seen)")
def dora_loses_the_scales_of_8_bit_weights_on_a_cpu(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.method is not Method.LORA_8BIT or not recipe.use_dora or not context.is_on_cpu:
        return None
    return (
        "--use-dora does not go with --method lora-8bit on a CPU: peft puts copies of the weights in their place, "
        "without their scales; give --method qlora, or --no-dora"
    )


@DEVICE_RULES.warning("bitsandbytes optim/optimizer.py get_state_buffer: falls back on CPU (seen)")
def paging_needs_a_gpu(context: RuleContext) -> str | None:
    kind = context.recipe.optimizer
    if not kind.is_paged or not context.is_on_cpu:
        return None
    return f"--optimizer {kind.value} does not page on a CPU; it runs as {kind.value.removeprefix('paged-')}"


@DEVICE_RULES.error("vlmplan_trainer models/offloading.py: what is in host memory already stays there")
def activations_leave_a_gpu(context: RuleContext) -> str | None:
    if not context.recipe.offload_activations or not context.is_on_cpu:
        return None
    return "--offload-activations moves tensors from a GPU to host memory, where those of a CPU are; leave it off"
