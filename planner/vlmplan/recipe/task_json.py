"""A task as JSON has it, read."""

from dataclasses import fields
from typing import Any

from vlmplan.files.json_reader import JsonObject
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import (
    Generation,
    IdleOffload,
    KTOLoss,
    Reference,
    ReferenceShards,
    TaskKind,
    TaskTrainer,
)


def task_from_json(section: JsonObject) -> TrainingTask:
    """The inverse of ``TrainingTask.as_json``. Raises InputError for unknown keys and values."""
    section.close(field.name for field in fields(TrainingTask))

    def reference(key: str) -> Reference:
        return Reference(section.choice(key, [member.value for member in Reference]))

    return TrainingTask(
        kind=TaskKind(section.choice("kind", [member.value for member in TaskKind])),
        reference=section.maybe("reference", reference),
        completion_tokens=section.maybe("completion_tokens", section.count),
        num_generations=section.count("num_generations"),
        steps_per_generation=section.maybe("steps_per_generation", section.count),
        num_iterations=section.count("num_iterations") if "num_iterations" in section else 1,
        generation=Generation(section.choice("generation", [member.value for member in Generation])),
        vllm_memory=section.maybe("vllm_memory", section.number),
        vllm_sleep_level=section.count("vllm_sleep_level"),
        vllm_tensor_parallel=section.count("vllm_tensor_parallel"),
        reward_params=section.count("reward_params"),
        reentrant_checkpoints="reentrant_checkpoints" in section and section.flag("reentrant_checkpoints"),
        kto_loss=_kto_loss(section),
        disables_dropout=section.maybe("disables_dropout", section.flag) if "disables_dropout" in section else None,
        router_loss=section.flag("router_loss") if "router_loss" in section else True,
        **_of_verl(section),
    )


def _kto_loss(section: JsonObject) -> KTOLoss:
    """Plans that were written before KTO was planned do not have it."""
    if "kto_loss" not in section:
        return KTOLoss.KTO
    return KTOLoss(section.choice("kto_loss", [member.value for member in KTOLoss]))


def _of_verl(section: JsonObject) -> dict[str, Any]:
    """What plans that were written before verl was planned do not have."""
    if "trainer" not in section:
        return {}
    return {
        "trainer": TaskTrainer(section.choice("trainer", [member.value for member in TaskTrainer])),
        "scoring_batch": section.maybe("scoring_batch", section.count),
        "idle_offload": IdleOffload(section.choice("idle_offload", [member.value for member in IdleOffload])),
        "reference_shards": ReferenceShards(
            section.choice("reference_shards", [member.value for member in ReferenceShards])
        ),
        "sync_buffer_mib": section.count("sync_buffer_mib"),
        "sync_groups": section.count("sync_groups") if "sync_groups" in section else 0,
    }
