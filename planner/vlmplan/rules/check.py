"""All rules asked of a recipe."""

from collections.abc import Collection, Sequence

from vlmplan.errors import InputError
from vlmplan.hardware import Cluster
from vlmplan.recipe import Recipe
from vlmplan.rules.adapters import ADAPTER_RULES
from vlmplan.rules.axolotl import AXOLOTL_RULES
from vlmplan.rules.base import ModelFacts, Problem, Rule, RuleContext, Severity
from vlmplan.rules.batches import BATCH_RULES
from vlmplan.rules.devices import DEVICE_RULES
from vlmplan.rules.encoder_decoder import ENCODER_DECODER_RULES
from vlmplan.rules.engines import ENGINE_RULES
from vlmplan.rules.fsdp import FSDP_RULES
from vlmplan.rules.fsdp1 import FSDP1_RULES
from vlmplan.rules.liger import LIGER_RULES
from vlmplan.rules.models import MODEL_RULES
from vlmplan.rules.ms_swift import MS_SWIFT_RULES
from vlmplan.rules.muon import MUON_RULES
from vlmplan.rules.nemo import NEMO_RULES
from vlmplan.rules.references import REFERENCE_RULES
from vlmplan.rules.reward_models import REWARD_RULES
from vlmplan.rules.routers import ROUTER_RULES
from vlmplan.rules.sequences import SEQUENCE_RULES
from vlmplan.rules.tasks import TASK_RULES
from vlmplan.rules.tiles import TILE_RULES
from vlmplan.rules.torchao import TORCHAO_RULES

RULES: tuple[Rule, ...] = (
    *ENGINE_RULES,
    *FSDP_RULES,
    *FSDP1_RULES,
    *MUON_RULES,
    *TORCHAO_RULES,
    *DEVICE_RULES,
    *ENCODER_DECODER_RULES,
    *MODEL_RULES,
    *ADAPTER_RULES,
    *LIGER_RULES,
    *NEMO_RULES,
    *SEQUENCE_RULES,
    *TILE_RULES,
    *BATCH_RULES,
    *TASK_RULES,
    *REFERENCE_RULES,
    *REWARD_RULES,
    *ROUTER_RULES,
    *MS_SWIFT_RULES,
    *AXOLOTL_RULES,
)
SEARCH_RULES = tuple(rule for rule in RULES if rule.bars_search)
"""Those that a search asks: all errors, and what runs but should not be chosen."""
COUNTING_RULES = tuple(rule for rule in SEARCH_RULES if rule.counts_gpus)
OTHER_RULES = tuple(rule for rule in SEARCH_RULES if not rule.counts_gpus)
"""Those of ``SEARCH_RULES`` that say the same of any number of GPUs."""


def problems(
    recipe: Recipe,
    *,
    cluster: Cluster | None = None,
    model: ModelFacts | None = None,
    global_batch: int | None = None,
    given: Collection[str] = (),
) -> list[Problem]:
    """Everything that is wrong with the recipe, errors first. ``given`` are recipe fields that the user set."""
    context = _context(recipe, cluster, model, global_batch, given)
    found = [problem for rule in RULES if (problem := rule.problem(context)) is not None]
    return sorted(found, key=lambda problem: problem.severity is Severity.WARNING)


def objection(
    recipe: Recipe,
    *,
    cluster: Cluster,
    model: ModelFacts,
    global_batch: int | None,
    given: Collection[str],
    rules: Sequence[Rule] = SEARCH_RULES,
) -> str | None:
    """Why a search leaves the recipe out, in the sentence of the first of ``rules`` that objects."""
    context = _context(recipe, cluster, model, global_batch, given)
    return next((sentence for rule in rules if (sentence := rule.check(context)) is not None), None)


def _context(
    recipe: Recipe,
    cluster: Cluster | None,
    model: ModelFacts | None,
    global_batch: int | None,
    given: Collection[str],
) -> RuleContext:
    return RuleContext(
        recipe=recipe,
        gpu=None if cluster is None else cluster.node.gpu,
        num_gpus=None if cluster is None else cluster.num_gpus,
        num_nodes=None if cluster is None else cluster.num_nodes,
        model=model,
        global_batch=global_batch,
        given=frozenset(given),
    )


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
