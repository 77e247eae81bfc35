"""What is planned of a recipe for other trainers alone, and refused by the bundled one, whatever it trains."""

from collections.abc import Iterator

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import InputGradients, LossKind
from vlmplan.rules.batches import CONVOLVING_TYPES, KEPT_APART_BY_AXOLOTL
from vlmplan.workload import ModelFiles


def recipe_problems(recipe: Recipe) -> Iterator[str]:
    """Why the bundled trainer does not train it; sentences."""
    if recipe.input_gradients is not InputGradients.NONE:
        yield "--input-gradients is planned for other trainers; launch checkpoints without them: leave it off"
    if recipe.checkpoint_kind.is_reentrant:
        kind = recipe.checkpoint_kind.value
        yield f"--checkpoint-kind {kind} is planned for other trainers; launch checkpoints without: leave it off"
    if recipe.loss is LossKind.OPENRLHF:
        yield (
            f"--loss {recipe.loss.value} is planned for OpenRLHF: start its own script, which plans are read from, or "
            f"give --loss full"
        )
    if recipe.loss is LossKind.TRL and recipe.task is None:
        yield "--loss trl is planned for TRL's SFTTrainer, which alone has that head; give --loss chunked or full"
    if recipe.flattens_update:
        yield "--deepspeed-adam is planned for other trainers; launch hands DeepSpeed torch's AdamW: leave it off"
    if recipe.liger_layers:
        yield "--liger-layers is planned for other trainers, which put Liger's kernels in; leave it off"
    if recipe.compiled_norms:
        yield "--compiled-norms is planned for NeMo AutoModel, which has models of its own; leave it off"
    if recipe.fused_adapters:
        yield "--fused-adapters is planned for NeMo AutoModel, which has adapters of its own; leave it off"


def row_problems(recipe: Recipe, model: ModelFiles) -> Iterator[str]:
    """Why the bundled trainer does not put the model's samples in a row, which another does; a sentence."""
    if recipe.batching.is_flat and model.model_type in CONVOLVING_TYPES | KEPT_APART_BY_AXOLOTL:
        yield (
            f"--batching {recipe.batching.value} of {model.id} ({model.model_type}) is planned for axolotl; in "
            f"transformers' classes samples of a row would see those before: give --batching padded"
        )
