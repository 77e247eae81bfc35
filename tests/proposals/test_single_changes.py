"""Single changes are options of the command line: what they say of hardware, samples, method and recipe."""

import pytest

from planned import workload
from search_cases import card, cluster
from vlmplan.proposals.single_changes import (
    freed_changes,
    hardware_changes,
    larger_scope,
    lean_changes,
    method_changes,
    recipe_changes,
    sample_changes,
)
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import SEARCHED_METHODS, LossKind, Method
from vlmplan.request import HardwareRequest, image_size, parse
from vlmplan.request.setup import RequestedSetup
from vlmplan.sample_images import image_tokens
from vlmplan.workload import ModelFiles, Workload

SEES = {"seq_len": 1024, "images_per_sample": 1, "image_width": 448, "image_height": 448}


def at(alias: str = "qwen2-vl-2b", *, recipe: Recipe | None = None, **sample) -> RequestedSetup:
    on_one_card = cluster(card("rtx-4090"))
    return RequestedSetup(workload=workload(alias, **sample), recipe=recipe or Recipe(), cluster=on_one_card)


def test_gpus_are_doubled_and_quadrupled_as_far_as_a_machine_has_room():
    assert [one.options.get("gpu") for one in hardware_changes("a100", 1, 1, 8)] == [("a100:2",), ("a100:4",), None]
    assert [one.options.get("gpu") for one in hardware_changes("a100", 4, 1, 8)] == [("a100:8",), ("a100:2",), None]
    assert [one.options.get("gpu") for one in hardware_changes("t4", 4, 1, 4)] == [("t4:2",), None]
    assert [one.options for one in hardware_changes("t4", 4, 3, 4)][-1] == {"num_nodes": 4}


@pytest.mark.parametrize("present", Method)
def test_the_other_methods_are_changes_of_what_is_trained(present: Method):
    changes = list(method_changes(present))
    assert {one.options["method"] for one in changes} == {method.value for method in SEARCHED_METHODS} - {present.value}
    assert not any(one.keeps_results for one in changes)
    for one in changes:  # full fine-tuning refuses options of adapters
        assert ("lora_rank" in one.options) == (one.options["method"] == "full")


def test_half_of_the_text_leaves_the_images_whole():
    (text, _) = sample_changes(at(**SEES))
    tokens = image_tokens(workload("qwen2-vl-2b", **SEES))
    assert text.options == {"seq_len": tokens + (1024 - tokens) // 2}


def test_smaller_images_leave_the_text_whole():
    (_, images) = sample_changes(at(**SEES))
    width, height = image_size(images.options["image_size"])
    assert (width, height) == (224, 224)
    before, after = (
        image_tokens(workload("qwen2-vl-2b", **SEES | {"image_width": side, "image_height": side}))
        for side in (448, 224)
    )
    assert images.options["seq_len"] == 1024 - before + after


def test_samples_without_images_have_none_to_make_smaller():
    assert [set(one.options) for one in sample_changes(at("smollm2-135m", seq_len=512))] == [{"seq_len"}]


def test_checkpointing_and_loss_are_turned_round():
    for recipe in (Recipe(), Recipe(activation_checkpointing=False, loss=LossKind.FULL)):
        changed = {name: value for one in recipe_changes(at(recipe=recipe)) for name, value in one.options.items()}
        assert changed["activation_checkpointing"] is not recipe.activation_checkpointing
        assert changed["loss"] != recipe.loss.value


def test_a_model_that_has_one_loss_is_proposed_no_other():
    model = ModelFiles(id="prophetnet", config={"model_type": "prophetnet", "is_encoder_decoder": True})
    seen = at(recipe=Recipe(loss=LossKind.MODEL))._replace(workload=Workload(model=model))
    assert [set(one.options) for one in recipe_changes(seen)] == [
        {"activation_checkpointing", "vision_activation_checkpointing"}
    ]


def test_every_change_is_a_recipe():
    for one in (
        *recipe_changes(at()),
        *method_changes(Method.LORA),
        *(one for kind in lean_changes(at()) for one in kind),
    ):
        parse(one.options).recipe.recipe()


def test_lean_changes_come_smallest_first_and_never_to_a_method_that_takes_more():
    kinds = list(lean_changes(at(recipe=Recipe(method=Method.LORA), **SEES)))
    assert [one.options["method"] for kind in kinds for one in kind if "method" in one.options] == ["qlora"]
    lengths = next(
        [one.options["seq_len"] for one in kind] for kind in kinds if kind and set(kind[0].options) == {"seq_len"}
    )
    assert lengths == sorted(lengths, reverse=True)
    assert len(lengths) == 3


def test_what_the_user_decided_may_be_left_to_the_search():
    given = {"micro_batch": 8, "activation_checkpointing": False, "zero_stage": None, "method": "full"}
    assert [one.options for one in freed_changes(parse(given), 16)] == [
        {"micro_batch": None},
        {"activation_checkpointing": None},
    ]


def test_a_micro_batch_that_is_left_to_the_search_leaves_a_step_its_samples():
    given = parse({"micro_batch": 32, "grad_accum": 2, "loss": "full"})
    assert [one.options for one in freed_changes(given, 64)] == [
        {"micro_batch": None, "global_batch": 64},
        {"grad_accum": None, "global_batch": 64},
        {"loss": None},
    ]
    assert all(one.keeps_results for one in freed_changes(given, 64))
    on_several_machines = [one.keeps_results for one in freed_changes(given, None)]
    assert on_several_machines == [False, False, True]


def machines(*gpus: str) -> HardwareRequest:
    return parse({"gpu": gpus}).hardware


def test_more_of_what_was_asked_for():
    named = larger_scope(machines("t4:2", "l4:1"), 1)
    assert [one.options for one in named] == [
        {"gpu": ("t4:4", "l4:2")},
        {"gpu": ("t4:8", "l4:4")},
        {"num_nodes": 2},
        {"num_nodes": 4},
    ]
    assert [one.options for one in larger_scope(machines(), 2)] == [{"num_nodes": 4}, {"num_nodes": 8}]
    assert next(larger_scope(machines("t4"), 1)).options == {"gpu": ("t4:2",)}
    assert [one.options for one in larger_scope(machines("local"), 1)] == [{"num_nodes": 2}, {"num_nodes": 4}]
