"""Weights that ZeRO-3 keeps whole in backward beyond that of the module they belong to.

DeepSpeed 0.19.8 gives frozen weights that are gathered to run a layer again to the module whose backward has begun
last, and they stay until that is over (``update_recompute_parameters`` in ``zero/partitioned_param_coordinator.py``).
A reentrant checkpoint is one node of the graph, so that no backward inside the layer has begun.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from vlmplan.architecture.trace import Event, Release, Section, Trace


def until_layers_end(trace: Trace) -> Trace:
    """``trace`` of a micro batch whose checkpoints are reentrant and inside of the layer's own hooks: its backward has
    begun, and frozen weights go with it. transformers 5.23 checkpoints ``forward`` of a layer
    (``GradientCheckpointingLayer`` in ``modeling_layers.py``)."""
    return _with(trace, _until_end)


def until_backward_ends(trace: Trace) -> Trace:
    """The same where the layer's hooks are inside of the checkpoint, as ``__call__`` of a layer was checkpointed before
    transformers 5.23: frozen weights belong to the model around all layers, or to attention of a layer behind, which
    gets its input by name. For DeepSpeed these are over when all of backward is (``release_backward_leftovers``)."""
    return _with(trace, unreleased)


def _with(trace: Trace, change: Callable[[Section, Collection[int]], Section]) -> Trace:
    sections = {key: change(one, _run_again(one)) for key, one in trace.sections.items()}
    return replace(trace, sections=sections, _merged=None, _works=None, memo={})


def _run_again(section: Section) -> set[int]:
    """Modules with frozen weights that run again, by ``id``."""
    return {id(event.module) for event in section.backward if isinstance(event, Release) and event.ends_recomputation}


def _until_end(section: Section, modules: Collection[int]) -> Section:
    left, backward = _without_releases(section, modules)
    ends = [Release(one.module, ends_recomputation=True) for one in left]
    return replace(section, backward=[*backward, *ends], memo={})


def unreleased(section: Section, modules: Collection[int]) -> Section:
    """``section``, whose ``modules`` (their ``id``) stay whole once backward has gathered them."""
    left, backward = _without_releases(section, modules)
    num_bytes = sum(weight.num_bytes for event in left for weight in event.module.parameters_by_name.values())
    return replace(section, backward=backward, unreleased_bytes=section.unreleased_bytes + num_bytes, memo={})


def _without_releases(section: Section, modules: Collection[int]) -> tuple[list[Release], list[Event]]:
    """The last release of each of ``modules``, and backward without them."""
    left: dict[int, Release] = {}
    backward: list[Event] = []
    for event in section.backward:
        if isinstance(event, Release) and id(event.module) in modules:
            left[id(event.module)] = event
        else:
            backward.append(event)
    return list(left.values()), backward
