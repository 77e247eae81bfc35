"""What cannot be trained, or not as the recipe says, and why: one small rule per combination.

Each rule cites the code that refuses or ignores the combination (deepspeed 0.19.8, transformers 5.23, bitsandbytes
0.50, peft 0.21, torch 2.13). An error is what those libraries refuse, or what they do otherwise than the estimate
says; a warning is allowed and rarely wanted. Rules are cheap: a search asks them for every recipe.

    engines   ZeRO stages, offload, optimizers
    devices   what a card or a processor can do
    models    attention, loss, adapters, batch

Looked at and allowed: fp16 in plain PyTorch (trained weights are float32, so GradScaler takes their gradients), paged
and 8-bit optimizers under every ZeRO stage, bitsandbytes on AMD and on CPUs, parameters offloaded without the
optimizer, chunked loss with capped logits (the trainer caps each chunk).
"""

from collections.abc import Collection

from vlmplan.errors import InputError
from vlmplan.hardware import Cluster
from vlmplan.recipe import Recipe
from vlmplan.rules.base import ModelFacts, Problem, Rule, Severity, Situation, model_facts
from vlmplan.rules.devices import DEVICE_RULES
from vlmplan.rules.engines import ENGINE_RULES
from vlmplan.rules.models import MODEL_RULES, attention_implementations, default_attention

RULES: tuple[Rule, ...] = (*ENGINE_RULES, *DEVICE_RULES, *MODEL_RULES)


def problems(
    recipe: Recipe,
    *,
    cluster: Cluster | None = None,
    model: ModelFacts | None = None,
    global_batch: int | None = None,
    given: Collection[str] = (),
) -> list[Problem]:
    """Everything that is wrong with the recipe, errors first. ``given`` are recipe fields that the user set."""
    situation = Situation(
        recipe=recipe,
        gpu=None if cluster is None else cluster.node.gpu,
        num_gpus=None if cluster is None else cluster.num_gpus,
        num_nodes=None if cluster is None else cluster.num_nodes,
        model=model,
        global_batch=global_batch,
        given=frozenset(given),
    )
    found = [problem for rule in RULES if (problem := rule.problem(situation)) is not None]
    return sorted(found, key=lambda problem: problem.severity is Severity.WARNING)


def check(
    recipe: Recipe,
    *,
    cluster: Cluster | None = None,
    model: ModelFacts | None = None,
    global_batch: int | None = None,
    given: Collection[str] = (),
) -> list[Problem]:
    """The warnings; raises InputError with the first error's sentence."""
    found = problems(recipe, cluster=cluster, model=model, global_batch=global_batch, given=given)
    if found and found[0].severity is Severity.ERROR:
        raise InputError(found[0].sentence)
    return found


__all__ = [
    "RULES",
    "ModelFacts",
    "Problem",
    "Rule",
    "Severity",
    "Situation",
    "attention_implementations",
    "check",
    "default_attention",
    "model_facts",
    "problems",
]
