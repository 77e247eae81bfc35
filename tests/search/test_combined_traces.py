"""Traces put together from two, against traces of their own."""

from collections.abc import Callable
from itertools import product

import pytest

from planned import decided, workload
from vlmplan.architecture.trace import Trace
from vlmplan.engines.profile import micro_batch_profile
from vlmplan.estimation import Estimator
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.search.choices import RecipeChoices
from vlmplan.search.combined_traces import Switches, TracePair, language_labels, tied_weight

CAPABILITY = (8, 9)
EXACT = ["qwen2-vl-2b", "qwen3-vl-2b", "llama-3.1-8b", "smolvlm-256m", "internvl3-1b"]
"""Families whose stretches free what they make."""
ABOUT = ["llava-1.5-7b", "gemma-3-4b", "instructblip-vicuna-7b"]
"""Families in which a stretch frees what another has made."""
MORE = {"smolvlm-256m": {"seq_len": 2048}, "instructblip-vicuna-7b": {"seq_len": 512}}


def pair_of(estimator: Estimator, ends: tuple[Switches, Switches], traced: Callable[[Switches], Trace]) -> TracePair:
    return TracePair(language_labels(estimator.model), tied_weight(estimator.model), ends, traced)


class Traces:
    """All switches of one model, method and engine, each combined and traced by itself."""

    def __init__(self, alias: str, method: Method, stage: int | None) -> None:
        asked = workload(alias, **MORE.get(alias, {}))
        recipe = Recipe(method=method, zero_stage=stage, micro_batch=4)
        self.estimator = Estimator(asked, recipe)
        self.recipe = recipe
        self.switches = RecipeChoices(asked, decided(), has_other_layers=asked.images_per_sample > 0).switches
        ends = self.switches[0], self.switches[-1]
        self.pair = pair_of(self.estimator, ends, self.alone)

    def alone(self, switches: Switches) -> Trace:
        return self.estimator.trace(switches.apply(self.recipe), CAPABILITY)


CASES = [
    *product(EXACT + ABOUT, (Method.FULL, Method.LORA), (None, 3)),
    # without autocast the gradients of a tied head are summed where the embedding's is made, by the loss
    *product(("qwen2-vl-2b", "smollm2-135m"), (Method.FULL,), (2,)),
]


@pytest.mark.one_in(9)
@pytest.mark.parametrize(("alias", "method", "stage"), CASES)
def test_combined_trace_has_the_operations_of_a_trace_of_its_own(alias: str, method: Method, stage: int | None):
    traces = Traces(alias, method, stage)
    for switches in traces.switches:
        assert traces.pair.combined(switches).trace.works() == traces.alone(switches).works()


@pytest.mark.one_in(9)
@pytest.mark.parametrize(("alias", "method", "stage"), CASES)
def test_combined_trace_has_the_peaks_of_its_own_up_to_what_is_unmatched(alias, method, stage):
    traces = Traces(alias, method, stage)
    for switches in traces.switches:
        combined = traces.pair.combined(switches)
        ours, own = micro_batch_profile(combined.trace), micro_batch_profile(traces.alone(switches))
        for name in ("forward_peak", "dropped_peak", "kept_peak", "norm_peak"):
            assert abs(getattr(ours, name) - getattr(own, name)) <= combined.unmatched_bytes
        if alias in EXACT:
            assert combined.unmatched_bytes == 0


@pytest.mark.parametrize(("method", "stage"), [(Method.LORA, None), (Method.FULL, 2)])
def test_parts_of_a_trace_add_up_to_its_operations(method: Method, stage: int | None):
    traces = Traces("qwen2-vl-2b", method, stage)
    for switches in traces.switches:
        whole = traces.alone(switches)
        for phase in range(3):
            parts = [part.works()[phase] for part in traces.pair.parts(switches)]
            assert sum(part.flops for part in parts) == whole.works()[phase].flops
            assert sum(part.num_kernels for part in parts) == whole.works()[phase].num_kernels


def test_eight_ways_are_recorded_twice():
    traces = Traces("qwen2-vl-2b", Method.LORA, None)
    recorded: list[Switches] = []

    def counted(switches: Switches) -> Trace:
        recorded.append(switches)
        return traces.alone(switches)

    ends = traces.switches[0], traces.switches[-1]
    pair = pair_of(traces.estimator, ends, counted)
    for switches in traces.switches:
        pair.combined(switches)
    assert len(traces.switches) == 8
    assert recorded == list(ends)
