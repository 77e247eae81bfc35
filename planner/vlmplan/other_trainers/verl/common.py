"""What verl's and EasyR1's files are asked alike: each trainer has its names for the keys (``Keys``), and one rule."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vlmplan.data_rules import FOR_LARGEST, DataRules
from vlmplan.models import sees_nothing
from vlmplan.notes import Caveat
from vlmplan.other_trainers.fsdp import layer_classes, unit_classes
from vlmplan.other_trainers.meaning import Surroundings, sees
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import (
    ALL_LINEAR,
    REGEX,
    AttentionImplementation,
    Batching,
    FlatParameters,
    LossKind,
    Method,
    Offload,
    Precision,
    ShardUnits,
)
from vlmplan.recipe.task_choices import Generation, IdleOffload, Reference, TaskKind, TaskTrainer
from vlmplan.workload import ModelFiles

OF_TOWER: Final = ".*visual.*"
NOT_PLANNED: Final = "not planned"
GAE: Final = "gae"
WITHOUT_CRITIC: Final = frozenset(
    """grpo grpo_passk grpo_vectorized gdpo rloo rloo_vectorized reinforce_plus_plus reinforce_plus_plus_baseline remax
    opo gpg optimal_token_baseline tir_optimal_token_baseline""".split()
)
"""``AdvantageEstimator`` in ``core_algos.py`` of both."""
TYPES_OF_FLOAT32 = ("fp32", "float32", "float", "torch.float32")
TYPES_OF_BFLOAT16 = ("bf16", "bfloat16", "torch.bfloat16")
COMMON: Mapping[str, Value] = {
    "task": TaskKind.GRPO.value,
    "generation": Generation.VLLM.value,
    "fsdp": True,
    "reduces_in_float32": True,
    "sync_each_batch": True,
    "precision": Precision.BF16.value,
    "batching": Batching.PADDING_FREE.value,
    "attention": AttentionImplementation.FLASH_ATTENTION_2.value,
    "loss": LossKind.VERL.value,
    "offload_optimizer": Offload.NONE.value,
    "offload_params": Offload.NONE.value,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What a trainer calls the keys that both have, and its defaults where they are its own."""

    trainer: str
    task_trainer: TaskTrainer
    model: str
    answers: str
    """Answers to each prompt."""
    iterations: str
    """Times that they are trained on."""
    rank: str
    alpha: str
    default_alpha: int
    adapters: str
    """How ``target_modules`` and ``exclude_modules`` begin."""
    freezes_vision: str
    """Empty where the trainer reads no such key."""
    checkpoints: str
    clipping: str
    estimator: str
    """The default of ``algorithm.adv_estimator``."""
    epochs: float
    """The default of ``trainer.total_epochs``."""
    fsdp: str
    """How the keys of FSDP begin."""
    reshards: str
    units: str
    """The classes of its units; empty where the file has no key for them."""
    offloads_weights: str
    offloads_states: str
    memory: str
    """The part of a GPU that vLLM takes."""
    default_memory: float
    tensor_parallel: str


def prefixed(names: Mapping[str, str]) -> tuple[str, ...]:
    """Keys by their common beginning: ``{"a.": "b c"}`` is a.b and a.c."""
    return tuple(f"{prefix}{name}" for prefix, rest in names.items() for name in rest.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Answers of one GPU: in a micro batch, in an optimizer step, and of all that are generated at once."""

    micro_batch: int
    of_step: int
    of_rollout: int

    def options(self, num_gpus: int) -> dict[str, Value]:
        """The last micro batch of a step, and the last step of a rollout, may have fewer."""
        grad_accum = -(-self.of_step // self.micro_batch)
        return {
            "global_batch": self.micro_batch * grad_accum * num_gpus,
            "micro_batch": self.micro_batch,
            "grad_accum": grad_accum,
            "steps_per_generation": grad_accum * max(1, -(-self.of_rollout // self.of_step)),
        }


def num_gpus_of(settings: Settings, around: Surroundings) -> int:
    """The GPUs that are planned on: the user's, or else the file's."""
    said = settings.count("trainer.nnodes", 1, least=1) * settings.count("trainer.n_gpus_per_node", 8, least=1)
    if around.num_gpus not in (None, said):
        settings.note(f"the file trains on {said} GPUs; planned on {around.num_gpus}, as --gpu says")
    return around.num_gpus or said


def rows_per_gpu(settings: Settings, key: str, prompts: int, answers: int, num_gpus: int) -> int:
    """The answers of one GPU of those to ``prompts`` of ``key``."""
    rows = prompts * answers
    if rows < num_gpus:
        settings.refuse(key, f"{rows} answers in all are fewer than the {num_gpus} GPUs; more are needed")
        return 1
    return rows // num_gpus


def _lengths(settings: Settings) -> dict[str, Value]:
    prompt, answer = (settings.count(f"data.max_{part}_length", 512, least=1) for part in ("prompt", "response"))
    return {"seq_len": prompt + answer, "max_completion_tokens": answer}


def shared_options(
    settings: Settings, model: ModelFiles | None, around: Surroundings, keys: Keys
) -> tuple[dict[str, Value], Method]:
    """All that is asked alike of both trainers' files, but for batches, and the method."""
    _refuse_critics(settings, keys.estimator)
    options: dict[str, Value] = {**COMMON, **_lengths(settings)}
    name = settings.text(keys.model, "")
    options |= {"model": name} if name else {}
    options |= {
        "num_generations": settings.count(keys.answers, 1, least=1),
        "num_iterations": settings.count(keys.iterations, 1, least=1),
        "epochs": settings.number("trainer.total_epochs", keys.epochs),
        "activation_checkpointing": settings.flag(keys.checkpoints, True),
        "task_trainer": keys.task_trainer.value,
        "vllm_memory_utilization": settings.number(keys.memory, keys.default_memory, most=1.0),
        "vllm_tensor_parallel": settings.count(keys.tensor_parallel, 2, least=1),
    }
    method = around.method or (Method.LORA if settings.count(keys.rank, 0) else Method.FULL)
    options |= {"method": method.value} | _adapter_options(settings, model, method, keys)
    if keys.freezes_vision and settings.flag(keys.freezes_vision, False):
        options |= {"train_vision": False, "train_projector": False}
    note_images(settings, model, settings.count("data.max_prompt_length", 512))
    return options, method


def _adapter_options(settings: Settings, model: ModelFiles | None, method: Method, keys: Keys) -> dict[str, Value]:
    """``target_modules`` and ``exclude_modules`` as peft takes them. EasyR1's examples leave out the vision tower of
    whatever model: of one that has none peft warns that nothing is left out (``inject_adapter`` in peft 0.21
    ``tuners_utils.py``)."""
    targets, excluded = (f"{keys.adapters}{name}" for name in ("target_modules", "exclude_modules"))
    settings.ignore((keys.rank, keys.alpha, targets, excluded))
    if method is Method.FULL:
        return {}
    rank, alpha = settings.count(keys.rank, 16, least=1), settings.count(keys.alpha, keys.default_alpha, least=1)
    chosen, left_out = settings.raw(targets), settings.raw(excluded)
    if left_out == OF_TOWER and model is not None and sees_nothing(model):
        left_out = None
    return {
        "lora_rank": rank,
        "lora_alpha": alpha,
        "lora_targets": ALL_LINEAR if chosen is None else modules(chosen),
        **({} if left_out is None else {"lora_exclude": modules(left_out)}),
    }


def sharding_options(settings: Settings, model: ModelFiles | None, num_gpus: int, keys: Keys) -> dict[str, Value]:
    """Units of layers, what waits on the host between phases, and copies of the model (``create_device_mesh``)."""
    size = _sharing(settings, f"{keys.fsdp}fsdp_size", num_gpus)
    check_units(settings, keys.units, model)
    weights, states = (settings.flag(key, False) for key in (keys.offloads_weights, keys.offloads_states))
    return {
        "reshard_after_forward": settings.flag(keys.reshards, True),
        "shard_units": ShardUnits.LAYERS.value,
        "idle_offload": IdleOffload.of(weights=weights, optimizer=states).value,
        **({} if size is None else {"dp_shard_size": size}),
    }


def _sharing(settings: Settings, key: str, num_gpus: int) -> int | None:
    """The GPUs that share one copy of a model by ``fsdp_size``; None: all do."""
    size = int(settings.number(key, -1.0, least=-1.0))
    if not 0 < size < num_gpus:
        return None
    if size == 1 or num_gpus % size:
        settings.refuse(key, f"how many of the {num_gpus} GPUs share a copy, at least 2 and a divisor, or -1 is needed")
    return size


def refuse_copies_of_reference(settings: Settings, key: str, num_gpus: int) -> None:
    """A reference has an ``fsdp_size`` of its own (``key``) where it has an engine of its own."""
    if _sharing(settings, key, num_gpus) is not None:
        settings.refuse(key, f"references of which GPUs have copies are {NOT_PLANNED}; -1 is needed")


def flat_options(
    settings: Settings, options: Mapping[str, Value], num_gpus: int, keys: Keys, *, prefetches_forward: bool
) -> dict[str, Value]:
    """FSDP1 with torch's own ``backward_prefetch``; where it is not planned, that another engine is, and how far off
    that may be. A frozen tower sets ``use_orig_params``, whatever the key says (``fsdp_workers.py`` of both)."""
    uses_orig_params = settings.flag(f"{keys.fsdp}use_orig_params", False) or not options.get("train_vision", True)
    if num_gpus == 1 or options["method"] != Method.FULL.value:
        settings.note(FSDP1_AS_FSDP2)
        return {}
    return {
        "flat_parameters": FlatParameters.BACKWARD_PRE.value,
        "uses_orig_params": uses_orig_params,
        "prefetches_forward": prefetches_forward,
    }


def _refuse_critics(settings: Settings, default: str) -> None:
    """Estimators of advantages are planned that ask no second trained model; one that somebody has registered is taken
    for such a one."""
    estimator = settings.text("algorithm.adv_estimator", default).casefold()
    if estimator not in (GAE, *WITHOUT_CRITIC):
        settings.note(
            f"algorithm.adv_estimator {estimator} is no estimator of verl's or EasyR1's: planned as one that trains no "
            "critic"
        )
    if estimator == GAE:
        settings.refuse_whole(
            f"algorithm.adv_estimator is {GAE}{'' if 'algorithm.adv_estimator' in settings else ' by default'}, which "
            f"trains a critic: {NOT_PLANNED}; grpo, rloo, reinforce_plus_plus, remax and others without one are"
        )


def reference_of(method: Method, *, is_needed: bool) -> str:
    if not is_needed:
        return Reference.NONE.value
    return (Reference.COPY if method is Method.FULL else Reference.ADAPTER_OFF).value


def modules(value: Any) -> str:
    """Names with commas between them, or one regular expression, as peft takes a text that is no list.

    >>> modules("[q_proj,v_proj]"), modules(".*visual.*"), modules("q_proj, v_proj")
    ('q_proj,v_proj', 'regex:.*visual.*', 'q_proj,v_proj')
    """
    if isinstance(value, list):
        return ",".join(str(one) for one in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    text = str(value).strip()
    if text.startswith("["):
        return ",".join(one.strip().strip("'\"") for one in text.strip("[]").split(","))
    if text == ALL_LINEAR or text.replace("_", "").replace(",", "").replace(" ", "").isalnum():
        return text.replace(" ", "")
    return REGEX + text


def check_units(settings: Settings, key: str, model: ModelFiles | None) -> None:
    """The units have to be the layers that are planned, which ``_no_split_modules`` of most models names."""
    if model is None:
        return
    known = unit_classes(model.config)
    layers = layer_classes(model.config)
    named = settings.names(key) if key in settings else []
    if known is None or layers is None:
        return
    if named and set(named) != set(layers):
        settings.refuse(key, f"units of {', '.join(layers)} are planned")
    elif not named and known != "same":
        settings.refuse_whole(
            f"{key} is not said, and the default for {model.model_type} (_no_split_modules) names other classes than "
            f"those of its layers, {', '.join(layers)}: {NOT_PLANNED}"
        )


FSDP1_AS_FSDP2: Final = Caveat(
    "FSDP1 with adapters or on one GPU is planned as FSDP2 with the same units: its peaks may be higher or lower by 6 "
    "bytes of each weight of the largest layer and 2 of each outside of layers, and while weights go to vLLM higher by "
    "4 bytes of each weight of a GPU's shards and of each outside of layers"
)
"""By torch 2.13 ``distributed/fsdp``.

``_flat_param.py`` ``unshard``: a unit is gathered in place, where FSDP2 copies it out of a buffer (2 bytes a weight
less). ``_runtime_utils.py`` ``_post_forward_reshard``: the root stays whole until its backward (2 bytes more in
forward); ``_post_backward_hook``: a unit's gradients are in views of one, which is joined (2 bytes), and cast to
float32 for the reduction (4), and blocks of another stream are not free at once (``record_stream``), where FSDP2 has
the former unit's float32 until the next. ``_state_dict_utils.py`` ``_sharded_pre_state_dict_hook``: the root is whole
in float32 while the shards of all are copied."""


def note_images(settings: Settings, model: ModelFiles | None, prompt_tokens: int) -> None:
    if model is not None and sees(model):
        settings.note(
            f"how large images are is not in the file, and a prompt with them may have {prompt_tokens:,} tokens: "
            f"{FOR_LARGEST}"
        )


def found_config(settings: Settings, keys: Keys, options: Mapping[str, Value]) -> TrainerConfig:
    """The configuration. Raises InputError with everything that is wrong with it."""
    clipping = settings.number(keys.clipping, 1.0)
    settings.close()
    return TrainerConfig(
        source=settings.source,
        trainer=keys.trainer,
        options=options,
        gradient_clipping=clipping,
        ds_config=None,
        said=settings.said,
        defaults=settings.defaults,
        idle=settings.idle,
        notes=tuple(settings.notes),
        data_rules=DataRules(trainer=keys.trainer, pads=False, drops_long=True),
    )
