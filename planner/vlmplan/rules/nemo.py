"""What is planned of NeMo AutoModel's own layers, adapters and checkpoints."""

from vlmplan.notes import listed
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AdapterDtype, Method
from vlmplan.recipe.lora_targets import stacked_targets
from vlmplan.rules.base import RuleBook, RuleContext

NEMO_RULES = RuleBook()
COMPILED_NORMS = frozenset(("llama", "qwen2"))
"""Of these its own is transformers' but for norms, each compiled (``Float32RMSNorm`` in ``components/models``)."""


@NEMO_RULES.error("Automodel@36044ad3 components/models/llama/model.py, qwen2/model.py: initialize_rms_norm_module")
def compiled_norms_are_of_its_own_models(context: RuleContext) -> str | None:
    recipe, model = context.recipe, context.model
    if not recipe.compiled_norms:
        return None
    if recipe.liger_layers:
        return "--compiled-norms and --liger-layers are two kinds of norms; give one of the two"
    if model is None or model.model_type in COMPILED_NORMS:
        return None
    return (
        f"--compiled-norms is planned for {' and '.join(sorted(COMPILED_NORMS))}, but {model.id} has model_type "
        f"{model.model_type}; leave it off"
    )


@NEMO_RULES.error("Automodel@36044ad3 components/_peft/lora.py, lora_mlp.py: _fusible")
def fused_adapters_are_plain_lora(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.fused_adapters:
        return None
    if recipe.method is not Method.LORA:
        return f"--fused-adapters is for --method lora, but --method is {recipe.method.value}; leave it off"
    found = [option for option, is_so in _beside_fused_adapters(recipe).items() if is_so]
    return f"--fused-adapters is not planned with {listed(found)}; leave it off" if found else None


def _beside_fused_adapters(recipe: Recipe) -> dict[str, bool]:
    """What they are not planned with, by its option."""
    has_others = bool(stacked_targets(recipe.lora_targets)) or "embed" in recipe.lora_targets
    return {
        "--lora-dropout": recipe.lora_dropout > 0,
        "--use-dora": recipe.use_dora,
        "--train-embeddings": recipe.train_embeddings,
        f"--lora-init {recipe.lora_init}": recipe.changes_base,
        f"--lora-targets {recipe.lora_targets}": has_others,
        f"--zero-stage {recipe.zero_stage}": recipe.zero_stage is not None,
        "--flat-parameters": recipe.is_flat,
        "--liger-layers": recipe.liger_layers,
        "--tiled-mlp": recipe.tiled_mlp,
        "adapters in another type than the model's": recipe.autocast is not None
        or (not recipe.fsdp and recipe.adapter_dtype is AdapterDtype.FLOAT32),
        "--task": recipe.task is not None,
    }


@NEMO_RULES.error(
    "Automodel@36044ad3 components/distributed/activation_checkpointing.py apply_submodule_checkpointing: under FSDP2, "
    "DDP or on one GPU"
)
def parts_are_checkpointed_without_deepspeed(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.checkpoints_parts:
        return None
    wanted = {
        f"--zero-stage {recipe.zero_stage}": recipe.zero_stage is not None,
        "--flat-parameters": recipe.is_flat,
        "--offload-activations": recipe.offload_activations,
        "--tiled-mlp": recipe.tiled_mlp,
        f"--method {recipe.method.value}": recipe.method.packs_weights,
        "--cached-casts": recipe.caches_casts,
        "--task": recipe.task is not None,
    }
    found = [option for option, is_so in wanted.items() if is_so]
    return f"--checkpoint-kind parts is not planned with {listed(found)}; leave it off" if found else None
