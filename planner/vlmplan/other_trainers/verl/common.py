"""What keys of verl and of EasyR1 mean alike: batches, lengths, units of FSDP, vLLM, adapters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vlmplan.data_rules import FOR_LARGEST, DataRules
from vlmplan.notes import Caveat
from vlmplan.other_trainers.assembled import Surroundings, sees
from vlmplan.other_trainers.fsdp import layer_classes, unit_classes
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import (
    ALL_LINEAR,
    REGEX,
    AttentionImplementation,
    Batching,
    LossKind,
    Method,
    Offload,
    Precision,
)
from vlmplan.recipe.task import Generation, Reference, TaskKind
from vlmplan.workload import ModelFiles

NOT_PLANNED: Final = "not planned"
GAE: Final = "gae"
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


def lengths(settings: Settings, prompt_key: str, response_key: str) -> dict[str, Value]:
    prompt, answer = settings.count(prompt_key, 512, least=1), settings.count(response_key, 512, least=1)
    return {"seq_len": prompt + answer, "max_completion_tokens": answer}


def refuse_critics(settings: Settings, default: str) -> None:
    """Estimators of advantages are planned that ask no second trained model."""
    if settings.text("algorithm.adv_estimator", default).casefold() == GAE:
        settings.refuse_whole(
            f"algorithm.adv_estimator is {GAE}{'' if 'algorithm.adv_estimator' in settings else ' by default'}, which "
            f"trains a critic: {NOT_PLANNED}; grpo, rloo, reinforce_plus_plus, remax and others without one are"
        )


def reference_of(method: Method, *, is_needed: bool) -> str:
    if not is_needed:
        return Reference.NONE.value
    return (Reference.COPY if method is Method.FULL else Reference.ADAPTER_OFF).value


def adapter_options(settings: Settings, prefix: str, *, rank: int, alpha: int, exclude: str | None) -> dict[str, Value]:
    """``target_modules`` and ``exclude_modules`` of peft under keys that begin with ``prefix``."""
    options: dict[str, Value] = {"lora_rank": rank, "lora_alpha": alpha}
    targets = settings.raw(f"{prefix}target_modules")
    options["lora_targets"] = ALL_LINEAR if targets is None else modules(targets)
    excluded = settings.raw(f"{prefix}exclude_modules")
    excluded = excluded if f"{prefix}exclude_modules" in settings else exclude
    return options if excluded is None else {**options, "lora_exclude": modules(excluded)}


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
    "FSDP1 is planned as FSDP2 with the same units: its peaks may be higher or lower by 6 bytes of each weight of the "
    "largest layer and 2 of each outside of layers, and while weights go to vLLM higher by 4 bytes of each weight of a "
    "GPU's shards and of each outside of layers"
)
"""By torch 2.13 ``distributed/fsdp``.

``_flat_param.py`` ``unshard``: a unit is gathered in place, where FSDP2 copies it out of a buffer (2 bytes a weight
less). ``_runtime_utils.py`` ``_post_forward_reshard``: the root stays whole until its backward (2 bytes more in
forward); ``_post_backward_hook``: a unit's gradients are in views of one, which is joined (2 bytes), and cast to
float32 for the reduction (4), and blocks of another stream are not free at once (``record_stream``), where FSDP2 has
the former unit's float32 until the next. ``_state_dict_utils.py`` ``_sharded_pre_state_dict_hook``: the root is whole
in float32 while the shards of all are copied."""


def note_flat(settings: Settings) -> None:
    """Say that another engine is planned, and how far off that may be."""
    settings.note(FSDP1_AS_FSDP2)


def note_images(settings: Settings, model: ModelFiles | None, prompt_tokens: int) -> None:
    if model is not None and sees(model):
        settings.note(
            f"how large images are is not in the file, and a prompt with them may have {prompt_tokens:,} tokens: "
            f"{FOR_LARGEST}"
        )


def found_config(
    settings: Settings,
    trainer: str,
    options: Mapping[str, Value],
    *,
    gradient_clipping: float,
) -> TrainerConfig:
    """The configuration. Raises InputError with everything that is wrong with it."""
    settings.close()
    return TrainerConfig(
        source=settings.source,
        trainer=trainer,
        options=options,
        gradient_clipping=gradient_clipping,
        ds_config=None,
        said=settings.said,
        defaults=settings.defaults,
        idle=settings.idle,
        notes=tuple(settings.notes),
        data_rules=DataRules(trainer=trainer, pads=False, drops_long=True),
    )
