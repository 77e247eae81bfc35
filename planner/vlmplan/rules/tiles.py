"""What runs MLPs tile by tile, and gated delta nets as kernels: what makes room for long samples."""

from vlmplan.recipe import engine_name
from vlmplan.recipe.choices import LinearAttention
from vlmplan.rules.base import RuleBook, RuleContext
from vlmplan.rules.recurrent import GATED_DELTA_TYPES

TILE_RULES = RuleBook()

TILED_TYPES = frozenset(
    {"exaone4", "gemma", "gemma2", "gemma3", "gemma3_text", "glm4", "granite", "hunyuan_v1_dense", "llama", "mistral"}
    | {"ministral3", "olmo2", "olmo3", "phi3", "qwen2", "qwen2_5_vl", "qwen2_vl", "qwen3", "qwen3_5", "qwen3_5_text"}
    | {"qwen3_vl", "smollm3"}
)
"""Models, and language models of those that see, whose layers all have an ``mlp`` with a gate and a projection back:
losses and gradients were compared with those of whole MLPs (``tests/trainer/models/test_tiling.py``)."""


@TILE_RULES.error(
    "deepspeed ulysses_sp.py TiledMLP.backward: 'DDP, FSDP will need something similar to make it work'",
    counts_gpus=True,
)
def tiles_reduce_gradients_once(context: RuleContext) -> str | None:
    """Every tile runs the hooks of each weight, of which only DeepSpeed's wait for the last (``ds_grad_is_ready``)."""
    recipe, num_gpus = context.recipe, context.num_gpus
    if not recipe.tiled_mlp or recipe.zero_stage is not None or num_gpus in (None, 1):
        return None
    return (
        f"--tiled-mlp hands over a gradient for every tile, of which {engine_name(recipe, 2)} would reduce the first; "
        f"give --zero-stage 1, 2 or 3"
    )


@TILE_RULES.error("deepspeed ulysses_sp.py TiledMLP.backward runs a tile again outside torch.autocast")
def tiles_have_no_autocast(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.tiled_mlp or recipe.autocast is None:
        return None
    return (
        "--tiled-mlp does not go with torch.autocast, which backward, where every tile runs again, is not under; give "
        "--zero-stage 1, 2 or 3, or --no-autocast"
    )


@TILE_RULES.error("vlmplan_trainer models/tiling.py: an MLP is a module mlp with a gate and a projection back")
def tiled_models_have_gated_mlps(context: RuleContext) -> str | None:
    model = context.model
    if not context.recipe.tiled_mlp or model is None or model.model_types & TILED_TYPES:
        return None
    return f"--tiled-mlp is for models of {', '.join(sorted(TILED_TYPES))}, not {model.id}"


@TILE_RULES.error("transformers 5.23 integrations/hub_kernels.py: packages are for gated delta nets alone")
def delta_kernels_are_for_delta_nets(context: RuleContext) -> str | None:
    model = context.model
    if context.recipe.linear_attention is LinearAttention.TORCH or model is None:
        return None
    if model.model_types & GATED_DELTA_TYPES:
        return None
    known = ", ".join(sorted(GATED_DELTA_TYPES))
    return f"--linear-attention {context.recipe.linear_attention.value} is for models of {known}, not {model.id}"


@TILE_RULES.error("flash-linear-attention 0.6.0 is made of Triton kernels, causal-conv1d of CUDA's")
def delta_kernels_need_a_gpu(context: RuleContext) -> str | None:
    if context.recipe.linear_attention is LinearAttention.TORCH or not context.is_on_cpu:
        return None
    return "--linear-attention fla is made of a GPU's kernels, which do not run on a CPU; leave it off"
