"""DoRA, adapters by pattern, PiSSA and OLoRA: the loaded model beside the planner's, and what is exported of it."""

import pytest
import torch
from test_load_model import planned_parameters, real_parameters
from tiny_plans import tiny_plan

from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Precision
from vlmplan_trainer.engines.groups import LR_FACTOR
from vlmplan_trainer.engines.optimizers import make_optimizer, set_learning_rate, trained_of
from vlmplan_trainer.models.adapters import converted_config, load_adapter, with_what_was_taken_out
from vlmplan_trainer.models.load import load_model
from vlmplan_trainer.models.tiny import write_tiny_model

LORA = Recipe(method=Method.LORA, lora_rank=4, precision=Precision.FP32)


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("kinds"), "llama", ties_weights=False)


@pytest.fixture(scope="module")
def vision_folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("kinds-vision"), "qwen2_vl", ties_weights=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"use_dora": True},
        {"lora_targets": r"regex:.*layers\.0\..*(q|v)_proj"},
        {"lora_exclude": "o_proj,down_proj"},
        {"lora_exclude": r"regex:.*layers\.1\..*", "use_dora": True},
        {"lora_targets": "q_proj,layers.1.mlp.up_proj"},
        {"lora_init": "olora"},
        {"lora_init": "olora", "lora_rank": 48},
        {"lora_init": "pissa", "lora_rank": 48},
        {"lora_init": "pissa_niter_4", "lora_rank": 48},
        {"lora_init": "gaussian", "lora_rank": 48},
    ],
)
def test_parameters_are_those_that_are_planned(text_folder, changes):
    recipe = LORA.with_changes(**changes)
    plan = tiny_plan(text_folder, recipe)
    assert real_parameters(load_model(plan).model) == planned_parameters(plan.workload.model.config, recipe)


def test_a_pattern_adapts_the_vision_tower_alone(vision_folder):
    recipe = LORA.with_changes(lora_targets=r"regex:model\.visual\.blocks\..*qkv")
    plan = tiny_plan(vision_folder, recipe)
    model = load_model(plan).model
    assert real_parameters(model) == planned_parameters(plan.workload.model.config, recipe)
    assert {".visual." in name for name in trained_of(model)} == {True}


IDS = torch.arange(12)[None] + 7


@pytest.mark.parametrize("init", ["pissa", "pissa_niter_4", "olora"])
@pytest.mark.parametrize(("use_rslora", "rank"), [(False, 4), (True, 4), (True, 80)])
def test_what_is_exported_belongs_to_the_weights_as_they_were(text_folder, init, use_rslora, rank):
    """The adapter of twice the rank on the checkpoint's weights computes what the trained one does on changed ones,
    where weights have fewer factors than it too."""
    recipe = LORA.with_changes(lora_init=init, lora_targets="q_proj,up_proj", use_rslora=use_rslora, lora_rank=rank)
    loaded = load_model(tiny_plan(text_folder, recipe))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in trained_of(loaded.model).values():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    expected = loaded.model(input_ids=IDS).logits
    config = converted_config(loaded.model.peft_config["default"])
    weights = with_what_was_taken_out(loaded.model.state_dict(), loaded.taken_out, config.r)
    twice = LORA.with_changes(lora_rank=2 * rank, lora_targets="q_proj,up_proj")
    plain = load_model(tiny_plan(text_folder, twice)).model
    layers = [module for module in plain.modules() if hasattr(module, "lora_A")]
    for layer in layers:
        layer.scaling["default"] = config.lora_alpha / (config.r**0.5 if use_rslora else config.r)
    plain.load_state_dict({name: weights[name] for name in trained_of(plain)}, strict=False)
    assert torch.allclose(plain(input_ids=IDS).logits, expected, atol=1e-3)
    unchanged = load_model(tiny_plan(text_folder, LORA)).model(input_ids=IDS).logits
    assert not torch.allclose(unchanged, expected, atol=1e-2)


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_nothing_changes_before_the_first_step_and_factors_own_their_storage(text_folder, init):
    model = load_model(tiny_plan(text_folder, LORA.with_changes(lora_init=init))).model
    plain = load_model(tiny_plan(text_folder, LORA.with_changes(method=Method.FULL))).model
    assert torch.allclose(model(input_ids=IDS).logits, plain(input_ids=IDS).logits, atol=1e-3)
    trained = trained_of(model).values()
    assert all(p.untyped_storage().nbytes() == p.numel() * p.element_size() for p in trained)


def test_adapters_that_start_from_the_weights_start_from_no_folder(text_folder, tmp_path):
    recipe = LORA.with_changes(lora_init="pissa")
    with pytest.raises(InputError, match="--adapter does not go with --lora-init pissa"):
        load_adapter(torch.nn.Linear(1, 1), tmp_path, recipe)


def test_lora_b_and_magnitudes_learn_faster_with_loraplus(text_folder):
    recipe = LORA.with_changes(loraplus_lr_ratio=16.0, use_dora=True)
    trained = trained_of(load_model(tiny_plan(text_folder, recipe)).model)
    optimizer = make_optimizer(trained, recipe, weight_decay=0.0)
    set_learning_rate(optimizer, 0.5)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in trained.items():
        assert rates[id(parameter)] == (0.5 if "lora_A" in name else 8.0), name
    assert [group[LR_FACTOR] for group in optimizer.param_groups] == [1.0, 16.0]


@pytest.mark.parametrize("ratio", [1.0, 16.0])
def test_loraplus_trains_all_in_two_groups_each_in_the_order_of_the_model(text_folder, ratio):
    # Ranks lay a group out in one flat buffer: an order of their own would mix up whose part is whose.
    recipe = LORA.with_changes(loraplus_lr_ratio=ratio)
    trained = trained_of(load_model(tiny_plan(text_folder, recipe)).model)
    groups = make_optimizer(trained, recipe, weight_decay=0.0).param_groups
    name_of = {id(parameter): name for name, parameter in trained.items()}
    names = [[name_of[id(parameter)] for parameter in group["params"]] for group in groups]
    assert names == [[name for name in trained if part in name] for part in ("lora_A", "lora_B")]
