"""Llama 4 against the published checkpoint and against transformers, with and without images."""

import ast
import importlib.util
from collections import defaultdict
from pathlib import Path

import pytest

from model_table import assert_counts_match_the_table, packaged_config
from tape_probe import predicted_step
from text_steps import assert_checkpointed_step, assert_parameters_match, assert_step
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.llama4 import sum_of_experts
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch
from vlmplan.architecture.packed_weight import Linear4bit
from vlmplan.architecture.prepare import prepared_model
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.tensor import packed_node
from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method
from vlmplan.units import DType

ALIAS = "llama-4-scout"
TEXT = {
    "model_type": "llama4_text",
    "hidden_size": 128,
    "intermediate_size": 96,
    "intermediate_size_mlp": 192,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 4,
    "pad_token_id": None,
}
INTERLEAVED = {**TEXT, "interleave_moe_layer_step": 2, "use_qk_norm": False, "attention_bias": True}
CHUNKED = {**TEXT, "attention_chunk_size": 64, "num_experts_per_tok": 2}
UNTUNED = {**TEXT, "attn_temperature_tuning": False, "no_rope_layers": [1, 0, 1, 1], "moe_layers": [3]}
VISION = {
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 56,
    "patch_size": 14,
    "projector_input_dim": 96,
    "projector_output_dim": 96,
    "vision_output_dim": 96,
}
IMAGE_TOKEN = 999
TOKENS = {"image_token_index": IMAGE_TOKEN, "boi_token_index": 997, "eoi_token_index": 998}
COMPOSITE = {"model_type": "llama4", "text_config": TEXT, "vision_config": VISION, **TOKENS}
PREPROCESSOR = {"size": {"height": 56, "width": 56}, "max_patches": 4}
CONFIGS = {
    "text": TEXT,
    "every other layer dense": INTERLEAVED,
    "short chunks": CHUNKED,
    "lists": UNTUNED,
    "with images": COMPOSITE,
}
SIZES = (20, 20), (336, 336), (337, 300), (640, 480), (480, 640), (5000, 90), (2011, 1499), (90, 999)
BATCH = Batch(micro_batch=2, num_tokens=150)


def test_counts_are_those_of_the_published_checkpoint():
    assert_counts_match_the_table(ALIAS)


WHOLE = pytest.param(packaged_config(ALIAS), marks=pytest.mark.sweep)


@pytest.mark.parametrize("config", [WHOLE, *CONFIGS.values()], ids=[ALIAS, *CONFIGS])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("config", "attention"),
    [({**TEXT, "attention_dropout": 0.1}, "eager"), (INTERLEAVED, "sdpa"), (CHUNKED, "sdpa"), (UNTUNED, "sdpa")],
)
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention):
    assert_step(config, BATCH, attention=attention)


def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers():
    assert_checkpointed_step(CHUNKED, BATCH)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("frozen", "checkpoints"), [((), False), (("vision_model",), True), (("language_model",), False)]
)
def test_a_step_with_images_keeps_and_peaks_as_in_transformers(frozen, checkpoints):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from family_checks import assert_step_matches

    image = image_shape(COMPOSITE, PREPROCESSOR, width=100, height=100)
    num_tokens = image.num_tokens + 40
    batch = Batch(micro_batch=2, num_tokens=num_tokens, images_per_sample=1, image=image)
    ids = torch.arange(2 * num_tokens).reshape(2, num_tokens) % 900
    ids[:, 5 : 5 + image.num_placeholder_tokens] = IMAGE_TOKEN
    inputs = {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}
    pixels = {"pixel_values": (2 * image.num_vision_sequences, 3, 56, 56)}
    options = {"frozen": frozen, "checkpoints": checkpoints, "tolerance": 0.006 if frozen else 0.001}
    assert_step_matches(COMPOSITE, batch, inputs, pixels, **options)


def test_the_projector_multiplies_every_token_of_the_images():
    image = image_shape(COMPOSITE, PREPROCESSOR, width=100, height=100)
    batch = Batch(micro_batch=2, num_tokens=image.num_tokens + 40, images_per_sample=1, image=image)
    trace = build_model(COMPOSITE).run(Tape(), batch, AttentionBackend(), loss=LossKind.FULL)
    num_rows = 2 * image.num_placeholder_tokens
    widths = VISION["vision_output_dim"], TEXT["hidden_size"]
    assert trace.sections["projector"].forward_work.flops == 2 * num_rows * widths[0] * widths[1]


@pytest.mark.parametrize(("autocast", "summed"), [(DType.BFLOAT16, DType.FLOAT32), (None, DType.BFLOAT16)])
def test_experts_are_summed_in_float32_under_autocast_and_get_a_gradient_in_their_own_type(autocast, summed):
    num_experts, num_tokens, width = 4, 10, 16
    tape = Tape(autocast=autocast)
    with tape.section("experts"):
        rows = tape.tensor((num_experts * num_tokens, width), DType.BFLOAT16, packed_node())
        out = sum_of_experts(rows, num_tokens, width)
        assert (out.dtype, out.shape) == (summed, (num_tokens, width))
        before, grad = tape.total, tape.tensor(out.shape, DType.FLOAT32)
        (of_rows,) = out.node.backward(out.node, [grad])
        assert (of_rows.dtype, of_rows.shape) == (rows.dtype, rows.shape)
        assert tape.total == before + grad.num_bytes + rows.num_bytes


def test_a_canvas_is_that_of_transformers():
    """The functions alone: their file wants torchvision."""
    torch = pytest.importorskip("torch")
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None:
        pytest.skip("needs transformers")
    source = Path(found.origin).parent / "models" / "llama4" / "image_processing_llama4.py"
    names = {"get_factors", "find_supported_resolutions", "get_best_fit"}
    tree = ast.parse(source.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    for node in functions:
        node.decorator_list, node.returns = [], None
        for argument in node.args.args:
            argument.annotation = None
    space = {"torch": torch, "defaultdict": defaultdict}
    exec(compile(ast.Module(functions, []), str(source), "exec"), space)
    square = type("Square", (), {"height": 336, "width": 336})
    grids = torch.tensor(space["find_supported_resolutions"](16, square))
    config = packaged_config(ALIAS)
    for width, height in SIZES:
        for largest in (False, True):
            canvas = space["get_best_fit"]((height, width), grids, largest)
            shape = image_shape(config, {"resize_to_max_canvas": largest}, width=width, height=height)
            assert [shape.resized_height, shape.resized_width] == canvas.tolist()


def test_an_image_of_several_tiles_has_one_more_of_the_whole_and_a_separator_behind_each():
    shape = image_shape(packaged_config(ALIAS), None, width=700, height=300)
    features = (336 // 14) ** 2 // 4
    assert (shape.num_tile_columns, shape.num_tile_rows) == (3, 1)
    assert shape.num_placeholder_tokens == (3 + 1) * features
    assert shape.num_tokens == (3 + 1) * features + 3 + 3
    one = image_shape(packaged_config(ALIAS), None, width=336, height=336)
    assert one.num_tokens == features + 3


@pytest.mark.sweep
def test_adapters_leave_the_router_out_where_nothing_is_said_of_it():
    from cli_calls import call

    setup = ("--model", ALIAS, "--gpu", "h100-sxm:8", "--seq-len", "1024", "--json")
    estimate = ("estimate", *setup, "--method")
    assert call(*estimate, "lora", "--zero-stage", "3").document["recipe"]["lora_exclude"] == "router"
    full = call(*estimate, "full", "--zero-stage", "3", "--offload-optimizer", "cpu").document
    assert full["recipe"]["lora_exclude"] is None
    found = call("recommend", *setup).document["plans"]
    assert {plan["recipe"]["method"]: plan["recipe"]["lora_exclude"] for plan in found}["lora"] == "router"


def test_an_adapted_router_is_refused_with_what_to_give_instead():
    from cli_calls import call

    setup = ("--model", ALIAS, "--gpu", "h100-sxm:8", "--method", "lora", "--seq-len", "1024")
    everything = call("estimate", *setup, "--lora-targets", "all-linear").err
    assert "give --lora-exclude router with it" in " ".join(everything.split())
    named = call("estimate", *setup, "--lora-targets", "router").err
    assert "Llama 4's router cannot take an adapter" in " ".join(named.split())


def test_peft_fails_on_the_router_and_trains_without_it():
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    from family_checks import real_model

    ids = torch.arange(8).reshape(1, 8)
    config = {"target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    model = peft.get_peft_model(real_model(TEXT), peft.LoraConfig(**config))
    with pytest.raises(AttributeError, match="'tuple' object has no attribute 'dtype'"):
        model(input_ids=ids)
    model = peft.get_peft_model(real_model(TEXT), peft.LoraConfig(**config, exclude_modules=["router"]))
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(weight.grad is not None for name, weight in model.named_parameters() if "lora_" in name)


def test_bitsandbytes_leaves_the_router_in_16_bits_as_planned():
    torch = pytest.importorskip("torch")
    bitsandbytes = pytest.importorskip("bitsandbytes")
    pytest.importorskip("transformers")
    from transformers import BitsAndBytesConfig
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear

    from family_checks import real_model
    from vlmplan_trainer.models.adapters import quantize

    with torch.device("meta"):
        model = replace_with_bnb_linear(real_model(TEXT), ["lm_head"], BitsAndBytesConfig(load_in_4bit=True))
    packed = {name for name, module in model.named_modules() if isinstance(module, bitsandbytes.nn.Linear4bit)}
    small = real_model(TEXT)
    quantize(small, BitsAndBytesConfig(load_in_4bit=True), torch.device("cpu"))
    assert {name for name, module in small.named_modules() if isinstance(module, bitsandbytes.nn.Linear4bit)} == packed
    tree = prepared_model(TEXT, Recipe(method=Method.QLORA, lora_exclude="router"))
    assert {
        name.replace(".base_layer", "") for name, module in tree.named_modules() if isinstance(module, Linear4bit)
    } == packed
    assert not any("router" in name for name in packed)


def test_widths_that_do_not_meet_are_refused_where_there_are_images():
    config = {**COMPOSITE, "vision_config": {**VISION, "intermediate_size": 100}}
    image = image_shape(config, PREPROCESSOR, width=56, height=56)
    predicted_step(config, BATCH)
    with pytest.raises(InputError, match="intermediate_size is 100; 256, as wide as merged patches are, is needed"):
        predicted_step(config, Batch(micro_batch=1, num_tokens=40, images_per_sample=1, image=image))


def test_lists_of_another_length_than_the_layers_are_refused():
    with pytest.raises(InputError, match="a list of 4 numbers, one a layer"):
        build_model({**TEXT, "no_rope_layers": [1, 0]})
