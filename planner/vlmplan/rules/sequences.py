"""Sequence parallelism: what DeepSpeed's Ulysses can share among ranks, and what not."""

from vlmplan.recipe.choices import AttentionImplementation, LossKind
from vlmplan.recipe.evaluation import Kept
from vlmplan.rules.base import RuleBook, RuleContext, stage_text
from vlmplan.rules.recurrent import GATED_DELTA_TYPES

SEQUENCE_RULES = RuleBook()

SHARED_TYPES = frozenset(
    {"exaone4", "gemma", "glm4", "granite", "hunyuan_v1_dense", "llama", "mistral", "ministral3", "mixtral"}
    | {"olmo2", "olmo3", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3"}
)
"""Models whose layers all call transformers' attention function with ``position_ids`` and mix tokens nowhere else:
losses and gradients were compared with those of one rank (``tests/trainer/shared_samples.py``)."""
WHOLE_LOSSES = (LossKind.CHUNKED, LossKind.FULL, LossKind.LIGER)
"""Those that the bundled trainer computes of labels that are shifted already."""


@SEQUENCE_RULES.error("deepspeed ulysses_sp.py: attention functions of transformers are replaced, nothing else is")
def tokens_are_mixed_in_attention_alone(context: RuleContext) -> str | None:
    model, size = context.model, context.recipe.sequence_parallel
    if size == 1 or model is None or (len(model.model_types) == 1 and model.model_types <= SHARED_TYPES):
        return None
    known = ", ".join(sorted(SHARED_TYPES))
    if model.model_types & GATED_DELTA_TYPES:
        return (
            f"--sequence-parallel {size} does not go with {model.id}: its gated delta nets carry a state from token to "
            f"token, which DeepSpeed's Ulysses would start anew on every GPU; it is for models of {known}"
        )
    return f"--sequence-parallel {size} is for models of {known}, whose attention alone mixes tokens, not {model.id}"


@SEQUENCE_RULES.error(
    "deepspeed runtime/sequence_parallel/parallel_state_sp.py initialize_sequence_parallel", counts_gpus=True
)
def sequence_parallel_ranks_divide_the_gpus(context: RuleContext) -> str | None:
    size, num_gpus = context.recipe.sequence_parallel, context.num_gpus
    if size == 1 or num_gpus is None or num_gpus % size == 0:
        return None
    return f"--sequence-parallel {size} does not divide {num_gpus} GPU(s) into equal groups; give a divisor"


@SEQUENCE_RULES.error("deepspeed ulysses_sp.py UlyssesSPAttentionHF.__init__: 'is not divisible by SP size'")
def heads_are_shared_evenly(context: RuleContext) -> str | None:
    size, model = context.recipe.sequence_parallel, context.model
    if size == 1 or model is None or model.num_heads is None or model.num_kv_heads is None:
        return None
    heads, kv_heads = model.num_heads, model.num_kv_heads
    if heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0):
        return None
    return (
        f"--sequence-parallel {size} does not share {heads} attention heads and {kv_heads} heads of keys and values of "
        f"{model.id} evenly; it has to divide the first, and to divide the second or be a multiple of it"
    )


@SEQUENCE_RULES.error("deepspeed ulysses_sp.py: its groups are DeepSpeed's; vlmplan plans stages 1 to 3")
def sequence_parallelism_needs_zero(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.sequence_parallel == 1 or recipe.partitions_states:
        return None
    return (
        f"--sequence-parallel {recipe.sequence_parallel} is DeepSpeed's, planned under ZeRO stages 1 to 3, but "
        f"--zero-stage is {stage_text(recipe)}; give --zero-stage 3"
    )


@SEQUENCE_RULES.error("deepspeed ulysses_sp.py register_with_transformers: eager is refused, masks are thrown away")
def ulysses_attention_has_no_mask(context: RuleContext) -> str | None:
    recipe, model = context.recipe, context.model
    if recipe.sequence_parallel == 1:
        return None
    if recipe.attention is AttentionImplementation.EAGER:
        return (
            f"--sequence-parallel {recipe.sequence_parallel} does not go with --attention eager, which needs a mask of "
            f"all tokens; give --attention sdpa or flash_attention_2"
        )
    if model is not None and model.has_windows and recipe.attention is AttentionImplementation.SDPA:
        return (
            f"--sequence-parallel {recipe.sequence_parallel} throws away the mask by which --attention sdpa keeps to "
            f"the attention window of {model.id}; give --attention flash_attention_2, which needs none"
        )
    return None


@SEQUENCE_RULES.error("vlmplan_trainer: labels are shifted before samples are cut, which a model would do again")
def sequence_parallelism_needs_bundled_losses(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.sequence_parallel == 1 or recipe.loss in WHOLE_LOSSES:
        return None
    return (
        f"--sequence-parallel {recipe.sequence_parallel} does not go with --loss {recipe.loss.value}, which shifts the "
        f"labels of every part of a sample by itself; give --loss chunked or full"
    )


@SEQUENCE_RULES.error("vlmplan: groups of hpZ and of sequence parallelism are not planned together")
def sequence_parallelism_excludes_hpz(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.sequence_parallel == 1 or recipe.hpz == 1:
        return None
    return (
        f"--sequence-parallel {recipe.sequence_parallel} and --hpz {recipe.hpz} are not planned together; "
        f"leave one of them off"
    )


@SEQUENCE_RULES.error("deepspeed ulysses_sp.py required_query_shape: attention is made for micro batches of one size")
def sequence_parallelism_evaluates_as_it_trains(context: RuleContext) -> str | None:
    recipe = context.recipe
    evaluation, size = recipe.evaluation, recipe.sequence_parallel
    if size == 1 or evaluation is None:
        return None
    if evaluation.kept is not Kept.LOSS or evaluation.new_tokens:
        return (
            f"--sequence-parallel {size}: what is evaluated is the loss alone; leave --eval-keeps and "
            f"--eval-new-tokens off"
        )
    if evaluation.batch != recipe.micro_batch:
        return (
            f"--sequence-parallel {size}: --eval-batch is {evaluation.batch}, but attention that is shared takes "
            f"micro batches of one size; give --eval-batch {recipe.micro_batch}"
        )
    return None
