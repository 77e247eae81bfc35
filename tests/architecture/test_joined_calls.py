"""One attention call for all windows of all images leaves what a call for each of them leaves.

Towers over packed patches call a fused kernel once per image, or once per window of each: hundreds of equal calls in a
block. They are recorded at once; a tape that runs every call is what they are compared with.
"""

from typing import Any

import pytest

from planned import shortened
from vlmplan.architecture.attention import joins_calls
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.packed_lengths import PackedLengths
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Drop, Event, Hold, Trace
from vlmplan.estimation import Estimator
from vlmplan.estimation.micro_batch import tape_for
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Precision
from vlmplan.units import DType
from vlmplan.workload import Workload

MODELS = ("qwen2-vl-2b", "qwen2.5-vl-3b", "qwen3-vl-2b", "glm-4.1v-9b")


class EveryCall(Tape):
    runs_every_call = True


def estimator(alias: str, recipe: Recipe, side: int) -> Estimator:
    files = shortened(alias, num_hidden_layers=2)
    size = {"image_width": side, "image_height": side - 56}  # windows at the edges are not whole
    return Estimator(Workload(model=files, seq_len=2048, images_per_sample=2, **size), recipe)


def traces(alias: str, recipe: Recipe, capability: tuple[int, int], *, side: int = 420) -> tuple[Trace, Trace]:
    """(calls joined, every call) of the same model."""
    found = estimator(alias, recipe, side)
    backend = found.backend(recipe, capability)
    joined, every = (found._run(tape_for(kind, recipe), recipe, backend) for kind in (Tape, EveryCall))
    return joined, every


def plain(events: list[Event]) -> list[Any]:
    """Without the names of views, which are numbers of nodes."""
    names: dict[int, int] = {}
    return [
        event._replace(handle=names.setdefault(event.handle, len(names))) if isinstance(event, Hold | Drop) else event
        for event in events
    ]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("capability", [(8, 0), (7, 0)], ids=["flash", "efficient"])
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize("alias", MODELS)
def test_joined_calls_leave_the_trace_of_every_call(
    alias: str, method: Method, checkpoints: bool, capability: tuple[int, int]
):
    recipe = Recipe(
        method=method,
        zero_stage=3,
        micro_batch=3,
        train_vision=True,
        precision=Precision.BF16 if capability >= (8, 0) else Precision.FP16,
        activation_checkpointing=checkpoints,
        vision_activation_checkpointing=checkpoints,
    )
    joined, every = traces(alias, recipe, capability)
    assert joined.schedule == every.schedule
    for key, section in every.sections.items():
        one = joined.sections[key]
        assert plain(one.forward) == plain(section.forward), key
        assert plain(one.backward) == plain(section.backward), key
        for phase in ("forward_work", "recompute_work", "backward_work"):
            assert getattr(one, phase) == getattr(section, phase), (key, phase)
    assert plain(joined.after) == plain(every.after)


def test_windows_of_all_images_are_one_node():
    recipe = Recipe(zero_stage=2, micro_batch=3, activation_checkpointing=False, vision_activation_checkpointing=False)
    found = estimator("qwen2.5-vl-3b", recipe, 420)
    tape, every = (tape_for(kind, recipe) for kind in (Tape, EveryCall))
    for each in (tape, every):
        found._run(each, recipe, found.backend(recipe, (8, 0)))
    images, windows = 3 * 2, -(-15 // 4) * -(-13 // 4)  # 420 x 364 pixels are 15 x 13 merged patches, 4 x 4 a window
    of_windows, of_images = images * windows - 1, images - 1
    assert (every.num_nodes - tape.num_nodes - of_images) % of_windows == 0  # blocks with windows run once or twice
    assert every.num_nodes - tape.num_nodes >= of_windows + of_images


@pytest.mark.parametrize(
    ("runs", "autocast", "implementation"),
    [(((3, 1), (5, 1)), None, "sdpa"), (((4, 2),), DType.FLOAT16, "sdpa"), (((4, 2),), None, "eager")],
    ids=["a later call is larger", "the inputs are cast", "scores are written out"],
)
def test_calls_that_leave_something_else_are_not_joined(
    runs: tuple[tuple[int, int], ...], autocast: DType | None, implementation: str
):
    backend = AttentionBackend(implementation=implementation)
    tape = Tape(autocast=autocast)
    q = tape.tensor((1, 16, 8, 80), DType.BFLOAT16)
    assert not joins_calls(backend, q, q, PackedLengths(runs))


def test_calls_are_joined_but_for_a_tape_that_runs_every_one():
    shape, lengths = (1, 16, 7, 80), PackedLengths(((4, 1), (3, 1)))
    for tape, joins in ((Tape(), True), (EveryCall(), False)):
        q = tape.tensor(shape, DType.BFLOAT16)
        assert joins_calls(AttentionBackend(), q, q, lengths) is joins


def test_calls_of_grouped_heads_are_joined_where_flash_takes_them():
    """Behind it comes math, which writes scores out."""
    q, k = (Tape().tensor((1, heads, 8, 80), DType.BFLOAT16) for heads in (16, 4))
    lengths = PackedLengths(((4, 2),))
    assert joins_calls(AttentionBackend(compute_capability=(8, 0)), q, k, lengths)
    assert not joins_calls(AttentionBackend(compute_capability=(7, 5)), q, k, lengths)
