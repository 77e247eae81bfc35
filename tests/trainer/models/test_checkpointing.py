"""Activation checkpointing runs exactly the modules that were asked for twice, and frozen towers keep no graph."""

from collections import Counter

import pytest
import torch
from tiny_plans import tiny_plan

from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import CheckpointKind, Method, Precision
from vlmplan_trainer.models.checkpointing import set_checkpointing
from vlmplan_trainer.models.load import load_model
from vlmplan_trainer.models.parts import Parts
from vlmplan_trainer.models.tiny import write_tiny_model

NUM_LAYERS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("vision"), "qwen2_vl", num_layers=NUM_LAYERS)


def loaded_model(folder, **changes):
    recipe = Recipe(**{"precision": Precision.FP32, **changes})
    return load_model(tiny_plan(folder, recipe)).model


def image_batch(model):
    """One image of 2 × 2 merged tokens and some text."""
    config = model.config
    image = [config.vision_start_token_id] + 4 * [config.image_token_id] + [config.vision_end_token_id]
    ids = torch.tensor([[*image, 20, 21, 22, 23]])
    generator = torch.Generator().manual_seed(0)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == config.image_token_id).int(),
        "pixel_values": torch.randn(16, 3 * 2 * 14 * 14, generator=generator),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "labels": ids.where(ids >= 20, -100),
    }


def named_layers(model):
    """The layers by their names without those of wrappers."""
    for name, module in model.named_modules():
        *_, parent, last = name.split(".") if "." in name else ("", name)
        if last.isdigit() and parent in ("layers", "blocks"):
            yield f"{parent}.{last}", module


def runs_of_one_step(model):
    """How often each layer's attention ran in forward and backward."""
    runs = Counter()
    for name, layer in named_layers(model):
        attention = layer.attn if hasattr(layer, "attn") else layer.self_attn
        attention.register_forward_pre_hook(lambda module, args, name=name: runs.update([name]))
    model(**image_batch(model)).loss.backward()
    return dict(runs)


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize("checkpoints_vision", [False, True])
@pytest.mark.parametrize("checkpoints_text", [False, True])
def test_checkpointed_layers_and_only_those_run_twice(folder, checkpoints_text, checkpoints_vision, method):
    model = loaded_model(
        folder,
        method=method,
        activation_checkpointing=checkpoints_text,
        vision_activation_checkpointing=checkpoints_vision,
    )
    text = {f"layers.{i}": 1 + checkpoints_text for i in range(NUM_LAYERS)}
    vision = {f"blocks.{i}": 1 + checkpoints_vision for i in range(NUM_LAYERS)}
    assert runs_of_one_step(model) == text | vision


def test_of_a_layer_in_parts_attention_runs_twice_and_the_layer_once(folder):
    model = loaded_model(folder, checkpoint_kind=CheckpointKind.PARTS, vision_activation_checkpointing=False)
    runs = Counter()
    for name, layer in named_layers(model):
        layer.register_forward_pre_hook(lambda module, args, name=name: runs.update([name]))
        projection = getattr(getattr(layer, "self_attn", None), "q_proj", None)
        if projection is not None:
            projection.register_forward_pre_hook(lambda module, args: runs.update(["attention"]))
    model(**image_batch(model)).loss.backward()
    assert runs.pop("attention") == 2 * NUM_LAYERS
    assert set(runs.values()) == {1}


@pytest.mark.parametrize("kind", [CheckpointKind.NON_REENTRANT, CheckpointKind.PARTS])
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
def test_checkpointing_changes_no_gradient(folder, method, kind):
    gradients = []
    for checkpoints in (False, True):
        model = loaded_model(
            folder,
            method=method,
            activation_checkpointing=checkpoints,
            vision_activation_checkpointing=checkpoints,
            checkpoint_kind=kind,
        )
        model(**image_batch(model)).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.requires_grad})
    plain, checkpointed = gradients
    assert all(torch.equal(plain[name], checkpointed[name]) for name in plain)


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_frozen_tower_has_no_graph_and_runs_once(folder, checkpoints, method):
    model = loaded_model(
        folder,
        method=method,
        train_vision=False,
        train_projector=False,
        activation_checkpointing=checkpoints,
        vision_activation_checkpointing=checkpoints,
    )
    outputs = {}
    for name, module in named_layers(model):
        module.register_forward_hook(lambda module, args, output, name=name: outputs.setdefault(name, output))
    runs = runs_of_one_step(model)
    vision = {name: output for name, output in outputs.items() if name.startswith("blocks.")}
    assert len(vision) == NUM_LAYERS
    assert not any(output.requires_grad for output in vision.values())
    assert [runs[name] for name in vision] == [1] * NUM_LAYERS
    assert outputs[f"layers.{NUM_LAYERS - 1}"].requires_grad


@pytest.mark.parametrize("method", [Method.LORA, Method.QLORA])
def test_embeddings_without_adapters_need_no_gradients_under_checkpointing(folder, method):
    """What transformers' and peft's own switches would add: the first layer's input has no gradient to compute."""
    model = loaded_model(folder, method=method, train_vision=False, train_projector=False)
    inputs = {}
    for name, module in named_layers(model):
        module.register_forward_pre_hook(lambda module, args, name=name: inputs.setdefault(name, args[0]))
    model(**image_batch(model)).loss.backward()
    assert not inputs["layers.0"].requires_grad
    assert inputs["layers.1"].requires_grad
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert trained
    assert all(parameter.grad is not None for parameter in trained)


def test_a_model_without_checkpointing_is_refused_only_where_it_is_asked_for():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32, n_positions=16))
    for module in model.modules():
        vars(module).pop("gradient_checkpointing", None)
    model.transformer.h = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(2))
    parts = Parts(model)
    set_checkpointing(model, parts, Recipe(activation_checkpointing=False))
    with pytest.raises(InputError, match="--no-activation-checkpointing"):
        set_checkpointing(model, parts, Recipe())
