"""Random searches, and everything next to what they plan: the same setup with one or two options changed.

A search is right if no neighbour that fits is noticeably better, and if an estimate of the plan's own options gives the
plan back. Both sides go the way that the command line goes: options, one estimate.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache
from itertools import combinations, product
from math import inf
from typing import Any

from planned import decided, model_files
from vlmplan.catalog import Catalog, shipped_catalog
from vlmplan.errors import InputError
from vlmplan.estimation import Estimate, Estimator, fewer_at_once, sized_estimate
from vlmplan.hardware import Cluster
from vlmplan.memory.device import Verdict
from vlmplan.other_trainers.writing import Tool, behaviour
from vlmplan.recipe.choices import SEARCHED_LOSSES, SEARCHED_METHODS, Offload
from vlmplan.request import parse
from vlmplan.request.setup import resolved_recipe
from vlmplan.search import Objective, RankedPlan, SearchQuery
from vlmplan.search.options import search_query
from vlmplan.workload import Workload

TODAY = date(2026, 11, 21)
NOTICEABLE_FRACTION = 0.005
MODELS = (
    "smollm2-135m",
    "qwen2.5-0.5b",
    "llama-3.2-1b",
    "qwen2-vl-2b",
    "llama-3.2-3b",
    "qwen2.5-vl-3b",
    "qwen3-vl-4b",
    "qwen2.5-7b",
    "llama-3.1-8b",
    "qwen2.5-vl-7b",
    "llava-1.5-7b",
    "gemma-2-2b",
    "gemma-3-4b",
    "internvl3-1b",
    "mixtral-8x7b",
    "qwen2.5-14b",
)
GPUS = (
    "rtx-3060-12gb",
    "rtx-4060",
    "rtx-3080-10gb",
    "rtx-3090",
    "rtx-4090",
    "rtx-5090",
    "t4",
    "l4",
    "v100-sxm2-16gb",
    "a10",
    "a100-sxm4-40gb",
    "a100-sxm4-80gb",
    "h100-sxm",
    "l40s",
)


@cache
def catalog() -> Catalog:
    return Catalog(shipped_catalog(), [])


@dataclass(frozen=True)
class Search:
    """One search as options, and its answer."""

    options: dict[str, Any]

    def asked(self) -> SearchQuery:
        """Raises InputError for samples that are shorter than their images."""
        return search_query(parse(self.options), catalog(), model_files(self.options["model"]), TODAY)

    def __str__(self) -> str:
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.options.items())


def random_search(seed: int) -> Search:
    """A workload on one kind of machine, with some options pinned; the same for the same seed."""
    draw = random.Random(seed)
    options: dict[str, Any] = {
        "model": draw.choice(MODELS),
        "gpu": (f"{draw.choice(GPUS)}:{draw.choice((1, 1, 1, 2, 4, 8))}",),
        "objective": draw.choice(("cost", "time", "time", "vram")),
        "seq_len": draw.choice((256, 512, 1024, 2048, 4096)),
        "global_batch": draw.choice((1, 4, 8, 12, 16, 32, 64)),
        "num_samples": draw.choice((2_000, 50_000, 1_000_000)),
    }
    for name, values, often in PINNED:
        if draw.random() < often:
            options[name] = draw.choice(values)
    return Search(options)


PINNED: tuple[tuple[str, tuple[Any, ...], float], ...] = (
    ("method", ("full", "lora", "qlora"), 0.6),
    ("zero_stage", ("none", "0", "1", "2", "3"), 0.12),
    ("offload_optimizer", ("none", "cpu"), 0.06),
    ("micro_batch", (1, 2, 4), 0.06),
    ("activation_checkpointing", (False, True), 0.1),
    ("vision_activation_checkpointing", (False, True), 0.06),
    ("loss", ("full", "chunked"), 0.08),
    ("train_vision", (False,), 0.15),
    ("optimizer", ("adamw-8bit", "sgd"), 0.08),
    ("lora_rank", (64,), 0.1),
    ("num_nodes", (2,), 0.1),
    ("expandable_segments", (False,), 0.05),
)

WIDER: tuple[tuple[str, tuple[Any, ...], float], ...] = (
    ("task", ("dpo",), 0.25),
    ("fsdp", (True,), 0.15),
    ("loss", ("liger",), 0.1),
    ("batching", ("packed", "padding-free"), 0.2),
    ("num_nodes", (2,), 0.15),
    ("optimizer", ("muon", "lion"), 0.1),
    ("use_dora", (True,), 0.1),
)


def wider_search(seed: int) -> Search:
    """A random search with more of the options pinned, or of a model that hears."""
    options, draw = dict(random_search(seed).options), random.Random(7 * seed + 1)
    for name, values, often in WIDER:
        if draw.random() < often:
            options[name] = draw.choice(values)
    if "task" in options:
        options["max_completion_tokens"] = 128
    elif draw.random() < 0.12:
        options |= {"model": "gemma-4-e2b", "audio_seconds": 5.0}
    if "fsdp" in options:
        options.pop("zero_stage", None)
    return Search(options)


CHOICES: dict[str, tuple[Any, ...]] = {
    "method": SEARCHED_METHODS,
    "zero_stage": (None, 0, 1, 2, 3),
    "offload_optimizer": (Offload.NONE, Offload.CPU),
    "offload_params": (Offload.NONE, Offload.CPU),
    "activation_checkpointing": (False, True),
    "vision_activation_checkpointing": (False, True),
    "loss": SEARCHED_LOSSES,
    "dp_shard_size": (None, 2, 4, 8),
}
"""What a search decides by itself, beside the batch."""
SEARCHED = {"expandable_segments": True, "fuses_optimizer": True, "caches_casts": False, "upcasts_frozen": False}
"""What it takes in place of torch's and peft's defaults."""
KEPT = (
    *("fuses_optimizer", "caches_casts", "upcasts_frozen", "expandable_segments", "precision", "attention", "hpz"),
    "sync_each_batch",
)
"""What the search decides once for a plan, and its neighbours have too; what the trainer of a task does by itself
depends on their method and engine, and is that trainer's."""


@dataclass
class Neighbourhood:
    """Estimates next to a plan. ``made_for``: the trainer that runs them, of tasks."""

    workload: Workload
    cluster: Cluster
    fixed: dict[str, Any]
    plan: RankedPlan | None
    made_for: Tool | None = None
    _estimators: dict[Any, Estimator] = field(default_factory=dict)

    @property
    def own_fields(self) -> dict[str, Any]:
        """The plan's recipe as options say it: everything but sizes."""
        assert self.plan is not None
        recipe = self.plan.estimate.recipe
        theirs = () if self.made_for is None else behaviour(self.made_for, recipe, self.workload.model).names
        names = (*CHOICES, *(name for name in KEPT if name not in theirs), "micro_batch", "grad_accum", "task")
        return self.fixed | {name: getattr(recipe, name) for name in names}

    def estimate(self, fields: dict[str, Any]) -> Estimate | None:
        """As ``vlmplan estimate`` with these options; None where they are refused."""
        try:
            recipe, _ = resolved_recipe(decided(**fields), self.cluster, self.workload.model, made_for=self.made_for)
        except InputError:
            return None
        key = (recipe.method, recipe.trained_dtype, recipe.precision, recipe.upcasts_frozen)
        if key not in self._estimators:
            self._estimators[key] = Estimator(self.workload, recipe)
        estimator = self._estimators[key]
        return sized_estimate(estimator, recipe, self.cluster, estimator.timeline)

    def estimates(self, fields: dict[str, Any]) -> Iterator[Estimate]:
        """The same with the answers of a step, and where these do not fit with each smaller number of them that can be
        generated at once: fewer than there is room for take longer, or train on the same ones within a step again."""
        task = self.fixed.get("task")
        found = self.estimate(fields | {"task": task})
        while found is not None:
            yield found
            if found.verdict is Verdict.FITS:
                return
            steps = fewer_at_once(found.recipe, self.cluster.num_gpus)
            fewer = {} if steps is None else {"task": replace(task, steps_per_generation=steps)}
            found = self.estimate(fields | fewer) if fewer else None

    def neighbours(self) -> Iterator[dict[str, Any]]:
        """Every other choice of one option, and of two."""
        own = self.own_fields
        changes = [
            {name: value}
            for name, values in CHOICES.items()
            for value in values
            if name not in self.fixed and value != own[name]
        ]
        changes += [{"micro_batch": size, "grad_accum": steps} for size, steps in self._batch_sizes()]
        for one in changes:
            yield own | one
        for one, other in combinations(changes, 2):
            if not set(one) & set(other):
                yield own | one | other

    def _batch_sizes(self) -> Iterator[tuple[int, int]]:
        assert self.plan is not None
        recipe = self.plan.estimate.recipe
        if "micro_batch" in self.fixed or "grad_accum" in self.fixed:
            return
        total = recipe.micro_batch * recipe.grad_accum
        for size in range(1, total + 1):
            if total % size == 0 and size != recipe.micro_batch:
                yield size, total // size

    def better(self, objective: Objective) -> Iterator[tuple[dict[str, Any], float]]:
        """Neighbours that fit and beat the plan noticeably, with the part by which they do."""
        assert self.plan is not None
        mine, own = score(self.plan, objective), self.own_fields
        for fields in self.neighbours():
            fitting = (found for found in self.estimates(fields) if found.verdict is Verdict.FITS)
            theirs = min((score(replace(self.plan, estimate=found), objective) for found in fitting), default=inf)
            if theirs < mine * (1 - NOTICEABLE_FRACTION):
                yield (
                    {name: fields[name] for name in fields if fields[name] != own[name]},
                    1 - theirs / mine,
                )

    def fitting_lightest(self, batches: list[tuple[int, int]]) -> Iterator[dict[str, Any]]:
        """Options with which an estimate fits, of those that take least memory: every engine, checkpointing, each loss,
        the smallest micro batch and the largest."""
        names = ("method", "zero_stage", "offload_optimizer", "offload_params", "loss")
        for values in product(*(CHOICES[name] for name in names)):
            for size, steps in {batches[0], batches[-1]}:
                engine = dict(zip(names, values, strict=True)) | {"micro_batch": size, "grad_accum": steps}
                searched = SEARCHED if self.made_for is None else {}
                tried = self.estimates(searched | engine | self.fixed)
                if any(found.verdict is Verdict.FITS for found in tried):
                    yield engine


def score(plan: RankedPlan, objective: Objective) -> float:
    if objective is Objective.VRAM:
        return float(plan.estimate.device.device_bytes)
    hours = plan.hours
    assert hours is not None
    return plan.usd if objective is Objective.COST and plan.usd is not None else hours
