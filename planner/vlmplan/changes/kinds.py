"""Changes of a setup that save memory, by kind, as options of the command line.

Each kind gives its levels for a setup, the smallest first; none where it does not apply. Whether a level can run is for
the rules to say. Three groups, in the order in which they may be asked for:

    keeping   what leaves the result as it is, but for rounding and the order in which numbers are added; how much time
              each costs decides among them. Those that cost none come last, so that what costs time is taken back first
    results   precision, optimizer and method: another model comes out
    samples   less text, smaller images
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from vlmplan.architecture.config import Config
from vlmplan.changes.change import Change, Levels
from vlmplan.changes.rollouts import (
    answers_at_once,
    idle_on_host,
    same_answers,
    shared_vllm,
    sleeping_vllm,
    smaller_scoring,
    verls_kernels,
)
from vlmplan.errors import InputError
from vlmplan.recipe import PLAIN, Recipe, engine_name
from vlmplan.recipe.choices import (
    AttentionImplementation,
    LinearAttention,
    LossKind,
    Method,
    Offload,
    OptimizerKind,
    Precision,
    WeightDtype,
    is_worth_tiling,
    lighter_methods,
)
from vlmplan.recipe.evaluation import Kept
from vlmplan.request import Options, OptionValue
from vlmplan.request.setup import RequestedSetup
from vlmplan.rules import attention_implementations, losses, model_facts
from vlmplan.rules.recurrent import GATED_DELTA_TYPES
from vlmplan.sample_audio import encoded_tokens
from vlmplan.sample_images import image_tokens
from vlmplan.units import divisors

SHARES = ((3, 4), (1, 2), (1, 4))
"""Parts to which text and images are cut. A choice."""
PLAIN_OPTIONS = (
    *("uses_autocast", "fuses_optimizer", "caches_casts", "upcasts_frozen", "adapter_dtype"),
    "gradient_as_bucket_view",
)
"""Settings of plain PyTorch alone, which DeepSpeed is not asked for."""
FSDP_OPTIONS = (
    *("fsdp", "reshard_after_forward", "sync_each_batch", "reduces_in_float32", "shards_packed", "shard_units"),
    *("flat_parameters", "uses_orig_params", "prefetches_forward", "dp_shard_size"),
)


def without_plain_options(weight_dtype: WeightDtype | None) -> dict[str, OptionValue]:
    """What an engine of DeepSpeed's is not asked for in place of the present one. In which type weights are loaded
    stays, unless DeepSpeed has none of it."""
    options: dict[str, OptionValue] = dict.fromkeys(PLAIN_OPTIONS)
    return options if weight_dtype is WeightDtype.FLOAT32 else {**options, "weight_dtype": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The changes that are tried.

    ``kinds`` keep the results, each with its levels, what costs most time first; of ``engines``, which do so too, at
    most one is taken, as of ``results``, whose changes go together, the least first and nothing before all, and of
    ``samples``, the longest first.
    """

    kinds: tuple[Levels, ...]
    results: tuple[tuple[Change, ...], ...]
    samples: tuple[tuple[Change, ...], ...]
    engines: tuple[Change, ...] = ()
    packages: tuple[Levels, ...] = ()
    """Kinds that need a package to be installed: tried where what fits without is more than settings."""


def all_changes(at: RequestedSetup) -> Space:
    """Everything that can be changed of a setup."""
    return Space(
        kinds=tuple(levels for kind in KEEPING if (levels := kind(at))),
        results=tuple(result_changes(at)),
        samples=tuple(sample_changes(at)),
        engines=tuple(engine_changes(at)),
    )


# -- keeping ---------------------------------------------------------------------------------------------------------


def _one(name: str, options: Options, *, applies: bool = True, is_larger: bool = False) -> Levels:
    """A kind of a single level, where it applies."""
    return (Change(name=name, options=options, is_larger=is_larger),) if applies else ()


def _micro_batch(at: RequestedSetup) -> Levels:
    """Every smaller micro batch that makes the same global batch."""
    micro_batch, grad_accum = at.recipe.micro_batch, at.recipe.grad_accum
    total = micro_batch * grad_accum
    least = 1 if at.recipe.task is None else at.recipe.task.least_micro_batch
    sizes = [size for size in reversed(divisors(micro_batch, grad_accum)) if least <= size < micro_batch]
    return tuple(
        Change(
            name=f"micro batch {size} x {total // size}",
            options={"micro_batch": size, "grad_accum": total // size, **same_answers(at.recipe, size)},
        )
        for size in sizes
    )


def _text_checkpointing(at: RequestedSetup) -> Levels:
    """Checkpointing of the language model; that of the vision tower stays, which follows it where the user says
    nothing."""
    tower = {"vision_activation_checkpointing": at.recipe.vision_activation_checkpointing}
    options = {"activation_checkpointing": True, **tower}
    return _one("activation checkpointing", options, applies=not at.recipe.activation_checkpointing)


def _activations_on_host(at: RequestedSetup) -> Levels:
    """Inputs of checkpointed layers; of a model whose layers are not checkpointed it takes checkpointing too."""
    applies = not (at.recipe.offload_activations or at.cluster.node.gpu.is_cpu)
    return _one("layer inputs on the host", {"offload_activations": True}, applies=applies, is_larger=True)


def _tiled_mlps(at: RequestedSetup) -> Levels:
    """Tiled MLPs, for samples that are longer than they are wide."""
    config = Config(at.workload.model.config)
    text = config.section("text_config") if "text_config" in config else config
    num_tokens = -(-at.workload.seq_len // at.recipe.sequence_parallel)
    if at.recipe.tiled_mlp or "hidden_size" not in text:
        return ()
    applies = is_worth_tiling(num_tokens, text.integer("hidden_size"))
    return _one("tiled MLPs", {"tiled_mlp": True}, applies=applies)


def _delta_kernels(at: RequestedSetup) -> Levels:
    """Kernels of gated delta nets, of which only the packages are asked for."""
    is_recurrent = bool(model_facts(at.workload.model).model_types & GATED_DELTA_TYPES)
    applies = is_recurrent and at.recipe.linear_attention is not LinearAttention.FLA
    return _one("kernels of gated delta nets", {"linear_attention": LinearAttention.FLA.value}, applies=applies)


def _vision_checkpointing(at: RequestedSetup) -> Levels:
    applies = at.workload.has_encoded_inputs and not at.recipe.vision_activation_checkpointing
    options = {"vision_activation_checkpointing": True}
    return _one("activation checkpointing of the vision tower", options, applies=applies)


def _chunked_loss(at: RequestedSetup) -> Levels:
    keeps_logits = at.recipe.evaluation is not None and at.recipe.evaluation.kept is not Kept.LOSS
    applies = at.recipe.loss is not LossKind.CHUNKED and not keeps_logits
    applies = applies and LossKind.CHUNKED in losses(model_facts(at.workload.model))
    return _one("chunked loss", {"loss": LossKind.CHUNKED.value}, applies=applies)


def _attention(at: RequestedSetup) -> Levels:
    """What keeps less than the present implementation, as far as the model has it and the card runs it."""
    order = (AttentionImplementation.EAGER, AttentionImplementation.SDPA, AttentionImplementation.FLASH_ATTENTION_2)
    known = set(attention_implementations(model_facts(at.workload.model), at.recipe.transformers_version))
    if not at.cluster.node.gpu.supports_flash_attention_2:
        known.discard(AttentionImplementation.FLASH_ATTENTION_2)
    leaner = [kind for kind in order[order.index(at.recipe.attention) + 1 :] if kind in known]
    return tuple(Change(name=f"{kind.value} attention", options={"attention": kind.value}) for kind in leaner)


def _uncached_casts(at: RequestedSetup) -> Levels:
    is_used = at.recipe.caches_casts and at.recipe.autocast is not None
    return _one("no cached casts", {"caches_casts": False}, applies=is_used)


def _fused_optimizer(at: RequestedSetup) -> Levels:
    """One kernel needs no copy of a state."""
    is_foreach = at.recipe.optimizer is OptimizerKind.ADAMW and not at.recipe.fuses_optimizer
    return _one("fused optimizer", {"fuses_optimizer": True}, applies=is_foreach)


def _no_upcast(at: RequestedSetup) -> Levels:
    options = {"upcasts_frozen": False}
    return _one("no float32 copies of frozen weights", options, applies=at.recipe.upcasts_frozen)


def _narrow_loading(at: RequestedSetup) -> Levels:
    """What DeepSpeed casts to 16 bit anyway is loaded so: every rank's host memory has a quarter of it at the most."""
    options = {"weight_dtype": WeightDtype.TABLE.value}
    return _one("weights loaded in 16 bit", options, applies=at.recipe.casts_loaded)


def _expandable_segments(at: RequestedSetup) -> Levels:
    applies = not (at.cluster.node.gpu.is_cpu or at.recipe.expandable_segments)
    return _one("expandable segments", {"expandable_segments": True}, applies=applies)


def _evaluation_keeps(at: RequestedSetup) -> Levels:
    """The argmax of logits first, of which most metrics are made as well."""
    evaluation = at.recipe.evaluation
    if evaluation is None or evaluation.kept is Kept.LOSS:
        return ()
    loss = Change(name="evaluation for the loss alone", options={"eval_keeps": Kept.LOSS.value})
    if evaluation.kept is Kept.PREDICTIONS:
        return (loss,)
    name = "evaluation that keeps predictions in place of logits"
    return (Change(name=name, options={"eval_keeps": Kept.PREDICTIONS.value}), loss)


def _evaluation_batch(at: RequestedSetup) -> Levels:
    """Halves of it, down to one sample."""
    evaluation = at.recipe.evaluation
    sizes: list[int] = []
    while evaluation is not None and (sizes or [evaluation.batch])[-1] > 1:
        sizes.append((sizes or [evaluation.batch])[-1] // 2)
    return tuple(Change(name=f"evaluation batch {size}", options={"eval_batch": size}) for size in sizes)


def _evaluation_accumulation(at: RequestedSetup) -> Levels:
    """What is kept moves to the host after every batch."""
    evaluation = at.recipe.evaluation
    applies = evaluation is not None and evaluation.kept is not Kept.LOSS and evaluation.accumulation != 1
    return _one("evaluation's outputs to the host after every batch", {"eval_accumulation": 1}, applies=applies)


KEEPING: tuple[Callable[[RequestedSetup], Levels], ...] = (
    _activations_on_host,
    _tiled_mlps,
    _text_checkpointing,
    answers_at_once,
    smaller_scoring,
    verls_kernels,
    sleeping_vllm,
    shared_vllm,
    _micro_batch,
    _vision_checkpointing,
    _chunked_loss,
    _attention,
    _delta_kernels,
    _uncached_casts,
    _fused_optimizer,
    _no_upcast,
    _narrow_loading,
    _expandable_segments,
    _evaluation_keeps,
    _evaluation_batch,
    _evaluation_accumulation,
    idle_on_host,
)
"""Kinds that go together with every engine that the rules allow, what costs most time first, roughly."""
Engine = tuple[int | None, Offload, Offload]
"""(stage, where optimizer states are, where weights are)"""
HOST, GPU = Offload.CPU, Offload.NONE
PLAIN_ENGINE: Engine = (None, GPU, GPU)
ON_ONE_GPU: tuple[Engine, ...] = ((2, HOST, GPU), (3, GPU, HOST), (3, HOST, HOST))
ON_SEVERAL: tuple[Engine, ...] = (
    *((1, GPU, GPU), (2, GPU, GPU), (3, GPU, GPU)),
    *((2, HOST, GPU), (3, HOST, GPU), (3, GPU, HOST), (3, HOST, HOST)),
)
"""What is tried beside ``PLAIN_ENGINE``."""


def engine_changes(at: RequestedSetup) -> Iterator[Change]:
    """Other ZeRO stages and what is offloaded, and the present ones without hpZ's secondary partition of the weights.

    Where a file decides the engine, the changed command does without it; a gradient clipping that no option can name
    keeps it.
    """
    recipe = at.recipe
    present = (recipe.zero_stage, recipe.offload_optimizer, recipe.offload_params)
    plain = without_plain_options(recipe.weight_dtype)
    without_file: dict[str, OptionValue] | None = {}
    if at.ds_config is not None:
        without_file = options_of_file(recipe)
        if without_file is None:
            return
    num_gpus = at.cluster.num_gpus
    for engine in (PLAIN_ENGINE, *(ON_ONE_GPU if num_gpus == 1 else ON_SEVERAL)):
        if at.cluster.node.gpu.is_cpu and HOST in engine:
            continue  # the ranks' own memory is the host's
        if engine == present and not recipe.fsdp and recipe.hpz == 1 and at.ds_config is None:
            continue
        stage, optimizer, params = engine
        options = {
            "zero_stage": PLAIN if stage is None else str(stage),
            "offload_optimizer": optimizer.value,
            "offload_params": params.value,
            "hpz": None,
            **dict.fromkeys(FSDP_OPTIONS),
        }
        is_larger = (stage is None) is recipe.uses_deepspeed or engine.count(HOST) > present.count(HOST)
        options = without_file | (plain if stage is not None else {}) | options
        yield Change(name=engine_title(engine, num_gpus), options=options, is_larger=is_larger)


def options_of_file(recipe: Recipe) -> dict[str, OptionValue] | None:
    """What a DeepSpeed file says beside the engine, as options in its place; None where no option can."""
    if recipe.gradient_clipping != Recipe().gradient_clipping:
        return None
    said: dict[str, OptionValue] = {name: getattr(recipe, name).value for name in ("precision", "optimizer")}
    return {**said, "micro_batch": recipe.micro_batch, "grad_accum": recipe.grad_accum, "ds_config": None}


def engine_title(engine: Engine, num_gpus: int) -> str:
    """The engine and what is on the host or a drive, as tables name it."""
    stage, optimizer, params = engine
    text = engine_name(Recipe(zero_stage=stage), num_gpus)
    for place, where in ((HOST, "the host"), (Offload.NVME, "a drive")):
        those = [name for name, its_place in (("optimizer", optimizer), ("weights", params)) if its_place is place]
        text += f", {' and '.join(those)} on {where}" if those else ""
    return text


# -- results ---------------------------------------------------------------------------------------------------------


def result_changes(at: RequestedSetup) -> Iterator[tuple[Change, ...]]:
    """What of the results may change, the least first, beginning with nothing: full, LoRA, QLoRA in this order, each
    first as it is and then with narrower numbers."""
    narrower = list(_narrower(at))
    for method in ((), *((change,) for change in _methods(at))):
        for numbers in ((), *((change,) for change in narrower), *([tuple(narrower)] if len(narrower) > 1 else [])):
            yield (*method, *numbers)


def _narrower(at: RequestedSetup) -> Iterator[Change]:
    if at.recipe.precision is Precision.FP32:
        kind = Precision.BF16 if at.cluster.node.gpu.supports_bf16 else Precision.FP16
        yield Change(name=f"{kind.value} precision", options={"precision": kind.value}, keeps_results=False)
    if at.recipe.optimizer is OptimizerKind.ADAMW:
        options = {"optimizer": OptimizerKind.ADAMW_8BIT.value}
        yield Change(name="8-bit optimizer", options=options, keeps_results=False)


def _methods(at: RequestedSetup) -> Iterator[Change]:
    names = {Method.LORA: "LoRA", Method.QLORA: "QLoRA"}
    for method in lighter_methods(at.recipe.method):
        options = {"method": method.value}
        yield Change(name=names[method], options=options, keeps_results=False)


# -- samples ---------------------------------------------------------------------------------------------------------


def sample_changes(at: RequestedSetup, shares: tuple[tuple[int, int], ...] = SHARES) -> Iterator[tuple[Change, ...]]:
    """Less text, smaller images, whose tokens then leave the sample, or both; the longest samples first."""
    for part, whole in shares:
        text = text_change(at, part, whole)
        images, both = image_change(at, part, whole), _both(at, part, whole)
        yield from ((change,) for change in (text, images, both) if change is not None)


def text_change(at: RequestedSetup, part: int, whole: int) -> Change | None:
    """``part`` of ``whole`` of the tokens that are no image's and no sound's."""
    encoded = encoded_tokens(at.workload)
    text = (at.workload.seq_len - encoded) * part // whole
    if not text:
        return None
    return Change(name=f"{part}/{whole} of the text", options={"seq_len": encoded + text}, keeps_results=False)


def image_change(at: RequestedSetup, part: int, whole: int, *, dropped_text: int = 0) -> Change | None:
    """Images with this part of their sides; the text stays, but for ``dropped_text`` tokens of it."""
    workload = at.workload
    if not workload.images_per_sample or workload.clip_frames is not None:  # a frame has the tower's size
        return None
    width, height = workload.image_width * part // whole, workload.image_height * part // whole
    with suppress(InputError):
        smaller = replace(workload, image_width=width, image_height=height)
        length = workload.seq_len - image_tokens(workload) + image_tokens(smaller) - dropped_text
        name, options = f"images of {part}/{whole} the side", {"image_size": f"{width}x{height}", "seq_len": length}
        return Change(name=name, options=options, keeps_results=False)
    return None


def _both(at: RequestedSetup, part: int, whole: int) -> Change | None:
    dropped = (at.workload.seq_len - encoded_tokens(at.workload)) * (whole - part) // whole
    images = image_change(at, part, whole, dropped_text=dropped)
    return None if images is None else replace(images, name=f"{part}/{whole} of the text, {images.name}")
