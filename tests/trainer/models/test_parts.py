"""Parts and attention layers of transformers' models are those that the planner takes them for, in every family."""

import json

import pytest
import torch

from image_models import IMAGE_MODELS
from model_table import packaged_config
from planned import MODELS
from vlmplan.architecture.families import FAMILIES, build_model
from vlmplan.architecture.generic.layout import layout_from_json
from vlmplan.architecture.generic.model import build_generic
from vlmplan_trainer.models.adapters import attention_linears, lora_targets
from vlmplan_trainer.models.parts import Parts
from vlmplan_trainer.probe import configuration, layout, model_class


def one_per_family():
    """The packaged models by model_type, the first of each that transformers knows without remote code."""
    found = {}
    for folder in sorted(MODELS.iterdir()):
        if not (folder / "config.json").exists():
            continue
        config = packaged_config(folder.name)
        kind = config["model_type"]
        text = config.get("text_config", {}).get("model_type", "")
        if kind in FAMILIES and kind != "qwen":
            found.setdefault((kind, text), config)
    return found


PACKAGED = one_per_family()
UNDESCRIBED = {
    "gpt_neox": {"num_attention_heads": 4},
    "falcon": {"num_attention_heads": 4, "new_decoder_architecture": False},
    "cohere": {"num_attention_heads": 4, "num_key_value_heads": 4},
    "laguna": {"num_attention_heads": 4, "num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2},
}
"""Text models that the planner describes from transformers' own modules."""


def real_model(config):
    parsed = configuration(config)
    with torch.device("meta"):
        return model_class(parsed)._from_config(parsed, dtype=torch.bfloat16)


def assert_same_parts(model, tree):
    parts = Parts(model)
    found = {name: parts[name].value for name, _ in model.named_parameters()}
    planned = {entry.name: entry.part.value for entry in tree.parameters()}
    # Where a file leaves open whether weights are tied, transformers ties them until it sees that they differ.
    assert planned.items() - found.items() <= {(f"{tree.HEAD}.weight", "language")}
    assert found.items() <= planned.items()
    assert set(attention_linears(model)) == set(tree.attention_linears)


def test_targets_that_are_also_modules_around_a_linear_are_the_linears_alone():
    model = torch.nn.ModuleDict(
        {
            "text": torch.nn.ModuleDict({"q_proj": torch.nn.Linear(2, 3)}),
            "tower": torch.nn.ModuleDict({"q_proj": torch.nn.Sequential(torch.nn.Linear(5, 7))}),
        }
    )
    assert lora_targets(model, "q_proj") == ["text.q_proj"]
    assert lora_targets(model.text, "q_proj") == ["q_proj"]


def test_an_audio_tower_is_frozen_with_the_vision_encoder():
    config = json.loads((MODELS / "gemma-4-e2b" / "config.json").read_text())
    assert_same_parts(real_model(config), build_model(config))


@pytest.mark.one_in(7)
@pytest.mark.parametrize("key", PACKAGED, ids=lambda key: "-".join(filter(None, key)))
def test_parts_and_attention_are_the_planners(key):
    if key[0] == "gemma3n":  # whose tower is timm's
        pytest.importorskip("timm", exc_type=ImportError)
    config = PACKAGED[key]
    assert_same_parts(real_model(config), build_model(config))


@pytest.mark.parametrize("q_rank", [None, 32])
@pytest.mark.parametrize("kind", ["deepseek_v3", "youtu", "mistral3"])
def test_attention_targets_of_latent_attention_are_the_linears_that_the_model_has(kind, q_rank):
    small = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128, "intermediate_size": 96}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": q_rank, "kv_lora_rank": 32}
    widths = {
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    text = {
        **small,
        **heads,
        **widths,
        **tokens,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    }
    tower = {"model_type": "pixtral", **small, "num_attention_heads": 4, "head_dim": 16}
    composite = {"text_config": {"model_type": "mistral4", **text}, "vision_config": tower}
    config = {"model_type": kind, **(composite if kind == "mistral3" else text)}
    assert_same_parts(real_model(config), build_model(config))


@pytest.mark.parametrize("kind", ["deepseek_v32", "glm_moe_dsa", "axk2"])
def test_attention_targets_leave_out_the_indexer_that_runs_without_a_graph(kind):
    small = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128, "intermediate_size": 96}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32}
    widths = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "index_head_dim": 16, "index_n_heads": 2}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1}
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "topk_group": 1}
    config = {"model_type": kind, **small, **heads, **widths, **experts, **tokens}
    model = real_model(config)
    assert set(attention_linears(model)) == set(build_model(config).attention_linears)
    assert any("indexer" in name for name, _ in model.named_modules())


def test_attention_targets_of_compressed_attention_are_what_a_gradient_comes_to():
    config = {
        "model_type": "deepseek_v4",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "vocab_size": 128,
        "num_attention_heads": 4,
        "head_dim": 32,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "index_head_dim": 32,
        "o_groups": 2,
    }
    model = real_model(config)
    assert_same_parts(model, build_model(config))
    adapted = {
        name for name, _ in model.named_modules() for one in attention_linears(model) if name.endswith(f".{one}")
    }
    assert not any("indexer" in name for name in adapted)


@pytest.mark.parametrize("kind", UNDESCRIBED)
def test_parts_and_attention_of_models_without_a_family_are_the_planners_too(kind):
    small = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128, "intermediate_size": 96}
    config = {"model_type": kind, **small, **UNDESCRIBED[kind]}
    assert_same_parts(real_model(config), build_generic(layout_from_json(layout(config))))


def test_projectors_inside_a_tower_are_the_planners_too_where_there_is_no_family():
    config = dict(IMAGE_MODELS["cosmos3_edge"])
    assert_same_parts(real_model(config), build_generic(layout_from_json(layout(config))))
