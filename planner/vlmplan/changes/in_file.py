"""Setups of a trainer's file with other values: each is read again as its trainer would read it, so that what it cannot
do, or has no key for, is no setup."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from vlmplan.changes.change import Change, Levels
from vlmplan.changes.kinds import Space, all_changes
from vlmplan.changes.known_samples import known_sample_changes
from vlmplan.errors import InputError
from vlmplan.hardware import Cluster
from vlmplan.models import find_model
from vlmplan.other_trainers import OpenedConfig, TrainerConfig
from vlmplan.other_trainers.editing.keys import (
    KeyChanges,
    Setup,
    key_changes,
    with_changes,
)
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind
from vlmplan.request import OptionValue, Request, configured_request, image_size, with_samples
from vlmplan.request.setup import RequestedSetup, requested_setup
from vlmplan.units import DType
from vlmplan.workload import ModelFiles, Workload

CHECKPOINTING = ("activation_checkpointing", "vision_activation_checkpointing")
OF_SAMPLES = ("seq_len", "image_size")
LIGERS: Levels = (
    Change(name="Liger's loss", options={"loss": LossKind.LIGER.value}),
    Change(name="Liger's layers and loss", options={"loss": LossKind.LIGER.value, "liger_layers": True}),
)
"""What makes no logits, by itself or with layers, as most of these trainers have it that have no loss in chunks."""


@dataclass(slots=True)
class FileSetups:
    """What ``request``, of the options ``own`` and the file ``opened``, becomes where options change: their keys in the
    file do. ``present`` is its setup as it is."""

    own: Request
    opened: OpenedConfig
    request: Request
    present: RequestedSetup
    model: ModelFiles
    _found_model: Callable[[str], ModelFiles] = field(default_factory=lambda: cache(find_model))

    @property
    def config(self) -> TrainerConfig:
        assert self.request.configured is not None
        return self.request.configured.config

    @property
    def samples_per_step(self) -> int:
        """Samples of an optimizer step over all GPUs, as the setup is."""
        return self.present.recipe.samples_per_step(self.present.cluster.num_gpus)

    def keys(self, request: Request) -> KeyChanges:
        """What changes of the file for ``request``. Raises InputError for what has no key."""
        present = self.present
        options = self._changed_options(request)
        before = Setup(recipe=present.recipe, workload=present.workload, cluster=present.cluster)
        recipe = self._recipe(options).with_changes(evaluation=request.evaluation.evaluation())
        if recipe.micro_batch * recipe.grad_accum != present.recipe.micro_batch * present.recipe.grad_accum:
            raise InputError("the samples of a step would change")
        after = replace(before, recipe=recipe, workload=_workload(present.workload, options))
        return key_changes(self.opened, self.config, before, after)

    def setup(self, request: Request, cluster: Cluster) -> RequestedSetup:
        """The setup that the changed file means, which ``Trials`` judge. Raises InputError for what is none."""
        if not self._changed_options(request):
            return self.present
        opened = with_changes(self.opened, self.keys(request))
        found = requested_setup(self.read(opened), (cluster, ()), self.model)
        if self.updates_alike(found.recipe) or found.recipe.master_dtype is DType.FLOAT32:
            return found._replace(notes=())
        raise InputError("weights would no longer be updated in float32")

    def updates_alike(self, recipe: Recipe) -> bool:
        """Whether the optimizer updates weights in the type in which it does now, or the method decides that."""
        present = self.present.recipe
        return recipe.master_dtype is present.master_dtype or recipe.method is not present.method

    def read(self, opened: OpenedConfig) -> Request:
        """The request of the file when it is ``opened``, with the options and the samples that are given beside it."""
        found, data = configured_request(self.own, opened, self._found_model), self.request.from_data
        return found if data is None else with_samples(found, self.own, data.source.sources, data.image_folder)

    def is_same(self, request: Request, tried: RequestedSetup) -> bool:
        """Whether a request of the changed file means what was tried."""
        found = requested_setup(request, (tried.cluster, ()), self.model)
        return (found.workload, found.recipe) == (tried.workload, tried.recipe)

    def _changed_options(self, request: Request) -> dict[str, OptionValue]:
        return {name: value for name, value in request.options().items() if value != self.request.option(name)}

    def _recipe(self, options: Mapping[str, OptionValue]) -> Recipe:
        """The present recipe with what the options decide."""
        decided = {name: value for name, value in options.items() if name not in OF_SAMPLES and value is not None}
        return Request().with_options(decided).recipe.applied_to(self.present.recipe)

    def space(self) -> Space:
        """The changes that are tried."""
        space = of_other_trainers(all_changes(self.present._replace(ds_config=None)))  # its file changes too
        data = self.request.from_data
        return space if data is None else replace(space, samples=tuple(known_sample_changes(data.source)))


def of_other_trainers(space: Space) -> Space:
    """The space of changes with activation checkpointing of language and vision alike, as these trainers have it unless
    they have a key of its own for vision; and with Liger's loss, by itself or with its layers, as they have it."""
    kinds = tuple(tuple(map(_of_whole_model, levels)) for levels in space.kinds)
    makes_logits = any("loss" in change.options for levels in kinds for change in levels)
    return replace(space, kinds=kinds, packages=(LIGERS,) if makes_logits else ())


def _of_whole_model(change: Change) -> Change:
    if "activation_checkpointing" not in change.options:
        return change
    return replace(change, options=dict.fromkeys(CHECKPOINTING, change.options["activation_checkpointing"]))


def _workload(present: Workload, options: Mapping[str, OptionValue]) -> Workload:
    length, size = options.get("seq_len"), options.get("image_size")
    if isinstance(length, int):
        present = replace(present, seq_len=length)
    if isinstance(size, str):
        width, height = image_size(size)
        present = replace(present, image_width=width, image_height=height)
    return present
