"""The first micro batch of a run under ZeRO-3, in which no order of modules is known.

DeepSpeed gathers the weights of one module in one collective then, and copies them out of its buffer: a head that has a
bias is there twice when backward begins with it. Later it has stayed whole since forward.
"""

from functools import cache

import pytest

from vlmplan.architecture.trace import Trace
from vlmplan.engines import engine_of
from vlmplan.estimation import Estimator
from vlmplan.memory.timeline import StartedRun
from vlmplan.phase_names import BACKWARD
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.workload import ModelFiles, Workload

WIDTH, VOCAB, NUM_RANKS = 512, 64000, 8
TEXT = {"n_embd": WIDTH, "n_layer": 2, "n_head": 8, "vocab_size": VOCAB}
CTRL = {"model_type": "ctrl", "dff": 1024, **TEXT}
GPT2 = {"model_type": "gpt2", **TEXT}
HEAD_BYTES = 2 * (VOCAB * WIDTH + VOCAB)


@cache
def traced(model_type: str, method: Method, threshold: int) -> tuple[Estimator, Recipe, Trace]:
    recipe = Recipe(method=method, zero_stage=3, zero=ZeroSettings(stage3_param_persistence_threshold=threshold))
    files = ModelFiles(id=model_type, config={"ctrl": CTRL, "gpt2": GPT2}[model_type])
    found = Estimator(Workload(model=files, seq_len=64), recipe)
    return found, recipe, found.trace(recipe, (8, 0))


@pytest.mark.parametrize("threshold", [0, 2 * VOCAB], ids=["a large bias", "a bias that stays whole later"])
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
def test_backward_begins_with_a_head_that_is_there_twice(method: Method, threshold: int):
    found, recipe, trace = traced("ctrl", method, threshold)
    first = engine_of(found.table, recipe, num_ranks=NUM_RANKS).gather_replay_at_first(trace)
    assert first is not None
    head, *_ = first.walk.backward.live
    assert head.start == 0
    assert head.most == 2 * HEAD_BYTES


def test_its_peak_is_that_of_backward_where_nothing_later_takes_as_much():
    found, recipe, trace = traced("ctrl", Method.LORA, 0)
    phases = {
        one.name: one for one in StartedRun(found.table, recipe, num_ranks=NUM_RANKS).timeline(trace, recipe).phases
    }
    shards = -(-found.table.total_bytes // NUM_RANKS)
    assert phases[BACKWARD].peak.weights >= shards + 2 * HEAD_BYTES


def test_a_head_without_a_bias_lands_where_it_stays():
    found, recipe, trace = traced("gpt2", Method.LORA, 0)
    assert engine_of(found.table, recipe, num_ranks=NUM_RANKS).gather_replay_at_first(trace) is None
