"""What an estimate's numbers leave out or mean otherwise than its options say, as caveats (see ``notes``)."""

from vlmplan.memory.inference_engine import ASLEEP_BYTES, MOST_ASLEEP_BYTES
from vlmplan.memory.replayed_steps import is_replayed
from vlmplan.memory.timeline import Timeline
from vlmplan.notes import Caveat, listed
from vlmplan.phase_names import EVALUATION, GENERATION
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LinearAttention, Offload
from vlmplan.recipe.evaluation import Evaluation, Kept
from vlmplan.recipe.lora_targets import SELECTIVE_TYPES
from vlmplan.recipe.task_choices import Generation
from vlmplan.rules import model_facts
from vlmplan.rules.recurrent import GATED_DELTA_TYPES, STATE_SPACE_TYPES
from vlmplan.units import counted, gib_text, is_or_are
from vlmplan.workload import ModelFiles

BESIDE_TRAINING = (EVALUATION, GENERATION)
STACKED_FRACTION = 0.1
"""Stacked weights are told of from this part of all weights on, counted in 16 bits. A choice."""


def not_counted_caveat(model: ModelFiles) -> Caveat | None:
    """The caveat that images or sound are in no number; None where they are."""
    if not model.not_counted:
        return None
    text = f"not counted: {listed(model.not_counted)}, which vlmplan does not describe for {model.model_type}"
    none = "; --images-per-sample 0 says that samples have no images" if "images" in model.not_counted else ""
    return Caveat(f"{text}; only text is planned{none}")


def few_samples_caveat(num_samples: int, samples_per_step: int) -> Caveat | None:
    """The caveat on data that does not fill one step. The bundled trainer refuses it (``launch.preflight``); Trainer of
    transformers makes a step of what there is."""
    if num_samples >= samples_per_step:
        return None
    verb = is_or_are(num_samples)
    return Caveat(
        f"there {verb} {counted(num_samples, 'sample')}, but one step takes {samples_per_step}: vlmplan launch refuses "
        f"that, other trainers make a smaller step; more samples are needed, or a smaller --global-batch"
    )


def blocks_note(recipe: Recipe) -> str | None:
    """The note that torch's native allocator is not replayed with a task."""
    if recipe.task is None or recipe.expandable_segments or is_replayed(recipe):
        return None
    sleeps = recipe.task.uses_vllm_here and recipe.task.vllm_sleep_level
    end = "which vLLM's sleep mode asks for" if sleeps else "--expandable-segments keeps next to none"
    return (
        f"blocks that torch's native allocator keeps unused are not counted with --task {recipe.task.kind.value}; {end}"
    )


def nvme_note(recipe: Recipe) -> str | None:
    """The note that a plan cannot be written or launched yet: bytes and seconds do not depend on the folder."""
    if recipe.nvme_path is not None or Offload.NVME not in (recipe.offload_optimizer, recipe.offload_params):
        return None
    return "writing and launching this plan takes --nvme-path DIR too, a folder on the NVMe drive of every node"


def rollout_note(recipe: Recipe) -> str | None:
    """How long answers are taken to be, and what of GRPO no second and no byte counts."""
    task = recipe.task
    if task is None or not task.is_grpo:
        return None
    text = "seconds are of answers that are all as long as they may be (--max-completion-tokens)"
    if task.generation is Generation.SERVER:
        text = (
            "how long a server takes to generate answers and to get weights is not known: no second and no cost has it"
        )
    asleep = (
        f"; vLLM asleep is counted with {gib_text(ASLEEP_BYTES, 1)}, the least that was published, of up to "
        f"{gib_text(MOST_ASLEEP_BYTES, 1)}"
        if (task.uses_vllm_here and task.vllm_sleep_level)
        else ""
    )
    scoring = "; reward models are counted without the activations of their forward" if task.reward_params else ""
    return f"{text}; functions that reward are taken to need no time{asleep}{scoring}"


def kernels_note(model: ModelFiles, recipe: Recipe) -> str | None:
    """The note on which of two ways of computing the same is planned.

    Source: ``use_kernel_func_from_hub_with_fallback`` in transformers 5.23 ``integrations/hub_kernels.py``.
    """
    model_types = model_facts(model).model_types
    if model_types & STATE_SPACE_TYPES:
        return (
            "Mamba-2 mixers are planned as transformers runs them where mamba-ssm and causal-conv1d are not installed; "
            "with their kernels, which are not planned, a step takes less memory and less time"
        )
    if model_types & SELECTIVE_TYPES:
        return (
            "Mamba mixers are planned as transformers runs them where mamba-ssm and causal-conv1d are not installed: "
            "token after token, with a state of every channel kept for each; with their kernels, which are not "
            "planned, a step takes a small part of that memory and time"
        )
    if not model_types & GATED_DELTA_TYPES or recipe.linear_attention is LinearAttention.FLA:
        return None
    return (
        "gated delta nets are planned as transformers runs them where flash-linear-attention and causal-conv1d are not "
        "installed; --linear-attention fla plans their kernels, with which a step takes less memory and less time"
    )


def evaluation_hints(evaluation: Evaluation | None, timeline: Timeline) -> list[str]:
    """Hints that evaluation takes more than training, and how much of that is kept for metrics."""
    name = timeline.peak_phase.name
    if evaluation is None or name not in BESIDE_TRAINING:
        return []
    training = max(phase.peak.total for phase in timeline.phases if phase.name not in BESIDE_TRAINING)
    text = f"{name} takes the most, {gib_text(timeline.peak.total)} in tensors; training takes {gib_text(training)}"
    if name == EVALUATION and evaluation.kept is Kept.LOGITS and evaluation.accumulation is None:
        text += f"; the logits of all {evaluation.kept_samples:,} samples are kept on every GPU, and joined there"
    return [text]


def evaluation_note(evaluation: Evaluation | None) -> str | None:
    """The note that no second of the run is of its evaluations."""
    if evaluation is None or evaluation.samples is not None:
        return None
    return (
        "how many samples are evaluated is not known, so that no second and no dollar of the run has evaluations; "
        "--eval-samples says it"
    )


def early_stopping_note(evaluation: Evaluation | None) -> str | None:
    """The note that the run may end before its last step."""
    if evaluation is None or evaluation.early_stopping_patience is None:
        return None
    return (
        f"its time and cost are those of all steps, which is the most: --early-stopping-patience "
        f"{evaluation.early_stopping_patience} may end it sooner"
    )


def resume_caveat(*, device: tuple[int, int], host: tuple[int, int]) -> Caveat:
    """The caveat that going on from a checkpoint takes more than there is: (needed, there is) bytes of a GPU and of a
    host."""
    places = ((*device, "of each GPU"), (*host, "of host RAM"))
    short = [f"{gib_text(needed)} of the {gib_text(has)} {what}" for needed, has, what in places if needed > has]
    return Caveat(
        f"the run fits, but going on from a checkpoint does not, which every interruption needs: reading it takes "
        f"{'; '.join(short)}"
    )


def stacked_caveat(recipe: Recipe, *, stacked_bytes: int, num_params: int) -> Caveat | None:
    """The caveat that most of a packed model is not packed: ``stacked_bytes`` of its weights are in no Linear.

    Source: transformers ``integrations/bitsandbytes.py``, which replaces Linears, and transformers 5's experts,
    which are one parameter of three dimensions for each layer.
    """
    if stacked_bytes < STACKED_FRACTION * 2 * num_params:
        return None
    bits = 8 * recipe.frozen_dtype.num_bytes
    return Caveat(
        f"{gib_text(stacked_bytes)} of the model's weights stay in {bits} bits: its experts "
        f"are stacked parameters, and bitsandbytes packs Linears alone"
    )
