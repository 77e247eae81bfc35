"""A recipe in words: everything of it that decides memory and time."""

from vlmplan.evaluation import Evaluation, Kept
from vlmplan.recipe import Recipe, engine_name
from vlmplan.recipe_choices import ALL_LINEAR, DEFAULT_INIT, LossKind, Method, Offload
from vlmplan.units import DType

LOSS_WORDS = {
    LossKind.CHUNKED: "chunked loss",
    LossKind.FULL: "full loss",
    LossKind.MODEL: "full loss, made in the model",
    LossKind.TRL: "TRL's fused loss",
}
SHORT_TYPES = {DType.FLOAT32: "fp32", DType.BFLOAT16: "bf16", DType.FLOAT16: "fp16"}


def recipe_text(recipe: Recipe, *, num_gpus: int, sees: bool) -> str:
    """A recipe in a few words: everything that decides memory and time. ``sees``: a vision encoder runs too."""
    words = [_method_text(recipe), precision_text(recipe), engine_text(recipe, num_gpus)]
    if recipe.optimizer.value != "adamw":
        words.append(recipe.optimizer.value)
    words.append(f"micro batch {recipe.micro_batch} x {recipe.grad_accum}")
    words.append(_checkpointing_text(recipe, sees=sees))
    words += [f"{recipe.attention.value} attention", LOSS_WORDS[recipe.loss]]
    words.append("expandable segments" if recipe.expandable_segments else "native allocator")
    words += [] if recipe.evaluation is None else [evaluation_text(recipe.evaluation)]
    return ", ".join(words)


def evaluation_text(evaluation: Evaluation) -> str:
    """The batch, and what is kept of every sample.

    >>> evaluation_text(Evaluation(batch=8, kept=Kept.LOGITS, accumulation=2))
    'evaluation batch 8 with logits kept, to the host every 2 batches'
    """
    text = f"evaluation batch {evaluation.batch}"
    if evaluation.new_tokens:
        beams = f" with {evaluation.beams} beams" if evaluation.beams > 1 else ""
        text += f" generating {evaluation.new_tokens:,} tokens{beams}"
    if evaluation.kept is Kept.LOSS:
        return text
    every = {None: "at the end", 1: "every batch"}.get(
        evaluation.accumulation, f"every {evaluation.accumulation} batches"
    )
    return f"{text} with {evaluation.kept.value} kept, to the host {every}"


def _method_text(recipe: Recipe) -> str:
    """``lora r16``, with its targets unless they are all Linears."""
    text = recipe.method.value
    if recipe.trains_adapters:
        text += " with DoRA" if recipe.use_dora else ""
        text += f" r{recipe.lora_rank}"
        text += "" if recipe.lora_init == DEFAULT_INIT else f" from {recipe.lora_init}"
        text += "" if recipe.lora_targets == ALL_LINEAR else f" on {recipe.lora_targets}"
        text += "" if recipe.lora_exclude is None else f" without {recipe.lora_exclude}"
        text += " and embeddings" if recipe.train_embeddings else ""
        text += f" with dropout {recipe.lora_dropout:g}" if recipe.lora_dropout else ""
    return text


def precision_text(recipe: Recipe) -> str:
    """The precision, and in which types weights are kept: ``bf16 (bf16 weights, fp32 adapters, autocast)``."""
    trained, master = SHORT_TYPES[recipe.trained_dtype], SHORT_TYPES[recipe.master_dtype]
    words: list[str] = []
    if recipe.method is Method.QLORA:
        scales = "" if recipe.use_double_quant else " with fp32 scales"
        words.append(f"4-bit weights{scales}, others {SHORT_TYPES[recipe.frozen_dtype]}")
    elif recipe.method is Method.LORA:
        words.append(f"{SHORT_TYPES[recipe.frozen_dtype]} weights")
    words.append(f"{trained} {'adapters' if recipe.trains_adapters else 'weights'}")
    if recipe.train_embeddings and recipe.copy_dtype is not recipe.trained_dtype:
        words.append(f"{SHORT_TYPES[recipe.copy_dtype]} embeddings")
    words += [f"{master} master copy"] if master != trained else []
    words += ["autocast" if recipe.uses_autocast else "no autocast"] if recipe.can_autocast else []
    return f"{recipe.precision.value} ({', '.join(words)})"


def _checkpointing_text(recipe: Recipe, *, sees: bool) -> str:
    """Activation checkpointing, of which part where the two differ."""
    language, vision = recipe.activation_checkpointing, recipe.vision_activation_checkpointing
    if sees and language is not vision:
        return f"checkpointing of {'language' if language else 'vision'} alone"
    return "checkpointing" if language else "no checkpointing"


def engine_text(recipe: Recipe, num_gpus: int) -> str:
    """The engine, copies of weights among neighbours, and what is offloaded."""
    text = engine_name(recipe, num_gpus)
    if recipe.hpz > 1:
        text += f", hpZ {recipe.hpz}"
    if recipe.sequence_parallel > 1:
        text += f", sequence parallel {recipe.sequence_parallel}"
    if recipe.offload_optimizer is not Offload.NONE:
        text += f", optimizer on {recipe.offload_optimizer.value}"
    if recipe.offload_params is not Offload.NONE:
        text += f", weights on {recipe.offload_params.value}"
    return text
