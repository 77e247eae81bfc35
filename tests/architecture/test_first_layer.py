"""A layer that is reused for all equal ones has the events that the first and a later one have, each run by itself.

The tape runs the first layer of a stack and derives a later one from it; a tape that runs both is what it is compared
with, section by section.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planned import model_files, shortened
from vlmplan.architecture import ops
from vlmplan.architecture.first_layer import UnequalLayersError
from vlmplan.architecture.modules import Linear, Module, Stack
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.tensor import Tensor
from vlmplan.architecture.trace import Drop, Event, Hold, Span, Trace
from vlmplan.errors import InputError
from vlmplan.estimation import Estimator
from vlmplan.estimation.micro_batch import tape_for
from vlmplan.models import packaged_models, qformer_positions
from vlmplan.models.description import brings_own_code
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.rules import default_attention, default_lora_exclude, model_facts
from vlmplan.units import DType
from vlmplan.workload import Workload

ALIASES = sorted(
    alias
    for alias, model in packaged_models().items()
    if not model.is_sibling and not brings_own_code(model_files(alias).config)
)


class EveryLayer(Tape):
    reuses_layers = False


def plain(events: list[Event]) -> list[Any]:
    """Without the names of views, which are numbers of nodes, and with neighbouring spans as one."""
    names: dict[int, int] = {}
    result: list[Any] = []
    for event in events:
        if isinstance(event, Hold | Drop):
            result.append(event._replace(handle=names.setdefault(event.handle, len(names))))
        elif isinstance(event, Span) and result and isinstance(result[-1], Span):
            result[-1] = result[-1].then(event)
        else:
            result.append(event)
    return result


def assert_same(joined: Trace, every: Trace) -> None:
    assert [run.layer for run in joined.schedule] == [run.layer for run in every.schedule]
    for run, other in {
        (run.key, other.key): (run, other) for run, other in zip(joined.schedule, every.schedule, strict=True)
    }.values():
        one, section = joined.sections[run.key], every.sections[other.key]
        assert plain(one.forward) == plain(section.forward), other
        assert plain(one.backward) == plain(section.backward), other
        for name in ("forward_work", "recompute_work", "backward_work", "unreleased_bytes", "recomputed_bytes"):
            assert getattr(one, name) == getattr(section, name), (other, name)
    assert plain(joined.after) == plain(every.after)


def workload(alias: str, images: int) -> Workload:
    """Text of a length that every model has positions for, or images with what they need."""
    size = {"images_per_sample": images, "image_width": 336, "image_height": 336}
    model = model_files(alias)
    if model.hears_prompt:
        return Workload(model=model, seq_len=1500, target_len=448, audios_per_sample=1, audio_seconds=30.0)
    with_images = 2048 if qformer_positions(model) is None else 512
    return Workload(model=model, seq_len=with_images if images else 1024, **size)


def both(asked: Workload, recipe: Recipe) -> tuple[Trace, Trace]:
    """(first layers standing for later ones, every layer) of the same model."""
    found = Estimator(asked, recipe)
    backend = found.backend(recipe, (8, 0))
    tape = tape_for(Tape, recipe)
    joined, every = found._run(tape, recipe, backend), found._run(tape_for(EveryLayer, recipe), recipe, backend)
    assert joined.sections is tape._sections, "the model had to be run again"
    return joined, every


@pytest.mark.one_in(23)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize(("method", "stage"), [(Method.FULL, 3), (Method.LORA, 3), (Method.QLORA, None)])
@pytest.mark.parametrize("alias", ALIASES)
def test_a_first_layer_leaves_the_trace_of_a_later_one(
    alias: str, method: Method, stage: int | None, checkpoints: bool
):
    facts = model_facts(model_files(alias))
    recipe = Recipe(
        method=method,
        lora_exclude=None if method is Method.FULL else default_lora_exclude(facts),
        attention=default_attention(facts),
        zero_stage=stage,
        micro_batch=2,
        activation_checkpointing=checkpoints,
        vision_activation_checkpointing=checkpoints,
    )
    try:
        asked = workload(alias, images=1)
        traces = both(asked, recipe)
    except InputError:  # it takes no images, or more tokens than these for one
        traces = both(workload(alias, images=0), recipe)
    assert_same(*traces)


def test_of_qwen_layers_one_is_run():
    recipe = Recipe(zero_stage=2, activation_checkpointing=False)
    found = Estimator(workload("qwen2.5-0.5b", images=0), recipe)
    joined, every = tape_for(Tape, recipe), tape_for(EveryLayer, recipe)
    for tape in (joined, every):
        found._run(tape, recipe, found.backend(recipe, (8, 0)))
    assert joined.num_nodes < 0.6 * every.num_nodes


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("trained", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("alias", ["llama-3.2-11b-vision", "instructblip-vicuna-7b"])
def test_layers_that_sum_up_a_gradient_leave_what_those_leave_that_stand_for_them(
    alias: str, trained: tuple[bool, bool], checkpoints: bool
):
    recipe = Recipe(
        train_vision=trained[0],
        train_language=trained[1],
        zero_stage=3,
        activation_checkpointing=checkpoints,
        vision_activation_checkpointing=checkpoints,
    )
    joined, every = both(workload(alias, images=1), recipe)
    assert_same(joined, every)
    assert len(joined.sections) < 0.75 * len(every.schedule)


@pytest.mark.parametrize("used", [[0], [11], [3, 7, 9], [1, 2, 3, 4], [0, 5, 10, 11], [2, 2, -3, 6]])
@pytest.mark.parametrize("train_vision", [True, False])
def test_layers_whose_results_go_elsewhere_too_leave_what_those_leave_that_stand_for_them(
    used: list[int], train_vision: bool
):
    vision: dict[str, Any] = dict(model_files("llama-3.2-11b-vision").config["vision_config"])
    vision["vision_output_dim"] = vision["hidden_size"] * (1 + len(used))
    vision |= {"num_hidden_layers": 12, "intermediate_layers_indices": used}
    model = shortened("llama-3.2-11b-vision", vision_config=vision)
    asked = replace(workload("llama-3.2-11b-vision", images=1), model=model)
    assert_same(*both(asked, Recipe(method=Method.LORA, train_vision=train_vision, zero_stage=3)))


def test_of_the_layers_of_a_vision_encoder_few_are_run():
    joined, _ = both(
        workload("llama-3.2-11b-vision", images=1), Recipe(method=Method.LORA, activation_checkpointing=False)
    )
    layers = [run.key for run in joined.schedule if run.layer is not None]
    assert (len(set(layers)), len(layers)) == (18, 32 + 8 + 40)


# -- layers that are not reused ----------------------------------------------------------------------------------------


class Layer(Module):
    def __init__(self, last: Callable[[Tensor], Tensor]) -> None:
        self.linear, self.last = Linear(32, 32), last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.linear(x))


class Enclosed(Module):
    """A stack, and around it a module with a weight of its own if it ``holds_weight``."""

    def __init__(self, stack: Stack, *, holds_weight: bool) -> None:
        self.stack = stack
        if holds_weight:
            self.own = Parameter(32)

    def forward(self, x: Tensor) -> Tensor:
        return self.stack.run(x, lambda layer, hidden: layer(hidden))


def run(tape: Tape, before: Linear, enclosed: Enclosed, behind: Linear, *, adds_input: bool = False) -> Trace:
    """Layers between two trained products, and as the loss the sum of the last one's result, or that of the layers'
    input too."""
    with tape.section("before"):
        x = before(tape.tensor((1, 64, 32), DType.BFLOAT16))
    y = enclosed(x)
    with tape.section("loss"):
        loss = ops.total(ops.add(behind(y), x) if adds_input else behind(y), ())
        del x, y
    tape.run_backward(loss)
    tape.end_backward()
    return tape.trace()


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("encloses", [False, True])
@pytest.mark.parametrize("last", [ops.scale, ops.tanh, ops.silu], ids=["saves nothing", "its result", "its input"])
def test_a_layer_stands_for_others_unless_its_result_is_saved_or_its_gradient_goes_to_another_module(
    last: Callable[[Tensor], Tensor], encloses: bool, checkpoints: bool
):
    stack = Stack.of(Layer(last), 3, label="layers")
    stack.checkpoints = checkpoints
    model = Linear(32, 32), Enclosed(stack, holds_weight=encloses), Linear(32, 32)
    joined, every = Tape(), EveryLayer()
    assert_same(run(joined, *model), run(every, *model))
    is_saved = last is ops.tanh and not checkpoints
    stands_for_others = any(first.later for first in joined._first_layers.values())
    assert stands_for_others is not (is_saved or encloses)
    assert not every._first_layers


@pytest.mark.parametrize("checkpoints", [False, True])
def test_layers_whose_input_is_used_elsewhere_are_run_again_each_by_itself(checkpoints: bool):
    stack = Stack.of(Layer(ops.silu), 3, label="layers")
    stack.checkpoints = checkpoints
    model = Linear(32, 32), Enclosed(stack, holds_weight=False), Linear(32, 32)
    tape = Tape(autocast=DType.BFLOAT16, keeps_linear_inputs=True)
    with pytest.raises(UnequalLayersError):
        run(tape, *model, adds_input=True)
    every = EveryLayer(autocast=DType.BFLOAT16, keeps_linear_inputs=True)
    assert_same(run(tape.again(), *model, adds_input=True), run(every, *model, adds_input=True))
