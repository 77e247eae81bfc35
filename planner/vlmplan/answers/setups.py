"""A recipe in words: everything of it that decides memory and time."""

from vlmplan.recipe import Recipe, engine_name
from vlmplan.recipe.choices import (
    ALL_LINEAR,
    DEFAULT_INIT,
    Batching,
    FlatParameters,
    LinearAttention,
    LossKind,
    Method,
    Offload,
    OptimizerKind,
    ShardUnits,
)
from vlmplan.recipe.evaluation import Evaluation, Every, Kept, Moment
from vlmplan.recipe.libraries import TorchVersion, TransformersVersion
from vlmplan.recipe.reference_adapters import copies_adapters
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Generation, Reference, TaskKind
from vlmplan.units import DType, counted

LOSS_WORDS = {
    LossKind.CHUNKED: "chunked loss",
    LossKind.FULL: "full loss",
    LossKind.MODEL: "full loss, made in the model",
    LossKind.TRL: "TRL's fused loss",
    LossKind.LIGER: "Liger's fused loss",
    LossKind.VERL: "verl's loss of all logits",
    LossKind.VERL_QUOTIENT: "verl's loss of a quotient of all logits",
    LossKind.VERL_FUSED: "verl's loss in chunks",
    LossKind.LOG_SOFTMAX: "LLaMA-Factory's log-probabilities of all logits",
    LossKind.OPENRLHF: "OpenRLHF's loss of all logits",
    LossKind.SELECTIVE: "ms-swift's log-probabilities of all logits, row by row",
    LossKind.TEMPERED: "ms-swift's log-probabilities of answers",
    LossKind.TEMPERED_ENTROPY: "ms-swift's log-probabilities and entropies of answers",
    LossKind.AXOLOTL: "axolotl's log-probabilities of all logits",
    LossKind.AXOLOTL_ANSWERS: "axolotl's log-probabilities of answers",
    LossKind.UNSLOTH: "Unsloth's loss of answers",
    LossKind.BRADLEY_TERRY: "Bradley-Terry loss of scores",
    LossKind.ROWS: "VLM-R1's and R1-V's loss of all logits",
}
UNIT_WORDS = {
    ShardUnits.LAYERS: "ends gathered with the root",
    ShardUnits.EMBEDDING_TOO: "the head gathered with the root",
    ShardUnits.ADAPTERS_TOO: "adapters gathered one by one, ends with the root",
    ShardUnits.LANGUAGE_LAYERS: "all but the language model's layers gathered with the root",
    ShardUnits.LAST_WHOLE: "ends gathered with the root, it and last layers whole until backward",
    ShardUnits.LANGUAGE_LAST_WHOLE: (
        "all but the language model's layers gathered with the root, it and the last layer whole until backward"
    ),
}
PREFETCH_WORDS = {
    FlatParameters.ON_DEMAND: "weights gathered on demand",
    FlatParameters.BACKWARD_PRE: "weights prefetched before each backward",
    FlatParameters.BACKWARD_POST: "weights prefetched behind each backward",
}
TASK_TITLES = {TaskKind.DPO: "DPO", TaskKind.REWARD: "reward modelling", TaskKind.KTO: "KTO", TaskKind.GRPO: "GRPO"}
REFERENCE_WORDS = {
    Reference.NONE: "no reference",
    Reference.ADAPTER_OFF: "adapters off as reference",
    Reference.ADAPTER_COPY: "a copy of the adapters as reference",
    Reference.COPY: "a second model as reference",
    Reference.PRECOMPUTED: "a precomputed reference",
}
SHORT_TYPES = {DType.FLOAT32: "fp32", DType.BFLOAT16: "bf16", DType.FLOAT16: "fp16"}


def recipe_text(recipe: Recipe, *, num_gpus: int, sees: bool) -> str:
    """A recipe in a few words: everything that decides memory and time. ``sees``: a vision encoder runs too."""
    words = [_method_text(recipe), precision_text(recipe), engine_text(recipe, num_gpus)]
    words += _reduction_words(recipe, num_gpus)
    words += _update_words(recipe)
    words.append(f"micro batch {recipe.micro_batch} x {recipe.grad_accum}{_batch_text(recipe, sees=sees)}")
    words.append(_checkpointing_text(recipe, sees=sees))
    words += ["layer inputs on the host"] if recipe.offload_activations else []
    words += ["tiled MLPs"] if recipe.tiled_mlp else []
    words += [f"{recipe.attention.value} attention"]
    words += ["fla's delta nets"] if recipe.linear_attention is LinearAttention.FLA else []
    words += [LOSS_WORDS[recipe.loss]]
    words += ["Liger's layers"] if recipe.liger_layers else []
    words += ["compiled norms"] if recipe.compiled_norms else []
    words += ["fused adapters"] if recipe.fused_adapters else []
    words += ["input gradients"] if any(recipe.needs_input_gradients) else []
    words += ["reentrant checkpoints"] if recipe.checkpoints_reentrantly else []
    words += ["checkpoints of parts"] if recipe.checkpoints_parts else []
    words.append("expandable segments" if recipe.expandable_segments else "native allocator")
    words += _library_words(recipe, sees=sees)
    words += [] if recipe.evaluation is None else [evaluation_text(recipe.evaluation)]
    words += [] if recipe.task is None else task_words(recipe)
    return ", ".join(words)


def _library_words(recipe: Recipe, *, sees: bool) -> list[str]:
    """Releases of libraries with which a step takes other memory than with the first that were checked."""
    torch, transformers = recipe.torch_version, recipe.transformers_version
    words = [f"transformers {transformers.value}"] if sees and transformers is not TransformersVersion.V5_23 else []
    # In bf16 flash runs, or nothing that takes grouped heads does.
    is_other = torch is not TorchVersion.V2_13 and recipe.precision.dtype is not DType.BFLOAT16
    return [*words, f"torch {torch.value}"] if is_other else words


def _reduction_words(recipe: Recipe, num_gpus: int) -> list[str]:
    """What of PyTorch's own engines is not as the bundled trainer has it by itself."""
    words: list[str] = []
    if recipe.fsdp:
        words += [] if recipe.reshard_after_forward else ["weights kept until backward"]
        words += [] if recipe.sync_each_batch else ["reduced once a step"]
        words += ["reduced in fp32"] if recipe.reduces_in_float32 else []
        words += ["4-bit weights whole"] if recipe.leaves_out_packed and recipe.method is Method.QLORA else []
        words += [UNIT_WORDS[recipe.shard_units]] if recipe.has_ends_in_root else []
        words += [PREFETCH_WORDS[recipe.flat_parameters]] if recipe.is_flat else []
        words += ["weights gathered ahead in forward"] if recipe.prefetches_forward else []
    elif recipe.zero_stage is None and num_gpus > 1 and not recipe.gradient_as_bucket_view:
        words.append("gradients beside buckets")
    return words


def _update_words(recipe: Recipe) -> list[str]:
    if recipe.optimizer is not OptimizerKind.ADAMW:
        return [recipe.optimizer.value]
    if recipe.flattens_update:
        return ["DeepSpeed's FusedAdam"]
    updates_itself = recipe.zero_stage is None or recipe.master_dtype is recipe.trained_dtype
    return ["foreach updates"] if updates_itself and not recipe.fuses_optimizer else []


def _batch_text(recipe: Recipe, *, sees: bool) -> str:
    """How samples lie in a micro batch, and what of a step's micro batches is on the GPU."""
    text = f" {recipe.batching.value}" if recipe.batching is not Batching.PADDED else ""
    if recipe.keeps_batches:
        text += " kept on the GPU for the step"
    return f"{text} with fp32 pixels" if sees and recipe.batches_on_gpu.has_wide_pixels else text


def evaluation_text(evaluation: Evaluation) -> str:
    """The batch, and what is kept of every sample.

    >>> evaluation_text(Evaluation(batch=8, kept=Kept.LOGITS, accumulation=2))
    'evaluation batch 8 with logits kept, to the host every 2 batches'
    >>> evaluation_text(Evaluation(batch=8, generations=4))
    'evaluation batch 8, 4 answers a prompt'
    >>> evaluation_text(Evaluation(batch=8, samples=1000, every=500))
    'evaluation batch 8 of 1,000 samples, every 500 steps'
    >>> evaluation_text(Evaluation(batch=8, early_stopping_patience=3))
    'evaluation batch 8, the best is the result, 3 without a lower loss end the run'
    """
    text = f"evaluation batch {evaluation.batch}"
    text += "" if evaluation.samples is None else f" of {counted(evaluation.samples, 'sample')}"
    text += _every_words(evaluation.every) + (", on start" if evaluation.on_start else "")
    if evaluation.delay:
        text += f", from {'epoch' if evaluation.every is Moment.EPOCH else 'step'} {evaluation.delay:g} on"
    text += ", once more after training" if evaluation.after_training else ""
    text += _best_words(evaluation)
    text += "" if evaluation.generations is None else f", {evaluation.generations} answers a prompt"
    if evaluation.new_tokens:
        beams = f" with {evaluation.beams} beams" if evaluation.beams > 1 else ""
        text += f" generating {evaluation.new_tokens:,} tokens{beams}"
    if evaluation.kept is Kept.LOSS:
        return text
    every = {None: "at the end", 1: "every batch"}.get(
        evaluation.accumulation, f"every {evaluation.accumulation} batches"
    )
    return f"{text} with {evaluation.kept.value} kept, to the host {every}"


def _best_words(evaluation: Evaluation) -> str:
    """What the evaluations decide of the run."""
    patience = evaluation.early_stopping_patience
    text = ", the best is the result" if evaluation.keeps_best else ""
    if patience is None:
        return text
    threshold = evaluation.early_stopping_threshold
    by = f" by more than {threshold:g}" if threshold else ""
    return f"{text}, {patience:,} without a lower loss{by} end the run"


def _every_words(every: Every) -> str:
    """How often, where that is not after every epoch."""
    if isinstance(every, Moment):
        return ", at the end" if every is Moment.END else ""
    return f", every {every:.3g} of the run" if every < 1 else f", every {counted(int(every), 'step')}"


def task_words(recipe: Recipe) -> list[str]:
    """What is trained for, its reference, and how answers are generated."""
    task, reference = recipe.task, recipe.reference
    if task is None:
        return []
    title = TASK_TITLES[task.kind]
    reference_words = REFERENCE_WORDS[Reference.ADAPTER_COPY if copies_adapters(recipe) else reference]
    words = [title if task.is_reward else f"{title} with {reference_words}"]
    words += [] if task.completion_tokens is None else [f"answers of {task.completion_tokens:,} tokens"]
    words += ["no estimate of the KL divergence"] if task.is_kto and not task.estimates_kl else []
    words += [] if task.disables_dropout is None else [f"dropout {'off' if task.disables_dropout else 'left on'}"]
    words += [] if task.router_loss else ["no loss of routers"]
    if not task.is_grpo:
        return words
    at_once = recipe.micro_batches_at_once * recipe.micro_batch
    words.append(f"{task.num_generations} answers a prompt, {at_once} generated at once")
    words += [f"trained on {task.num_iterations} times"] if task.num_iterations > 1 else []
    words.append(_generation_text(task))
    if task.reward_params:
        words.append(f"reward models of {task.reward_params:,} parameters")
    return words


def _generation_text(task: TrainingTask) -> str:
    if task.generation is not Generation.VLLM:
        return {Generation.TRANSFORMERS: "by transformers", Generation.SERVER: "by a vLLM server"}[task.generation]
    text = "by vLLM" + ("" if task.vllm_memory is None else f" with {task.vllm_memory:.0%} of each GPU")
    text += f", shared by {task.vllm_tensor_parallel} GPUs" if task.vllm_tensor_parallel > 1 else ""
    return f"{text}, asleep in training (level {task.vllm_sleep_level})" if task.vllm_sleep_level else text


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
        text += "".join(f" and the full {part}" for part in _full_parts(recipe))
        text += f" with dropout {recipe.lora_dropout:g}" if recipe.lora_dropout else ""
    return text


def _in_shards(computed: DType, held: DType) -> str:
    """`` in fp32 shards``: in which type FSDP holds and updates what is computed with in another."""
    return "" if held is computed else f" in {SHORT_TYPES[held]} shards"


def _full_parts(recipe: Recipe) -> list[str]:
    """The parts whose own weights are trained beside adapters, in words."""
    if not recipe.trains_full_parts:
        return []
    return [*(["vision encoder"] if recipe.full_vision else []), *(["projector"] if recipe.full_projector else [])]


def precision_text(recipe: Recipe) -> str:
    """The precision, and in which types weights are kept: ``bf16 (bf16 weights, fp32 adapters, autocast)``."""
    trained, master = SHORT_TYPES[recipe.trained_dtype], SHORT_TYPES[recipe.master_dtype]
    frozen, frozen_shards = SHORT_TYPES[recipe.frozen_dtype], _in_shards(recipe.frozen_dtype, recipe.frozen_held_dtype)
    shards = _in_shards(recipe.trained_dtype, recipe.held_dtype)
    words: list[str] = []
    if recipe.method is Method.QLORA:
        scales = "" if recipe.use_double_quant else " with fp32 scales"
        words.append(f"4-bit weights{scales}, others {frozen}{frozen_shards}")
    elif recipe.method is Method.LORA_8BIT:
        words.append(f"8-bit weights, others {frozen}{frozen_shards}")
    elif recipe.method is Method.LORA:
        words.append(f"{frozen} weights{frozen_shards}")
    words.append(f"{trained} {'adapters' if recipe.trains_adapters else 'weights'}{shards}")
    if recipe.train_embeddings and recipe.copy_dtype is not recipe.trained_dtype:
        words.append(f"{SHORT_TYPES[recipe.copy_dtype]} embeddings")
    if (full := _full_parts(recipe)) and recipe.full_part_dtype is not recipe.trained_dtype:
        words.append(f"{SHORT_TYPES[recipe.full_part_dtype]} {' and '.join(full)}")
    words += [f"{master} master copy"] if recipe.master_dtype is not recipe.held_dtype else []
    if recipe.can_autocast:
        cached = " with cached casts" if recipe.caches_casts else ""
        words.append(f"autocast{cached}" if recipe.uses_autocast else "no autocast")
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
    if recipe.dp_shard_size is not None:
        text += f", each {recipe.dp_shard_size} GPUs a copy"
    if recipe.sequence_parallel > 1:
        text += f", sequence parallel {recipe.sequence_parallel}"
    if recipe.offload_optimizer is not Offload.NONE:
        text += f", optimizer on {recipe.offload_optimizer.value}"
    if recipe.offload_params is not Offload.NONE:
        text += f", weights on {recipe.offload_params.value}"
    return text
