"""What ZeRO-3's hooks run around in one micro batch: calls of modules, gathers of weights, gradients handed over.

DeepSpeed hooks every module of the model, whether or not it has weights (``_register_deepspeed_module`` in
``zero/parameter_offload.py``, 0.19.8), and the hooks are Python that runs before the GPU gets its next kernel. An
adapter of peft is four modules more than the layer that it wraps (the wrapper, the dropout, ``lora_A`` and ``lora_B``):
where the host decides, adapters really are slower under ZeRO-3 than training all weights.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from vlmplan.architecture.dora import UsedWeights
from vlmplan.architecture.trace import GradientReady, GradientTaken, Section, Trace, fetched_modules
from vlmplan.timing.rates import HookSeconds

EMPTY_PER_LAYER = 4
"""Modules of a layer without weights of their own: the layer itself, its attention, its MLP and the activation function
(``modeling_llama.py`` of transformers 5.23; other families have up to three more or one fewer)."""
EMPTY_PER_ADAPTER = 2
"""peft's wrapper and its dropout, an ``nn.Identity`` where that is 0 (``tuners/lora/layer.py``, 0.21)."""


class HookedCalls(NamedTuple):
    """The calls of hooks in one phase of a micro batch. They add.

    ``with_weights`` and ``empty`` are calls of modules that have weights of their own and of those that have none,
    ``gathers`` weights that are not whole when their module is called, ``gradients`` those that backward hands over.
    """

    is_backward: bool = False
    with_weights: int = 0
    empty: int = 0
    gathers: int = 0
    gradients: int = 0

    def plus(self, other: "HookedCalls", count: int) -> "HookedCalls":
        """The calls of these and ``count`` times those of ``other``, by kind."""
        return HookedCalls(
            is_backward=self.is_backward,
            with_weights=self.with_weights + count * other.with_weights,
            empty=self.empty + count * other.empty,
            gathers=self.gathers + count * other.gathers,
            gradients=self.gradients + count * other.gradients,
        )

    def seconds(self, hooks: HookSeconds) -> float:
        """What they take on the host."""
        with_weights, empty = (
            (hooks.backward, hooks.backward_empty) if self.is_backward else (hooks.forward, hooks.forward_empty)
        )
        calls = self.with_weights * with_weights + self.empty * empty
        return calls + self.gathers * hooks.gather + self.gradients * hooks.gradient


Phases = tuple[HookedCalls, HookedCalls, HookedCalls]
"""Of forward, recomputation and backward."""


def hooked_calls(trace: Trace, threshold: int) -> Phases:
    """All of one micro batch; weights of up to ``threshold`` elements stay whole."""
    key = (hooked_calls, threshold)
    if key not in trace.memo:
        phases = (HookedCalls(), HookedCalls(), HookedCalls(is_backward=True))
        runs = Counter((run.key, run.layer is not None) for run in trace.schedule)
        for (name, is_layer), count in runs.items():
            section = _section_calls(trace.sections[name], threshold, is_layer=is_layer)
            first, again, back = (one.plus(more, count) for one, more in zip(phases, section, strict=True))
            phases = first, again, back
        trace.memo[key] = phases
    return trace.memo[key]


def _section_calls(section: Section, threshold: int, *, is_layer: bool) -> Phases:
    """The calls of hooks in one run of a section, by phase. A checkpointed layer calls its modules again in backward,
    which then finds their weights whole."""
    containers = EMPTY_PER_LAYER if is_layer else 0
    forward, late = fetched_modules(section.forward), fetched_modules(section.backward)
    is_recomputed = section.recompute_work.num_kernels > 0
    first = _calls(forward, threshold, containers)
    again = _calls(late[: len(forward)], threshold, containers) if is_recomputed else HookedCalls()
    backward = late[len(forward) :] if is_recomputed else late
    back = _calls(backward, threshold, containers)
    gradients = sum(isinstance(event, GradientReady | GradientTaken) for event in section.backward)
    return (
        first,
        again,
        HookedCalls(
            is_backward=True,
            with_weights=back.with_weights,
            empty=back.empty,
            gathers=0 if is_recomputed else back.gathers,
            gradients=gradients,
        ),
    )


def _calls(modules: Iterable[Any], threshold: int, containers: int) -> HookedCalls:
    with_weights = gathers = 0
    empty = containers
    for module in modules:
        if isinstance(module, UsedWeights) and module.is_container:
            empty += EMPTY_PER_ADAPTER
            continue
        with_weights += 1
        gathers += sum(weight.numel > threshold for weight in module.parameters_by_name.values())
    return HookedCalls(with_weights=with_weights, empty=empty, gathers=gathers)
