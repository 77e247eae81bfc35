"""The first micro batch of a run under ZeRO-3, in which no order of modules is known.

DeepSpeed gathers the weights of one module in one collective then, and copies them out of its buffer: a head that has a
bias is there twice when backward begins with it. Later it has stayed whole since forward. In the second, if it is of
the same step, small weights are prefetched with large ones: a head comes with the final norm, and is there twice too.
"""

from functools import cache
from typing import Any

import pytest

from vlmplan.architecture.trace import Trace
from vlmplan.engines import engine_of
from vlmplan.engines.coordinator.module_order import number_of_following
from vlmplan.engines.coordinator.replay import GatherReplay
from vlmplan.estimation import Estimator
from vlmplan.memory.phases import Phase
from vlmplan.memory.timeline import StartedRun
from vlmplan.phase_names import BACKWARD, FORWARD
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.workload import ModelFiles, Workload

WIDTH, VOCAB, NUM_RANKS = 512, 64000, 8
TEXT = {"n_embd": WIDTH, "n_layer": 2, "n_head": 8, "vocab_size": VOCAB}
CTRL = {"model_type": "ctrl", "dff": 1024, **TEXT}
GPT2 = {"model_type": "gpt2", **TEXT}
LLAMA = {
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
}
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


def following(threshold: int, **changes: Any) -> tuple[GatherReplay | None, Phase]:
    """What LoRA of a Llama gathers in the second micro batch, where that takes more, and its forward. A prefetch brings
    a norm and what comes after it, or one larger weight."""
    sizes = ZeroSettings(
        stage3_prefetch_bucket_size=WIDTH + 1,
        stage3_max_live_parameters=10**9,
        stage3_max_reuse_distance=0,
        stage3_param_persistence_threshold=threshold,
    )
    recipe = Recipe(method=Method.LORA, zero_stage=3, zero=sizes, loss=LossKind.CHUNKED).with_changes(**changes)
    found = Estimator(Workload(model=ModelFiles(id="llama", config=LLAMA), seq_len=64), recipe)
    trace = found.trace(recipe, (8, 0))
    replay = engine_of(found.table, recipe, num_ranks=NUM_RANKS).gather_replay_at_first(
        trace, number_of_following(recipe)
    )
    run = StartedRun(found.table, recipe, num_ranks=NUM_RANKS).timeline(trace, recipe)
    return replay, next(one for one in run.phases if one.name == FORWARD)


def test_a_head_that_comes_with_the_final_norm_is_there_twice_in_the_second_micro_batch():
    head_bytes = 2 * VOCAB * WIDTH
    replay, forward = following(WIDTH, grad_accum=2)
    _, of_later = following(WIDTH)
    assert replay is not None
    assert max(run.most for run in replay.walk.forward.live) >= 2 * head_bytes
    assert forward.peak.weights >= of_later.peak.weights + head_bytes // 2


@pytest.mark.parametrize(
    ("threshold", "changes"),
    [
        (0, {"grad_accum": 2}),
        (WIDTH, {"grad_accum": 1}),
        (WIDTH, {"grad_accum": 2, "evaluation": Evaluation(batch=1, samples=1, on_start=True)}),
    ],
    ids=["no weights are small", "a step comes before", "the second one records an order"],
)
def test_elsewhere_it_is_as_later_ones(threshold: int, changes: dict[str, Any]):
    assert following(threshold, **changes)[0] is None
