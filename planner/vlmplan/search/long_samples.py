"""Samples that no GPU has room for: searches once more with what makes room for them.

What is tried, beside what a search decides by itself: samples shared by 2, 4, 8 and more GPUs (``sequence_parallel``),
MLPs tile by tile (``tiled_mlp``), inputs of layers on the host (``offload_activations``), and always with them the
kernels of gated delta nets where the model has some, which hold less and take less time.

Each costs time where a sample fits without it: all-to-alls, a third forward of the MLPs, copies over the bus. So they
are tried only where nothing fits otherwise, and cost other searches nothing. All together are tried first: where that
finds nothing, weights or states are what does not fit, and the search is over. Then one at a time, then two, then all;
of those with as many, the best plan by the search's objective is taken.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations, product
from typing import Any

from vlmplan.architecture.config import Config
from vlmplan.engines import STAGES
from vlmplan.notes import listed
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LinearAttention, is_worth_tiling
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.recipe.switches import option_text
from vlmplan.request import Objective
from vlmplan.rules import model_facts, objection
from vlmplan.rules.recurrent import GATED_DELTA_TYPES
from vlmplan.search.answer import RankedPlan, Recommendation, Rejection, SearchQuery
from vlmplan.search.entries import rank_key
from vlmplan.search.recommendation import possible_methods, recommend

NOTE = "no GPU has room for a sample as it is: tried because nothing fits otherwise, {techniques}"
NOTE_OF_LIMITS = "what fits as it is goes over the limits: tried because nothing is within them otherwise, {techniques}"
WORDS = {
    "sequence_parallel": "--sequence-parallel {} shares each among {} GPUs",
    "tiled_mlp": "--tiled-mlp runs MLPs on a part of the tokens at a time",
    "offload_activations": "--offload-activations keeps the inputs of layers in host memory",
    "linear_attention": "--linear-attention {} needs the packages flash-linear-attention and causal-conv1d",
}
Technique = Mapping[str, Any]
"""One value of one field of a recipe."""


def recommend_or_stretch(query: SearchQuery) -> Recommendation:
    """The recommendation; where nothing fits, the best with the fewest of the techniques that nobody has decided about.

    What another trainer trains is left as it is, and without machines there is nothing to try.
    """
    found = recommend(query)
    if found.plans or query.made_for is not None or not query.candidates:
        return found
    is_of_gpus = any(rejection.needed_bytes is not None or rejection.is_rule for rejection in found.rejected)
    if not is_of_gpus and not possible_methods(query):
        return found
    kernels, kinds = _kernels(query), _kinds(query)
    if not kernels and not kinds:
        return found
    if kinds:
        together = _with(query, kernels, *[levels[-1] for levels in kinds])
        stretched = recommend(together)
        if not stretched.plans:
            return _of_least_needs(found, stretched, [name for (name, *_), *_ in kinds], together.fixed)
    for number in range(len(kinds) + 1):
        fitting = [one for chosen in _chosen(kinds, number) if (one := recommend(_with(query, kernels, *chosen))).plans]
        if fitting:
            best = min(fitting, key=rank_of_first)
            note = _note(found, best, [*kernels, *[name for (name, *_), *_ in kinds]])
            return replace(best, notes=(note, *best.notes))
    return found


def _of_least_needs(
    found: Recommendation, stretched: Recommendation, names: list[str], fixed: DecidedRecipe
) -> Recommendation:
    """What was ``found``, with what machines lack where everything that makes room is tried, if they lack less then."""
    tried = listed([option_text(name, getattr(fixed, name)) for name in names])
    others = {rejection.cluster: rejection for rejection in stretched.rejected}

    def least(one: Rejection) -> Rejection:
        other = others.get(one.cluster)
        if other is None or other.is_rule or one.needed_bytes is None:
            return one
        if other.needed_bytes is not None and other.needed_bytes >= one.needed_bytes:
            return one
        return other._replace(reason=f"with {tried} {other.reason}")

    return replace(found, rejected=tuple(map(least, found.rejected)))


def _chosen(kinds: list[list[Technique]], number: int) -> Iterator[tuple[Technique, ...]]:
    """``number`` of the kinds, each in one of its values."""
    for group in combinations(kinds, number):
        yield from product(*group)


def _with(query: SearchQuery, *techniques: Technique) -> SearchQuery:
    merged = {name: value for technique in techniques for name, value in technique.items()}
    return replace(query, fixed=replace(query.fixed, **merged))


def _note(found: Recommendation, best: Recommendation, names: list[str]) -> str:
    """What was tried after what was ``found``, and is in the first plan of the ``best``."""
    recipe = best.plans[0].estimate.recipe
    default = Recipe()
    values = {name: getattr(recipe, name) for name in dict.fromkeys(names)}
    words = [
        WORDS[name].format(*[getattr(value, "value", value)] * 2)
        for name, value in values.items()
        if value != getattr(default, name)
    ]
    is_over_limits = any(rejection.share_of_limit is not None for rejection in found.rejected)
    return (NOTE_OF_LIMITS if is_over_limits else NOTE).format(techniques="; ".join(words))


def _kernels(query: SearchQuery) -> Technique:
    """The kernels of gated delta nets, where the model has some and nobody has decided about them."""
    if (
        query.fixed.linear_attention is not None
        or not model_facts(query.workload.model).model_types & GATED_DELTA_TYPES
    ):
        return {}
    kernels = {"linear_attention": LinearAttention.FLA}
    return kernels if _is_allowed(query, kernels) else {}


def _kinds(query: SearchQuery) -> list[list[Technique]]:
    """What may be tried: for each technique its values, of which the last saves most."""
    kinds: list[list[Technique]] = []
    if query.fixed.sequence_parallel is None:
        kinds.append([{"sequence_parallel": size} for size in _sizes(query)])
    if query.fixed.tiled_mlp is None and _has_tiles(query):
        kinds.append([{"tiled_mlp": True}])
    if query.fixed.offload_activations is None and query.fixed.activation_checkpointing is not False:
        kinds.append([{"offload_activations": True}])
    return [levels for levels in kinds if levels and _is_allowed(query, levels[0])]


def _has_tiles(query: SearchQuery) -> bool:
    config = Config(query.workload.model.config)
    text = config.section("text_config") if "text_config" in config else config
    return "hidden_size" in text and is_worth_tiling(query.workload.seq_len, text.integer("hidden_size"))


def _sizes(query: SearchQuery) -> list[int]:
    """Powers of two that the model's attention and some of the machines can be shared by."""
    most = max(candidate.cluster.num_gpus for candidate in query.candidates)
    sizes = [2**power for power in range(1, most.bit_length())]
    return [size for size in sizes if _is_allowed(query, {"sequence_parallel": size})]


def _is_allowed(query: SearchQuery, technique: Technique) -> bool:
    """Whether some of the machines can train so, under the engine that is decided, or under any: QLoRA does not
    go with ZeRO-3, and some optimizers with no stage."""
    facts, fixed = model_facts(query.workload.model), query.fixed
    is_decided = bool(fixed.names & {"zero_stage", "fsdp"})
    recipe = fixed.recipe().with_changes(**technique)
    recipes = (recipe,) if is_decided else (recipe.with_changes(zero_stage=stage) for stage in STAGES)
    clusters = {candidate.cluster.num_gpus: candidate.cluster for candidate in query.candidates}.values()
    return any(
        objection(one, cluster=cluster, model=facts, global_batch=None, given=()) is None
        for one, cluster in product(recipes, clusters)
    )


def rank_of_first(found: Recommendation) -> tuple[Any, ...]:
    """The key by which recommendations that have plans are ranked: that of their first plan."""
    return rank_of(found.plans[0], found.objective)


def rank_of(plan: RankedPlan, objective: Objective) -> tuple[Any, ...]:
    """The key by which a plan is ranked among others of a search."""
    estimate = plan.estimate
    return rank_key(objective, plan.hours, plan.usd, estimate.cluster.num_gpus, estimate.device.device_bytes)
