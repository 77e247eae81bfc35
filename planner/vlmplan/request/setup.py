"""The setup that a request means: workload, cluster and recipe, checked, and completed by defaults.

What the user decided of the recipe a search holds fixed (``fixed_recipe``); ``resolved_recipe`` fills in the rest for
one estimate.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from vlmplan.errors import InputError
from vlmplan.estimation import refuse_lone_answer, refuse_parts_of_groups, refuse_too_small, scored_tokens, whole_groups
from vlmplan.hardware import Cluster
from vlmplan.recipe import PLAIN, Recipe
from vlmplan.recipe.choices import LossKind, Method, Offload, Precision
from vlmplan.recipe.decided import DecidedRecipe, Stage
from vlmplan.recipe.evaluation import Kept
from vlmplan.recipe.libraries import PLANNED_TRANSFORMERS
from vlmplan.recipe.settings import option_name
from vlmplan.recipe.task import TrainingTask
from vlmplan.request.idle_options import idle_notes, idle_notes_of_evaluation, typed_recipe, with_engine_of_options
from vlmplan.request.record import Request
from vlmplan.request.samples import length_notes, workload_of
from vlmplan.request.saving_and_loading import requested_loader_workers, requested_saving
from vlmplan.request.trainer_behaviour import as_its_trainer, refuse_beyond_trainer, with_trainer_defaults
from vlmplan.rules import ModelFacts, check, default_attention, default_lora_exclude, losses, model_facts
from vlmplan.sample_images import sample_image
from vlmplan.units import counted
from vlmplan.workload import (
    MAX_NUM_SAMPLES,
    ModelFiles,
    Workload,
)

if TYPE_CHECKING:
    from vlmplan.deepspeed_config import DsConfig
    from vlmplan.other_trainers.writing import Tool

OPTIONS_IN_FILE = (
    *("zero_stage", "offload_optimizer", "offload_params", "hpz", "sequence_parallel", "nvme_path", "optimizer"),
    *("micro_batch", "grad_accum", "precision"),
)
"""Options that a ds_config.json decides too, in the order in which contradictions are named."""
MULTI_GPU_ZERO_STAGE = 2
"""Stage of an estimate for several GPUs where the user names none."""


def with_task(workload: Workload, task: TrainingTask | None) -> Workload:
    """``workload`` with the samples that the task makes of each entry."""
    return workload if task is None else replace(workload, samples_per_entry=task.samples_per_prompt)


def resolved_recipe(
    decided: DecidedRecipe,
    cluster: Cluster,
    model: ModelFiles,
    *,
    global_batch: int | None = None,
    ds_config: "DsConfig | None" = None,
    made_for: "Tool | None" = None,
) -> tuple[Recipe, list[str]]:
    """The recipe of an estimate, and warnings: full fine-tuning with checkpointing, where the user does not decide.

    Without a stage one GPU trains in plain PyTorch and several under ZeRO-2. What torch and peft do by default stays
    so: the native allocator, foreach optimizers, cached casts, upcast 4-bit models; a search chooses better. A
    ``global_batch`` must be a whole number of micro batches on every GPU. What is ``made_for`` another trainer is as
    that does it. Raises InputError for what cannot run.
    """
    facts, given = model_facts(model), decided.names
    decided = _completed(decided, cluster, model, facts, ds_config, made_for)
    if ds_config is not None:
        try:
            recipe = _merged(ds_config, decided, cluster, model, given=given, global_batch=global_batch)
        except InputError as error:
            raise InputError(in_words_of_file(str(error), ds_config, given)) from None
    else:
        groups = cluster.num_gpus // (decided.sequence_parallel or 1)
        if global_batch is not None and groups:
            sizes = batch_sizes(global_batch, groups, decided.micro_batch, decided.grad_accum)
            decided = replace(decided, **sizes)
        recipe = decided.recipe()
    samples = recipe.samples_per_step(cluster.num_gpus)
    if samples > MAX_NUM_SAMPLES:
        sentence = (
            f"--micro-batch {recipe.micro_batch} x --grad-accum {recipe.grad_accum} x {cluster.num_gpus} GPUs are "
            f"{samples:,} samples a step; at most {MAX_NUM_SAMPLES:,} can be planned"
        )
        raise InputError(in_words_of_file(sentence, ds_config, given))
    try:
        if made_for is not None:
            refuse_beyond_trainer(made_for, recipe, model)
        warnings = check(recipe, cluster=cluster, model=facts, global_batch=global_batch, given=given)
    except InputError as error:
        raise InputError(in_words_of_file(str(error), ds_config, given)) from None
    return recipe, [in_words_of_file(problem.sentence, ds_config, given) for problem in warnings]


def in_words_of_file(sentence: str, ds_config: "DsConfig | None", given: frozenset[str]) -> str:
    """A sentence about a setup, which names keys of the DeepSpeed file for options that it decides and nobody gave."""
    if ds_config is None:
        return sentence
    from vlmplan.deepspeed_config import with_keys_of_file

    return with_keys_of_file(sentence, ds_config, given)


def _completed(
    decided: DecidedRecipe,
    cluster: Cluster,
    model: ModelFiles,
    facts: ModelFacts,
    ds_config: "DsConfig | None",
    made_for: "Tool | None",
) -> DecidedRecipe:
    """What the user decided, completed by the trainer that it is made for, by the stage of a DeepSpeed file and by
    defaults, in this order."""
    decided = with_trainer_defaults(decided, made_for, model)
    if ds_config is not None:
        decided = decided.completed(DecidedRecipe(zero_stage=ds_config.zero_stage or 0))
    decided = decided.completed(_defaults(decided, cluster, facts))
    if made_for is not None:
        from vlmplan.other_trainers.writing import behaviour

        decided = decided.completed(behaviour(made_for, decided.recipe(), model))
    is_plain = decided.zero_stage == PLAIN and not decided.fsdp
    return decided.completed(_plain_defaults(decided)) if is_plain else decided


def _merged(
    ds_config: "DsConfig",
    decided: DecidedRecipe,
    cluster: Cluster,
    model: ModelFiles,
    *,
    given: frozenset[str],
    global_batch: int | None,
) -> Recipe:
    """The recipe with what the DeepSpeed file says in it."""
    from vlmplan.deepspeed_config import merged_recipe
    from vlmplan.models.hidden_size import hidden_size_of

    return merged_recipe(
        ds_config,
        decided.recipe(),
        num_gpus=cluster.num_gpus,
        given=given,
        global_batch=global_batch,
        hidden_size=hidden_size_of(model.config),
    )


def _defaults(decided: DecidedRecipe, cluster: Cluster, facts: ModelFacts) -> DecidedRecipe:
    gpu = cluster.node.gpu
    adapts_all = decided.method not in (None, Method.FULL) and decided.lora_targets is None
    return DecidedRecipe(
        zero_stage=_default_stage(decided, cluster),
        precision=Precision.BF16 if gpu.supports_bf16 else Precision.FP16,
        attention=default_attention(facts, decided.transformers_version or PLANNED_TRANSFORMERS),
        loss=_default_loss(decided, facts),
        lora_exclude=default_lora_exclude(facts) if adapts_all else None,
        # On a CPU there is no caching allocator: large blocks go back to the system when they are freed.
        expandable_segments=gpu.is_cpu,
        activation_checkpointing=None if facts.can_checkpoint else False,
        vision_activation_checkpointing=decided.activation_checkpointing,
    )


def _default_loss(decided: DecidedRecipe, facts: ModelFacts) -> LossKind:
    """The one that takes least memory; of those that make logits, where an evaluation keeps them."""
    keeps_logits = decided.evaluation is not None and decided.evaluation.kept is not Kept.LOSS
    return [loss for loss in losses(facts) if not (keeps_logits and loss is LossKind.CHUNKED)][-1]


def _plain_defaults(decided: DecidedRecipe) -> DecidedRecipe:
    """What torch and peft do in plain PyTorch."""
    uses_autocast = decided.uses_autocast is not False
    casts = decided.precision in (Precision.BF16, Precision.FP16) and uses_autocast
    return DecidedRecipe(
        fuses_optimizer=False,
        caches_casts=casts,
        upcasts_frozen=decided.method is not None and decided.method.packs_weights and casts,
    )


class RequestedSetup(NamedTuple):
    """One setup as a request asks for it; ``notes`` are sentences that the user should see with its numbers."""

    workload: Workload
    recipe: Recipe
    cluster: Cluster
    ds_config: "DsConfig | None" = None
    notes: tuple[str, ...] = ()


def requested_setup(request: Request, machine: tuple[Cluster, Sequence[str]], model: ModelFiles) -> RequestedSetup:
    """What ``estimate`` computes for a request on its ``requested_cluster``; the sizes of ZeRO's buckets are chosen
    later unless the request's ds_config has them. Raises InputError for what cannot run."""
    cluster, notes = machine
    ds_config = request.ds_config
    task = request.task.task()
    asked = workload_of(model, request.workload, requested_saving(request), requested_loader_workers(request))
    workload = with_task(asked, task)
    decided, typed = as_its_trainer(request, workload.model), typed_recipe(request)
    if ds_config is None:
        decided = with_engine_of_options(decided, typed)
    is_left = decided.grad_accum is None or workload.global_batch is None
    if task is not None and task.estimates_kl and decided.micro_batch is None and is_left and ds_config is None:
        decided = replace(decided, micro_batch=2)  # the least that any trainer takes
    if decided.grad_accum is None and workload.global_batch is None and ds_config is None:
        decided = replace(decided, grad_accum=whole_groups(task, decided.micro_batch or 1, cluster.num_gpus))
    recipe, warnings = resolved_recipe(
        decided,
        cluster,
        workload.model,
        global_batch=workload.global_batch,
        ds_config=ds_config,
        made_for=request.made_for,
    )
    if task is not None:
        scored_tokens(recipe, workload, sample_image(workload))
        refuse_parts_of_groups(recipe, cluster.num_gpus)
        refuse_too_small(task, recipe.micro_batch)
        refuse_lone_answer(task, recipe.micro_batch * recipe.grad_accum * cluster.num_gpus)
    more = [*idle_notes(typed, recipe, model, num_gpus=cluster.num_gpus)]
    more += [*idle_notes_of_evaluation(request), *file_notes(request, decided)]
    return RequestedSetup(
        workload=workload,
        recipe=recipe,
        cluster=cluster,
        ds_config=ds_config,
        notes=(*request.config_notes, *notes, *length_notes(workload, request.workload), *warnings, *more),
    )


def file_notes(request: Request, decided: DecidedRecipe) -> tuple[str, ...]:
    """What the user should know of how his ds_config.json was read."""
    if request.ds_config is None:
        return ()
    from vlmplan.deepspeed_config import notes_beside

    return notes_beside(request.ds_config, decided.names)


def samples_per_step(request: Request) -> int | None:
    """``--global-batch``, or the ``train_batch_size`` of ``--ds-config``. Raises InputError if they differ."""
    config, given = request.ds_config, request.workload.global_batch
    said = None if config is None else config.train_batch_size
    if config is not None and said is not None and given not in (None, said):
        raise InputError(
            f"{config.source}: train_batch_size is {said}, but --global-batch {given} was given; "
            f"one of the two has to change"
        )
    return given if said is None else said


def fixed_recipe(request: Request, model: ModelFiles) -> DecidedRecipe:
    """What a search holds fixed: what the user decided, and what ``--ds-config`` does. A trainer whose file is read has
    its checkpoints in all parts or in none, and on the host what its DeepSpeed file says, no more.

    Raises InputError with every contradiction between the two.
    """
    decided, config = with_trainer_defaults(as_its_trainer(request, model), request.made_for, model), request.ds_config
    if request.configured is not None:
        decided = decided.completed(DecidedRecipe(vision_activation_checkpointing=decided.activation_checkpointing))
    if config is None:
        return with_engine_of_options(decided, typed_recipe(request))
    from vlmplan.deepspeed_config import fixed_by_file
    from vlmplan.models.hidden_size import hidden_size_of

    said = fixed_by_file(config, hidden_size=hidden_size_of(model.config), stage=decided.zero_stage)
    if decided.hpz is None and said.hpz is None:
        said = replace(said, hpz=1)
    if config.precisions is None:  # then an option decides
        said = replace(said, precision=decided.precision or said.precision)
    elif decided.precision in config.precisions:
        said = replace(said, precision=decided.precision)
    clashes = [
        f"it means {option_name(name)} {_shown(in_file)}, but {option_name(name)} {_shown(given)} was given"
        for name in OPTIONS_IN_FILE
        if (in_file := getattr(said, name)) != (given := getattr(decided, name)) and None not in (in_file, given)
    ]
    if clashes:
        raise InputError(f"{config.source}: {'; '.join(clashes)}; one of the two has to change")
    fixed = said.completed(decided)
    if request.configured is None:
        return fixed
    return fixed.completed(DecidedRecipe(offload_optimizer=Offload.NONE, offload_params=Offload.NONE))


def _shown(value: object) -> str:
    return str(getattr(value, "value", value))


def _default_stage(decided: DecidedRecipe, cluster: Cluster) -> Stage:
    """Plain PyTorch on one GPU, ZeRO-2 on several; offloading needs a stage that can: 2, or 3 for parameters, as
    hpZ does. Where PyTorch shards, DeepSpeed does not."""
    if decided.fsdp:
        return PLAIN
    if decided.offload_params not in (None, Offload.NONE) or (decided.hpz or 1) > 1:
        return 3
    offloads = decided.offload_optimizer not in (None, Offload.NONE)
    return MULTI_GPU_ZERO_STAGE if offloads or cluster.num_gpus > 1 else PLAIN


def batch_sizes(global_batch: int, num_gpus: int, micro_batch: int | None, grad_accum: int | None) -> dict[str, int]:
    """Micro batch and accumulation that make ``global_batch`` on ``num_gpus``; a micro batch of 1 where neither is set.

    >>> batch_sizes(16, 4, None, None)
    {'micro_batch': 1, 'grad_accum': 4}
    """
    if micro_batch is None and grad_accum is None:
        micro_batch = 1
    if any(value is not None and value < 1 for value in (micro_batch, grad_accum)):
        return {}  # the recipe refuses them
    known = num_gpus * (micro_batch or 1) * (grad_accum or 1)
    if global_batch % known or (micro_batch and grad_accum and known != global_batch):
        parts = [counted(num_gpus, "GPU")]
        parts += [f"micro batch {micro_batch}"] if micro_batch is not None else []
        parts += [f"accumulation {grad_accum}"] if grad_accum is not None else []
        nearest = max(1, round(global_batch / known)) * known
        made = f"{known}" if micro_batch and grad_accum else f"multiples of {known}; the nearest is {nearest}"
        raise InputError(f"--global-batch is {global_batch}, but {' x '.join(parts)} make {made}")
    rest = global_batch // known
    if micro_batch is None:
        return {"micro_batch": rest, "grad_accum": grad_accum or 1}
    return {"micro_batch": micro_batch, "grad_accum": grad_accum or rest}
