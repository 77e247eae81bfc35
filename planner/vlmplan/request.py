"""What a user asked for, as options of the command line or arguments of a program: checked, and completed by defaults.

Options that were not given are absent or None. ``decided_recipe`` keeps only what the user decided, which a search
holds fixed; ``resolved_recipe`` fills in the rest for one estimate.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from vlmplan.architecture.images import IMAGE_MODEL_TYPES
from vlmplan.catalog import Catalog
from vlmplan.communication import ASSUMED_NETWORK_BYTES_PER_SECOND
from vlmplan.decided_recipe import DecidedRecipe, Stage
from vlmplan.errors import InputError, UnavailableError
from vlmplan.gpu_choice import LOCAL, chosen_node, parse_gpu_choice
from vlmplan.hardware import Cluster, Vendor
from vlmplan.models import context_length
from vlmplan.recipe import (
    PLAIN,
    AdapterDtype,
    AttentionImplementation,
    LossKind,
    Method,
    Offload,
    OptimizerKind,
    Precision,
    Recipe,
    enum_value,
    option_name,
)
from vlmplan.rules import check, default_attention, model_facts
from vlmplan.sample_images import image_tokens
from vlmplan.units import GIB, MAX_COUNT
from vlmplan.workload import (
    DEFAULT_EPOCHS,
    DEFAULT_IMAGE_SIZE,
    DEFAULT_NUM_SAMPLES,
    DEFAULT_SEQ_LEN,
    ModelFiles,
    Workload,
)

if TYPE_CHECKING:
    from vlmplan.deepspeed_config import DsConfig

Options = Mapping[str, Any]

ENUM_OPTIONS: Mapping[str, type[Enum]] = {
    "method": Method,
    "precision": Precision,
    "optimizer": OptimizerKind,
    "offload_optimizer": Offload,
    "offload_params": Offload,
    "attention": AttentionImplementation,
    "loss": LossKind,
    "adapter_dtype": AdapterDtype,
}
VALUE_OPTIONS = (
    "lora_rank",
    "lora_targets",
    "lora_alpha",
    "lora_dropout",
    "use_rslora",
    "uses_autocast",
    "train_embeddings",
    "train_vision",
    "train_projector",
    "train_language",
    "micro_batch",
    "grad_accum",
    "hpz",
    "activation_checkpointing",
    "vision_activation_checkpointing",
    "fuses_optimizer",
    "caches_casts",
    "upcasts_frozen",
    "expandable_segments",
    "nvme_path",
)
OPTIONS_IN_FILE = (
    *("zero_stage", "offload_optimizer", "offload_params", "hpz", "nvme_path", "optimizer"),
    *("micro_batch", "grad_accum", "precision"),
)
"""Options that a ds_config.json decides too, in the order in which contradictions are named."""
MULTI_GPU_ZERO_STAGE = 2
"""Stage of an estimate for several GPUs where the user names none."""

LEAST_TEXT_TOKENS = 256
"""Room for text beside images that take more than the default length, which is then a multiple of this. A choice."""

NETWORK_NOTE = (
    f"the network between nodes is taken as {ASSUMED_NETWORK_BYTES_PER_SECOND * 8e-9:.0f} Gbit/s per node; "
    f"--inter-node-gbit says otherwise"
)
MAX_INTER_NODE_GBIT = 1_000_000
"""What no network comes near."""
MAX_HOST_RAM_GIB = 1_000_000
"""What no machine comes near."""


def workload_of(model: ModelFiles, options: Options) -> Workload:
    """The workload; a model that takes images gets one per sample unless the user says otherwise.

    Where the user says nothing of length and images, and the default image takes more than the default length, the
    length leaves room for text beside it.
    """
    images = options.get("images_per_sample")
    if images is None:
        images = 1 if model.model_type in IMAGE_MODEL_TYPES else 0
    elif images == 0:  # the user's samples have none, so nothing of theirs is left out
        model = replace(model, not_counted=tuple(kind for kind in model.not_counted if kind != "images"))
    width, height = image_size(options.get("image_size"))
    workload = Workload(
        model=model,
        seq_len=_given(options, "seq_len", DEFAULT_SEQ_LEN),
        images_per_sample=images,
        image_width=width,
        image_height=height,
        num_samples=_given(options, "num_samples", DEFAULT_NUM_SAMPLES),
        epochs=_given(options, "epochs", DEFAULT_EPOCHS),
        global_batch=options.get("global_batch"),
    )
    is_decided = any(options.get(name) is not None for name in ("seq_len", "images_per_sample", "image_size"))
    if is_decided or image_tokens(workload) <= DEFAULT_SEQ_LEN:
        return workload
    seq_len = -(-(image_tokens(workload) + LEAST_TEXT_TOKENS) // LEAST_TEXT_TOKENS) * LEAST_TEXT_TOKENS
    return replace(workload, seq_len=seq_len)


def image_size(text: str | None) -> tuple[int, int]:
    """``"448x336"`` → width 448 and height 336.

    >>> image_size("448x336")
    (448, 336)
    """
    if text is None:
        return DEFAULT_IMAGE_SIZE
    match = re.fullmatch(r"\s*(\d{1,6})\s*[xX×]\s*(\d{1,6})\s*", text)
    if match is None or not all(int(side) for side in match.groups()):
        raise InputError(f"--image-size is {text!r}; WIDTHxHEIGHT in pixels is needed, such as 448x448")
    return int(match[1]), int(match[2])


def decided_recipe(options: Options) -> DecidedRecipe:
    """What the user decided of the recipe. Raises InputError for a value that is not allowed."""
    fields: dict[str, Any] = {name: options.get(name) for name in VALUE_OPTIONS}
    for name, kind in ENUM_OPTIONS.items():
        if options.get(name) is not None:
            fields[name] = enum_value(kind, options[name], option_name(name))
    stage = options.get("zero_stage")
    if stage is not None:
        fields["zero_stage"] = PLAIN if str(stage) == PLAIN else int(stage)
    return DecidedRecipe(**fields)


def resolved_recipe(
    decided: DecidedRecipe,
    cluster: Cluster,
    model: ModelFiles,
    *,
    global_batch: int | None = None,
    ds_config: "DsConfig | None" = None,
) -> tuple[Recipe, list[str]]:
    """The recipe of an estimate, and warnings: full fine-tuning with checkpointing, where the user does not decide.

    Without a stage one GPU trains in plain PyTorch and several under ZeRO-2. What torch and peft do by default stays
    so: the native allocator, foreach optimizers, cached casts, upcast 4-bit models; a search chooses better. A
    ``global_batch`` must be a whole number of micro batches on every GPU. Raises InputError for what cannot run.
    """
    facts, given = model_facts(model), decided.names
    if ds_config is not None:
        decided = decided.completed(DecidedRecipe(zero_stage=ds_config.zero_stage or 0))
    decided = decided.completed(_defaults(decided, cluster, default_attention(facts)))
    if decided.zero_stage == PLAIN:
        decided = decided.completed(_plain_defaults(decided))
    if ds_config is not None:
        from vlmplan.deepspeed_config import merged_recipe
        from vlmplan.models.hidden_size import hidden_size_of

        recipe = merged_recipe(
            ds_config,
            decided.recipe(),
            num_gpus=cluster.num_gpus,
            given=given,
            global_batch=global_batch,
            hidden_size=hidden_size_of(model.config),
        )
    else:
        if global_batch is not None:
            sizes = batch_sizes(global_batch, cluster.num_gpus, decided.micro_batch, decided.grad_accum)
            decided = replace(decided, **sizes)
        recipe = decided.recipe()
    warnings = check(recipe, cluster=cluster, model=facts, global_batch=global_batch, given=given)
    return recipe, [problem.sentence for problem in warnings]


def _defaults(decided: DecidedRecipe, cluster: Cluster, attention: AttentionImplementation) -> DecidedRecipe:
    gpu = cluster.node.gpu
    return DecidedRecipe(
        zero_stage=_default_stage(decided, cluster),
        precision=Precision.BF16 if gpu.supports_bf16 else Precision.FP16,
        attention=attention,
        # On a CPU there is no caching allocator: large blocks go back to the system when they are freed.
        expandable_segments=gpu.vendor is Vendor.CPU,
        vision_activation_checkpointing=decided.activation_checkpointing,
    )


def _plain_defaults(decided: DecidedRecipe) -> DecidedRecipe:
    """What torch and peft do in plain PyTorch."""
    uses_autocast = decided.uses_autocast is not False
    casts = decided.precision in (Precision.BF16, Precision.FP16) and uses_autocast
    return DecidedRecipe(
        fuses_optimizer=False,
        caches_casts=uses_autocast,
        upcasts_frozen=decided.method is Method.QLORA and casts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedSetup:
    """One setup as options ask for it; ``notes`` are sentences that the user should see with its numbers."""

    workload: Workload
    recipe: Recipe
    cluster: Cluster
    ds_config: "DsConfig | None" = None
    notes: tuple[str, ...] = ()


def requested_setup(
    options: Options, machine: tuple[Cluster, Sequence[str]], model: ModelFiles, ds_config: "DsConfig | None" = None
) -> RequestedSetup:
    """What ``estimate`` computes for these options on the ``requested_cluster``; the sizes of ZeRO's buckets are chosen
    later unless ``ds_config``, the file of ``--ds-config``, has them. Raises InputError for what cannot run."""
    cluster, notes = machine
    workload = workload_of(model, options)
    recipe, warnings = resolved_recipe(
        decided_recipe(options), cluster, workload.model, global_batch=workload.global_batch, ds_config=ds_config
    )
    more = () if ds_config is None else ds_config.notes
    return RequestedSetup(
        workload=workload,
        recipe=recipe,
        cluster=cluster,
        ds_config=ds_config,
        notes=(*notes, *length_notes(workload, options), *warnings, *more),
    )


def ds_config_of(options: Options) -> "DsConfig | None":
    """The file of ``--ds-config``."""
    path = options.get("ds_config")
    if path is None:
        return None
    from vlmplan.deepspeed_config import settings_from_ds_config

    return settings_from_ds_config(path)


def samples_per_step(options: Options) -> int | None:
    """``--global-batch``, or the ``train_batch_size`` of ``--ds-config``. Raises InputError if they differ."""
    config, given = ds_config_of(options), options.get("global_batch")
    said = None if config is None else config.train_batch_size
    if config is not None and said is not None and given not in (None, said):
        raise InputError(
            f"{config.source}: train_batch_size is {said}, but --global-batch {given} was given; "
            f"one of the two has to change"
        )
    return given if said is None else said


def length_notes(workload: Workload, options: Options) -> list[str]:
    """What the user should know of ``--seq-len``: a default that was raised, positions the model was not made for."""
    notes: list[str] = []
    if options.get("seq_len") is None and workload.seq_len != DEFAULT_SEQ_LEN:
        notes.append(
            f"--seq-len is taken as {workload.seq_len:,}: the images of a sample take {image_tokens(workload):,} tokens"
        )
    longest = context_length(workload.model)
    if longest is not None and workload.seq_len > longest:
        notes.append(f"--seq-len is {workload.seq_len:,}, more than the {longest:,} tokens the model is configured for")
    return notes


def fixed_recipe(options: Options, model: ModelFiles) -> DecidedRecipe:
    """What a search holds fixed: what the user decided, and what ``--ds-config`` does.

    Raises InputError with every contradiction between the two.
    """
    decided, config = decided_recipe(options), ds_config_of(options)
    if config is None:
        return decided
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
    return said.completed(decided)


def _shown(value: object) -> str:
    return str(getattr(value, "value", value))


def _default_stage(decided: DecidedRecipe, cluster: Cluster) -> Stage:
    """Plain PyTorch on one GPU, ZeRO-2 on several; offloading needs a stage that can: 2, or 3 for parameters."""
    if decided.offload_params not in (None, Offload.NONE):
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
        parts = [f"{num_gpus} GPUs"]
        parts += [f"micro batch {micro_batch}"] if micro_batch is not None else []
        parts += [f"accumulation {grad_accum}"] if grad_accum is not None else []
        nearest = max(1, round(global_batch / known)) * known
        made = f"{known}" if micro_batch and grad_accum else f"multiples of {known}; the nearest is {nearest}"
        raise InputError(f"--global-batch is {global_batch}, but {' x '.join(parts)} make {made}")
    rest = global_batch // known
    if micro_batch is None:
        return {"micro_batch": rest, "grad_accum": grad_accum or 1}
    return {"micro_batch": micro_batch, "grad_accum": grad_accum or rest}


def _given(options: Options, name: str, default: Any) -> Any:
    value = options.get(name)
    return default if value is None else value


def requested_cluster(options: Options, catalog: Catalog) -> tuple[Cluster, list[str]]:
    """The cluster of ``--gpu`` and ``--num-nodes``, and sentences that the user should see with it.

    Without ``--gpu`` it is this machine; InputError where that has none.
    """
    text = options.get("gpu")
    try:
        choice = parse_gpu_choice(LOCAL if text is None else text)
        chosen = chosen_node(choice, catalog, host_bytes=host_bytes_of(options))
    except UnavailableError as error:
        if text is not None:
            raise
        raise InputError(f"give --gpu NAME[:COUNT], such as --gpu rtx-4090:2 ({error})") from error
    num_nodes, notes = num_nodes_of(options)
    rate = inter_node_rate(options)
    cluster = Cluster(node=chosen.node, num_nodes=num_nodes, inter_node_bytes_per_second=rate)
    return cluster, [*chosen.notes, *notes]


def num_nodes_of(options: Options) -> tuple[int, list[str]]:
    """``--num-nodes``, and what is assumed about several."""
    num_nodes = _given(options, "num_nodes", 1)
    if not 1 <= num_nodes <= MAX_COUNT:
        allowed = "1 or more" if num_nodes < 1 else f"at most {MAX_COUNT:,}"
        raise InputError(f"--num-nodes is {num_nodes}; {allowed} is needed")
    is_assumed = num_nodes > 1 and inter_node_rate(options) is None
    return num_nodes, [NETWORK_NOTE] if is_assumed else []


def host_bytes_of(options: Options) -> int | None:
    """``--host-ram`` in bytes; None where it is not given."""
    gib = options.get("host_ram")
    if gib is None:
        return None
    if not 0 < gib <= MAX_HOST_RAM_GIB:
        raise InputError(f"--host-ram is {gib:g}; above 0 and at most {MAX_HOST_RAM_GIB:,} GiB is needed")
    return max(1, round(gib * GIB))


def inter_node_rate(options: Options) -> float | None:
    """``--inter-node-gbit`` in bytes per second; None where it is not given."""
    gbit = options.get("inter_node_gbit")
    if gbit is None:
        return None
    if not 0 < gbit <= MAX_INTER_NODE_GBIT:
        raise InputError(f"--inter-node-gbit is {gbit:g}; above 0 and at most {MAX_INTER_NODE_GBIT:,} is needed")
    return gbit * 1e9 / 8
