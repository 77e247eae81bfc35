"""The loaded model beside the planner's: every parameter's name, shape, element type and whether it is trained."""

import json
import re
import shutil

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_plans import tiny_plan
from transformers import AutoModelForCausalLM

from vlmplan.architecture.prepare import prepared_model
from vlmplan.errors import InputError, UnavailableError
from vlmplan.models.packaged import PACKAGED_MODELS
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AdapterDtype, AttentionImplementation, Method, Precision, WeightDtype
from vlmplan.workload import ModelFiles, Workload
from vlmplan_trainer.models.adapters import load_adapter
from vlmplan_trainer.models.load import load_model, load_processing, model_source, num_elements
from vlmplan_trainer.models.tiny import FAMILIES, write_tiny_model

UP_PROJ = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def vision_folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("vision"), "qwen2_vl", ties_weights=False)


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("text"), "llama", ties_weights=False)


def planned_parameters(config, recipe):
    """(name, elements, element type, is trained) of every parameter, in order; None as the type of a 4-bit weight."""
    return [
        (
            entry.name,
            entry.parameter.numel,
            entry.parameter.dtype.torch_name if entry.parameter.stored_bytes is None else None,
            entry.parameter.requires_grad,
        )
        for entry in prepared_model(config, recipe).parameters()
    ]


def plain_name(name):
    """A name without what peft puts around the model and the adapter."""
    name = name.removeprefix("base_model.model.")
    return re.sub(
        r"\.(lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector|modules_to_save)\.default",
        r".\1",
        name,
    )


def real_parameters(model):
    return [
        (
            plain_name(name),
            num_elements(parameter),
            str(parameter.dtype).removeprefix("torch.") if parameter.is_floating_point() else None,
            parameter.requires_grad,
        )
        for name, parameter in model.named_parameters()
    ]


def assert_as_planned(folder, recipe, **options):
    plan = tiny_plan(folder, recipe)
    loaded = load_model(plan, **options)
    real, planned = real_parameters(loaded.model), planned_parameters(plan.workload.model.config, recipe)
    assert sorted(real, key=str) == sorted(planned, key=str)
    # Of trained ones the order counts too: it is that of the optimizer's flat buffer.
    assert [item for item in real if item[3]] == [item for item in planned if item[3]]
    return loaded.model


ELEMENT_TYPES = [
    *((None, precision) for precision in Precision),
    *((2, precision) for precision in (Precision.BF16, Precision.FP32)),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("zero_stage", "precision"), ELEMENT_TYPES)
@pytest.mark.parametrize("method", Method)
def test_every_parameter_is_as_planned(folder, method, zero_stage, precision):
    assert_as_planned(folder, Recipe(method=method, zero_stage=zero_stage, precision=precision))


@pytest.mark.parametrize("method", Method)
def test_random_weights_have_the_same_parameters(folder, method):
    assert_as_planned(folder, Recipe(method=method), random_weights=True)


@pytest.mark.sweep
def test_random_weights_of_a_file_with_the_texts_values_beside_its_own_are_tied_as_it_says(tmp_path):
    """PaddleOCR-VL, whose class in transformers takes the text configuration's default in place of what is there."""
    values = json.loads((PACKAGED_MODELS / "paddleocr-vl" / "config.json").read_text())
    assert not values["tie_word_embeddings"]
    small = {"hidden_size": 256, "num_hidden_layers": 1, "vocab_size": 1000}
    values |= small | {"vision_config": values["vision_config"] | {"num_hidden_layers": 1}}
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert_as_planned(tmp_path, Recipe(), random_weights=True)


@pytest.mark.parametrize("trained", ["vision", "projector", "language"])
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
def test_freezing_all_parts_but_one_leaves_what_was_planned(vision_folder, method, trained):
    parts = {f"train_{part}": part == trained for part in ("vision", "projector", "language")}
    assert_as_planned(vision_folder, Recipe(method=method, **parts))


@pytest.mark.parametrize(
    ("method", "targets"),
    [
        (Method.LORA, "attention"),
        (Method.LORA, "qkv,fc1,proj"),
        (Method.LORA, "down_proj,embed_tokens"),
        (Method.LORA, "lm_head"),
        (Method.QLORA, "qkv,fc1,proj"),
        (Method.QLORA, "lm_head"),
        (Method.LORA_8BIT, "qkv,fc1,proj"),
    ],
)
def test_adapters_are_where_they_were_planned(vision_folder, method, targets):
    assert_as_planned(vision_folder, Recipe(method=method, lora_targets=targets, lora_rank=5))


@pytest.mark.parametrize("method", [Method.LORA, Method.QLORA])
def test_trained_embeddings_are_copies_tied_where_the_model_ties_them(folder, text_folder, method):
    for place in (folder, text_folder):
        assert_as_planned(place, Recipe(method=method, train_embeddings=True, zero_stage=1))


def test_kbit_upcast_makes_what_is_not_4_bit_float32(folder):
    model = assert_as_planned(folder, Recipe(method=Method.QLORA, upcasts_frozen=True))
    assert {p.dtype for p in model.parameters() if p.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize("uses_autocast", [True, False])
@pytest.mark.parametrize("adapter_dtype", AdapterDtype)
@pytest.mark.parametrize("method", [Method.LORA, Method.QLORA])
def test_adapters_and_trained_copies_have_the_types_that_are_asked_for(
    text_folder, method, adapter_dtype, uses_autocast
):
    recipe = Recipe(
        method=method, adapter_dtype=adapter_dtype, uses_autocast=uses_autocast, train_embeddings=True, lora_dropout=0.1
    )
    assert_as_planned(text_folder, recipe)


@pytest.mark.parametrize("method", Method)
@pytest.mark.parametrize("weight_dtype", WeightDtype)
def test_the_models_own_weights_have_the_types_that_are_asked_for(folder, method, weight_dtype):
    if method is not Method.FULL and weight_dtype is WeightDtype.MODEL:
        pytest.skip("refused: adapters have an option of their own")
    model = assert_as_planned(folder, Recipe(method=method, weight_dtype=weight_dtype, train_vision=False))
    wide = weight_dtype is WeightDtype.FLOAT32
    kept = {p.dtype for p in model.parameters() if p.is_floating_point() and not p.requires_grad}
    assert kept <= {torch.float32 if wide else torch.bfloat16}
    trained = {p.dtype for p in model.parameters() if p.requires_grad}
    assert trained == {torch.bfloat16 if weight_dtype is WeightDtype.MODEL else torch.float32}


@pytest.mark.parametrize("upcasts", [True, False])
def test_types_are_those_of_pefts_own_switch(text_folder, upcasts):
    """float32 and model are what ``get_peft_model(autocast_adapter_dtype=...)`` gives, trained copies included."""
    dtype = AdapterDtype.FLOAT32 if upcasts else AdapterDtype.MODEL
    recipe = Recipe(method=Method.LORA, adapter_dtype=dtype, train_embeddings=True, lora_targets="q_proj")
    ours = load_model(tiny_plan(text_folder, recipe)).model
    base = AutoModelForCausalLM.from_pretrained(text_folder, dtype=torch.bfloat16)
    config = LoraConfig(
        r=recipe.lora_rank,
        target_modules=["q_proj"],
        modules_to_save=["embed_tokens", "lm_head"],
        task_type="CAUSAL_LM",
    )
    theirs = get_peft_model(base, config, autocast_adapter_dtype=upcasts)
    expected = {name: parameter.dtype for name, parameter in theirs.named_parameters() if parameter.requires_grad}
    assert {name: p.dtype for name, p in ours.named_parameters() if p.requires_grad} == expected


def test_alpha_dropout_and_rslora_are_pefts(text_folder):
    recipe = Recipe(method=Method.LORA, lora_rank=4, lora_alpha=6, lora_dropout=0.25, use_rslora=True)
    model = load_model(tiny_plan(text_folder, recipe)).model
    layer = next(module for module in model.modules() if hasattr(module, "lora_dropout"))
    assert layer.scaling["default"] == 6 / 4**0.5
    assert layer.lora_dropout["default"].p == 0.25


def test_alpha_is_twice_the_rank(text_folder):
    model = load_model(tiny_plan(text_folder, Recipe(method=Method.LORA, lora_rank=7))).model
    assert model.peft_config["default"].lora_alpha == 2 * 7


def test_adapters_change_nothing_before_the_first_step(text_folder):
    ids = torch.arange(12)[None] + 7
    recipe = Recipe(precision=Precision.FP32)
    plain, adapted = (
        load_model(tiny_plan(text_folder, recipe.with_changes(method=method))).model(input_ids=ids).logits
        for method in (Method.FULL, Method.LORA)
    )
    assert torch.equal(plain, adapted)


@pytest.mark.parametrize("method", Method)
def test_equal_seeds_give_equal_weights_and_others_do_not(text_folder, method):
    plan = tiny_plan(text_folder, Recipe(method=method))
    first, again, other = (
        [p.detach().clone() for p in load_model(plan, random_weights=True, seed=seed).model.parameters()]
        for seed in (3, 3, 5)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_weights_of_the_file_are_loaded_unrounded(tmp_path):
    """A float32 checkpoint whose weights are trained in float32 does not pass through 16 bit."""
    from safetensors.torch import load_file, save_file

    write_tiny_model(tmp_path, "llama")
    weights = {name: value.float() + 2**-20 for name, value in load_file(tmp_path / "model.safetensors").items()}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = load_model(tiny_plan(tmp_path, Recipe())).model
    for name, value in weights.items():
        assert torch.equal(model.get_parameter(name), value)


@pytest.mark.parametrize("attention", [AttentionImplementation.SDPA, AttentionImplementation.EAGER])
def test_every_part_runs_the_planned_attention_without_a_cache(folder, attention):
    config = load_model(tiny_plan(folder, Recipe(attention=attention))).model.config
    text = config.get_text_config()
    assert {config._attn_implementation, text._attn_implementation} == {attention.value}
    assert config.use_cache is text.use_cache is False
    if text is not config:
        assert config.vision_config._attn_implementation == attention.value


def test_a_vision_model_comes_with_its_processor_and_a_text_model_with_its_tokenizer(folder):
    found = load_processing(tiny_plan(folder, Recipe()))
    assert found.is_vision == hasattr(found.processor, "image_processor") == (found.model_type == "qwen2_vl")
    assert "tokenizer.json" in found.files


# -- errors ----------------------------------------------------------------------------------------------------------


def test_a_folder_without_weights_is_refused_unless_they_are_random(text_folder, tmp_path):
    for path in text_folder.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, tmp_path)
    plan = tiny_plan(tmp_path, Recipe())
    with pytest.raises(InputError, match=r"has no weights.*--random-weights"):
        load_model(plan)
    assert load_model(plan, random_weights=True).model.training


def test_a_checkpoint_of_another_size_than_planned_is_refused(text_folder, tmp_path):
    larger = write_tiny_model(tmp_path, "llama", num_layers=3)
    planned = tiny_plan(text_folder, Recipe())
    model = ModelFiles(id=str(larger), config=planned.workload.model.config)
    with pytest.raises(InputError, match="not what was planned"):
        load_model(tiny_plan(text_folder, Recipe(), workload=Workload(model=model)))


@pytest.mark.parametrize("method", [Method.QLORA, Method.LORA_8BIT])
def test_packed_weights_under_zero_3_are_refused(text_folder, method):
    with pytest.raises(InputError, match=f"--method {method.value} does not go with --zero-stage 3"):
        load_model(tiny_plan(text_folder, Recipe(method=method, zero_stage=3)))


def test_weights_that_are_no_safetensors_are_one_sentence(text_folder, tmp_path):
    shutil.copytree(text_folder, tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"nothing of use")
    with pytest.raises((InputError, UnavailableError), match="cannot be loaded"):
        load_model(tiny_plan(tmp_path / "broken", Recipe()))


def test_a_folder_without_a_tokenizer_is_one_whole_sentence(text_folder, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(text_folder / "config.json", bare)
    with pytest.raises(InputError, match=r"bare cannot be loaded: it has no tokenizer; tokenizer\.json is needed"):
        load_processing(tiny_plan(bare, Recipe()), random_weights=True)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("tokenizer.json", '{"version": ', r"tokenizer\.json is not JSON"),
        (
            "tokenizer.json",
            "{}",
            r"broken cannot be loaded: .* transformers says KeyError: 'added_tokens'",
        ),
        ("tokenizer.json", '{"added_tokens": [], "model": {}}', "Exception: data did not match any variant"),
        ("tokenizer_config.json", "[]", r"tokenizer_config\.json holds \[\]; a JSON object"),
    ],
)
def test_a_damaged_file_of_a_tokenizer_is_one_sentence(text_folder, tmp_path, file, content, said):
    broken = tmp_path / "broken"
    shutil.copytree(text_folder, broken)
    plan = tiny_plan(broken, Recipe())
    (broken / file).write_text(content)
    with pytest.raises(InputError, match=said):
        load_processing(plan)


@pytest.mark.parametrize("method", [Method.FULL, Method.QLORA])
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "lack 1 of the model's weights, which would be drawn at random: model.layers.1.mlp.up_proj.weight"),
        (
            {UP_PROJ: torch.zeros(124, 64, dtype=torch.bfloat16)},
            r"shape \[124, 64\], its config.json asks for \[128, 64\]",
        ),
    ],
    ids=["lacking", "of another shape"],
)
def test_a_weight_that_would_be_drawn_at_random_is_refused(text_folder, tmp_path, changed, said, method):
    shutil.copytree(text_folder, tmp_path / "partly")
    path = tmp_path / "partly" / "model.safetensors"
    weights = load_file(path)
    del weights[UP_PROJ]
    save_file(weights | changed, path, metadata={"format": "pt"})
    with pytest.raises(InputError, match="not what was planned" if changed and method is Method.QLORA else said):
        load_model(tiny_plan(tmp_path / "partly", Recipe(method=method)))


def test_a_model_type_that_transformers_lacks_is_one_sentence(text_folder, tmp_path):
    shutil.copytree(text_folder, tmp_path / "strange")
    plan = tiny_plan(tmp_path / "strange", Recipe())
    config = json.loads((tmp_path / "strange" / "config.json").read_text())
    (tmp_path / "strange" / "config.json").write_text(json.dumps({**config, "model_type": "strange"}))
    with pytest.raises(InputError, match="cannot be"):
        load_model(plan)


def with_model(text_folder, **model):
    files = ModelFiles(**{"id": "x", "config": tiny_plan(text_folder, Recipe()).workload.model.config, **model})
    return tiny_plan(text_folder, Recipe(), workload=Workload(model=files))


def test_a_revision_is_split_from_the_id(text_folder):
    source = model_source(with_model(text_folder, hub_id="org/name@v1.0"))
    assert (source.name, source.revision) == ("org/name", "v1.0")
    assert model_source(with_model(text_folder, hub_id="org/name")).revision is None


def test_a_folder_may_have_an_at_sign(text_folder, tmp_path):
    folder = tmp_path / "models@home"
    shutil.copytree(text_folder, folder)
    assert model_source(with_model(text_folder, id=str(folder))).name == str(folder)
    assert model_source(with_model(text_folder, id=str(folder / "config.json"))).name == str(folder)


@pytest.mark.parametrize("name", ["some-alias", "/no/such/folder", "./gone", "a/b/c"])
def test_a_model_that_is_nowhere_is_named(text_folder, name):
    with pytest.raises(InputError, match=re.escape(name)):
        model_source(with_model(text_folder, id=name))


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_model.bin"])
@pytest.mark.parametrize("content", [b"", b"x" * 5, b"PK\x03\x04" + b"x" * 99, b"\x80\x02c__builtin__\nexit\n)R."])
def test_an_adapter_whose_weights_are_none_is_one_sentence(tmp_path, name, content):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="its weights cannot be read: ") as caught:
        load_adapter(torch.nn.Linear(2, 3), tmp_path, Recipe(method=Method.LORA))
    assert "\n" not in str(caught.value)
