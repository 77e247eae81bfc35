"""The micro batch that a recipe makes of a workload, and the tape that it is traced on."""

from typing import TypeVar

from vlmplan.architecture.audio import AudioShape
from vlmplan.architecture.images import ImageShape
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tape import Tape
from vlmplan.estimation.packed_samples import packed_samples
from vlmplan.estimation.scored_tokens import scored_tokens
from vlmplan.recipe import Recipe
from vlmplan.recipe.adapter_views import adapter_views
from vlmplan.recipe.dropout import switches_dropout_off
from vlmplan.recipe.reference_adapters import runs_without_adapters
from vlmplan.recipe.task_choices import Reference
from vlmplan.workload import Workload

AnyTape = TypeVar("AnyTape", bound=Tape)


def tape_for(kind: type[AnyTape], recipe: Recipe, *, is_evaluating: bool = False, is_first: bool = False) -> AnyTape:
    """A new tape of this kind, which runs forwards as the recipe's engine and precision do. ``is_first``: the first
    micro batch of a run."""
    tape = kind(
        autocast=recipe.autocast,
        keeps_linear_inputs=recipe.keeps_linear_inputs,
        follows_weights=recipe.zero_stage == 3,
        is_evaluating=is_evaluating,
        caches_casts=recipe.caches_casts,
    )
    tape.offloads_inputs, tape.tiles_mlps = recipe.offload_activations, recipe.tiled_mlp
    tape.switches_dropout_off = switches_dropout_off(recipe)
    tape.runs_without_adapters = runs_without_adapters(recipe)
    tape.is_reentrant, tape.notes_adapters = recipe.checkpoints_reentrantly, recipe.prefetches_forward
    tape.adapter_views = adapter_views(recipe, is_first=is_first)
    tape.outputs.has_encoded = recipe.transformers_version.returns_encoded
    tape.reads_head, tape.input_gradients = recipe.liger_layers, recipe.needs_input_gradients
    return tape


def _clones_inputs(recipe: Recipe) -> bool:
    """LLaMA-Factory 0.9.5 ``train/dpo/trainer.py`` ``concatenated_forward``: where there is a reference;
    ``train/kto/trainer.py`` ``forward``: always."""
    task = recipe.task
    return task is not None and task.is_of_llama_factory and recipe.reference is not Reference.NONE


def _learns_chosen(recipe: Recipe) -> bool:
    """axolotl 0.19 ``core/builders/rl.py``, ms-swift 4.6 ``trainers/trainer_factory.py``: ORPO, CPO and SimPO, by
    trainers of TRL that have no reference."""
    task = recipe.task
    if task is None or not task.is_dpo or recipe.reference is not Reference.NONE:
        return False
    return task.is_of_axolotl or task.is_of_ms_swift


def batch_of(recipe: Recipe, workload: Workload, image: ImageShape | None, audio: AudioShape | None) -> Batch:
    """The shape of a micro batch on one GPU; ``image`` is that of the workload's images, ``audio`` of its sounds.

    Where an encoder reads an image alone, the tokens that there are are the answer's."""
    encodes_images = workload.model.encodes_images_alone
    return Batch(
        micro_batch=recipe.rows,
        num_tokens=workload.target_tokens if encodes_images else -(-workload.seq_len // recipe.sequence_parallel),
        target_tokens=0 if encodes_images else workload.target_tokens,
        encodes_images=encodes_images,
        sequence_parallel=recipe.sequence_parallel,
        images_per_sample=workload.images_per_sample,
        image=image,
        audios_per_sample=workload.audios_per_sample,
        audio=audio,
        sequences=packed_samples(recipe, workload),
        pixel_dtypes=recipe.pixel_dtypes,
        scored_tokens=scored_tokens(recipe, workload, image),
        has_kl_rows=recipe.task is not None and recipe.task.estimates_kl,
        has_kl_images=recipe.task is not None and recipe.task.estimates_kl and recipe.task.is_of_ms_swift,
        is_cloned=_clones_inputs(recipe),
        copies_logits=recipe.task is not None and recipe.task.copies_logits,
        learns_chosen=_learns_chosen(recipe),
        keeps_graph=recipe.keeps_graph,
        keeps_logits=recipe.keeps_graph and recipe.task is None,
    )
