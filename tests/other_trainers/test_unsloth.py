"""What keywords of Unsloth's programs mean, as its source has it."""

import json
import re
from typing import Any

import pytest

from unsloth_programs import ADAPTS, LOADS, NOTEBOOK, SCRIPT, TRAINS, notebook
from vlmplan.architecture.adapter_names import target_names
from vlmplan.architecture.families.build import build_model
from vlmplan.architecture.modules import Linear
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.models.packaged import alias_by_hub_id
from vlmplan.notes import Caveat
from vlmplan.other_trainers import Asked, TrainerConfig, open_trainer_config, read_opened
from vlmplan.other_trainers.unsloth.names import TABLE, makers_name, same_repository
from vlmplan.other_trainers.unsloth.targets import WORDS, adapted_modules
from vlmplan.recipe.choices import ALL_LINEAR, REGEX, Precision
from vlmplan.request import parse
from vlmplan.request.parsing import on_other_machines


@pytest.fixture
def read(tmp_path):
    def config(*changes: tuple[str, str], text: str = SCRIPT, suffix: str = ".py", **asked: Any) -> TrainerConfig:
        for one, other in changes:
            assert one in text
            text = text.replace(one, other)
        opened = open_trainer_config(tmp_path / f"train{suffix}", text)
        return read_opened(opened, Asked(find_model=find_model, **{"num_gpus": 1, **asked}))

    return config


def test_a_script_is_planned_as_transformers_peft_and_trl_train_it(read):
    options = read().options
    assert options["model"] == "meta-llama/Meta-Llama-3.1-8B-Instruct"
    assert (options["method"], options["use_double_quant"], options["adapter_dtype"]) == ("qlora", True, "float32")
    assert (options["precision"], options["upcasts_frozen"], "weight_dtype" in options) == ("bf16", False, False)
    assert (options["activation_checkpointing"], options["offload_activations"]) == (True, True)
    assert (options["micro_batch"], options["grad_accum"], options["num_samples"]) == (2, 4, 480)
    assert (options["seq_len"], options["optimizer"], options["loss"]) == (2048, "adamw-8bit", "trl")
    assert options["expandable_segments"] is True


def test_every_keyword_is_accounted_for(read):
    config = read()
    named = {setting.key for setting in config.said} | set(config.idle)
    assert {"r", "lora_alpha", "target_modules", "random_state", "learning_rate", "max_steps"} <= named


def test_what_a_program_does_not_say_is_unsloths_default(read):
    bare = (
        "from unsloth import FastLanguageModel\n"
        'model, t = FastLanguageModel.from_pretrained("unsloth/Qwen2.5-0.5B")\n'
        "model = FastLanguageModel.get_peft_model(model)\n"
        "SFTTrainer(model, args=SFTConfig())\n"
    )
    options = read(text=bare).options
    assert (options["lora_rank"], options["lora_alpha"], options["lora_dropout"]) == (16, 16, 0.0)
    assert (options["micro_batch"], options["grad_accum"], options["optimizer"]) == (4, 2, "adamw-8bit")
    assert options["lora_targets"] == "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
    assert (options["method"], options["seq_len"], options["offload_activations"]) == ("qlora", 2048, True)
    plain = read(("SFTConfig()", "TrainingArguments()"), text=bare).options
    assert (plain["micro_batch"], plain["grad_accum"], plain["optimizer"]) == (8, 1, "adamw")


def test_modes_of_checkpoints(read):
    def checkpoints(mode: str, length: str = "2048") -> tuple[Any, Any]:
        options = read(('"unsloth",', f"{mode},"), ("= 2048 ", f"= {length} ")).options
        return options["activation_checkpointing"], options.get("offload_activations", False)

    assert checkpoints('"unsloth"') == (True, True)
    assert checkpoints('"unsloth"', "511") == (True, False)
    assert checkpoints("True") == (True, False)
    assert checkpoints("False") == (False, False)


def test_inputs_wait_on_the_host_whatever_the_number_of_gpus(read):
    many, alone = (read(text=NOTEBOOK, suffix=".ipynb", num_gpus=count) for count in (2, 1))
    assert many.options["offload_activations"] is alone.options["offload_activations"] is True
    assert read(num_gpus=2).options["offload_activations"] is True
    assert [any("one or two buffers" in note for note in one.notes) for one in (many, alone)] == [False, True]


def test_no_checkpoints_are_made_unless_the_arguments_ask_for_them(read):
    off = ('"unsloth",', "False,")
    assert read(off).options["activation_checkpointing"] is False
    asked = read(off, ("optim =", "gradient_checkpointing = True, optim =")).options
    assert (asked["activation_checkpointing"], "offload_activations" in asked) == (True, False)


def test_embeddings_move_to_the_host_only_where_memory_is_tight(read):
    def tells(*changes: tuple[str, str], **how: Any) -> bool:
        return any("too little memory free for a step" in note for note in read(*changes, **how).notes)

    assert tells()
    assert not tells(num_gpus=2)
    assert not tells(("Meta-Llama-3.1-8B-Instruct-bnb-4bit", "Qwen2.5-0.5B"))  # whose head is its embedding
    assert not tells(("load_in_4bit = True", "load_in_4bit = True, offload_embedding = False"))


def test_a_rate_of_its_own_for_lora_b_is_planned(read):
    plus = ("SFTConfig(", "UnslothTrainingArguments(loraplus_lr_ratio = 16, ")
    assert read(plus).options["loraplus_lr_ratio"] == 16.0
    assert "loraplus_lr_ratio" not in read().options


def test_heads_among_the_targets_are_trained_whole(read):
    config = read(('"down_proj",]', '"down_proj", "lm_head", "embed_tokens"]'))
    assert config.options["train_embeddings"] is True
    assert config.options["lora_targets"] == "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
    assert any("as modules_to_save would have it" in note for note in config.notes)


@pytest.mark.parametrize(("said", "length"), [("512", 512), ("1024", 2048), ("4096", 2048)])
def test_a_max_length_that_is_not_trls_own_is_held_to(read, said: str, length: int):
    assert read(("optim =", f"max_length = {said}, optim =")).options["seq_len"] == length
    preferences = (
        ("SFTTrainer(", "DPOTrainer("),
        ("SFTConfig(", f"DPOConfig(max_length = {said}, "),
        ("packing = False,", ""),
    )
    assert read(*preferences).options["seq_len"] == int(said)


def test_weights_in_16_bits_and_full_fine_tuning(read):
    lora = read(("load_in_4bit = True", "load_in_4bit = False")).options
    assert (lora["method"], lora["adapter_dtype"], "use_double_quant" in lora) == ("lora", "float32", False)
    full = read(("load_in_4bit = True", "full_finetuning = True")).options
    assert (full["method"], full["weight_dtype"], "lora_rank" in full) == ("full", "model", False)
    wide = read(("load_in_4bit = True", "full_finetuning = True, float32_mixed_precision = True")).options
    assert wide["weight_dtype"] == "float32"
    half = read(("load_in_4bit = True", "full_finetuning = True"), precision=Precision.FP16).options
    assert half["weight_dtype"] == "float32"


def test_fp16_is_for_gpus_without_bf16(read):
    assert read(("dtype = None", "dtype = torch.float16")).options["precision"] == "fp16"
    asks = read(("optim =", "fp16 = not is_bfloat16_supported(), bf16 = is_bfloat16_supported(), optim ="))
    assert asks.options["precision"] == "bf16"
    assert any("--precision fp16" in note for note in asks.notes)
    change = ("optim =", "fp16 = not is_bfloat16_supported(), bf16 = is_bfloat16_supported(), optim =")
    old = read(change, computes_in_bf16=lambda: False)
    assert old.options["precision"] == "fp16"
    assert not any("as on a GPU that computes in bf16" in note for note in old.notes)


@pytest.mark.parametrize(("gpus", "precision"), [(("t4",), "fp16"), (("l4",), "bf16"), (("t4", "l4"), "bf16")])
def test_the_gpu_that_is_asked_for_decides_in_what_unsloth_computes(tmp_path, gpus, precision):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    asked = parse({"config": path, "gpu": gpus})
    assert asked.recipe.precision is Precision(precision)
    assert parse({"config": path, "gpu": ("t4",), "precision": "bf16"}).recipe.precision is Precision.BF16
    assert on_other_machines(asked, {"gpu": ("v100-sxm2-16gb",)}).recipe.precision is Precision.FP16


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("load_in_4bit = True", "load_in_8bit = True"), "load_in_8bit is true"),
        (("load_in_4bit = True", "load_in_16bit = True"), "load_in_4bit = False"),
        (("load_in_4bit = True", "fast_inference = True"), "fast_inference is true"),
        (("r = 16", "r = args.rank"), "r is args.rank, which only running the program tells"),
        (("use_rslora", "fast_inferense = True, use_rslora"), "fast_inferense"),
        (('bias = "none"', 'bias = "all"'), "bias"),
        (("loftq_config = None", "loftq_config = {'bits': 4}"), "loftq_config"),
        (("load_in_4bit = True", "load_in_4bit = True, offload_embedding = True"), "offload_embedding is true"),
        (("r = 16", "offload_layers = 8, r = 16"), "offload_layers is 8"),
        (("r = 16", 'checkpoint_skip_layers = "max", r = 16'), "checkpoint_skip_layers"),
        (("optim =", "context_parallel_size = 2, optim ="), "context_parallel_size is 2"),
    ],
)
def test_what_is_not_planned_is_refused_by_its_name(read, change: tuple[str, str], words: str):
    with pytest.raises(InputError, match=re.escape(words)):
        read(change)


def test_functions_of_metrics_have_unsloth_make_all_logits(read):
    measured = read(
        ("    args = SFTConfig(", "    compute_metrics = score,\n    args = SFTConfig(eval_strategy='steps', ")
    )
    assert (measured.options["loss"], measured.options["eval_keeps"]) == ("model", "logits")
    assert (
        read(("    args = SFTConfig(", "    args = SFTConfig(eval_strategy='steps', ")).options["eval_keeps"] == "loss"
    )


def test_adapters_that_the_program_freezes_in_part_are_refused_until_its_user_says_it(read):
    frozen = (
        "trainer = SFTTrainer(",
        "for one in model.layers[:2].parameters():\n    one.requires_grad = False\ntrainer = SFTTrainer(",
    )
    with pytest.raises(InputError, match="leaves trained what only running the program tells"):
        read(frozen)


def test_a_run_without_adapters_that_is_not_full_trains_nothing(read):
    text = SCRIPT.replace("FastLanguageModel.get_peft_model(", "kept(")
    with pytest.raises(InputError, match="no get_peft_model"):
        read(text=text)


def test_a_program_without_unsloth_is_told_what_runs_it(tmp_path):
    with pytest.raises(InputError, match=r"vlmplan rehearse --gpu NAME:COUNT -- python train\.py"):
        open_trainer_config(tmp_path / "train.py", "print(1)")


def test_padding_that_unsloth_drops_by_itself_is_said_of_text_that_is_not_packed(read):
    def tells(*changes: tuple[str, str], **how: Any) -> bool:
        return any("drops the padding" in note for note in read(*changes, **how).notes)

    assert tells()
    assert not tells(("packing = False", "packing = True"))
    assert not tells(("optim =", "padding_free = False, optim ="))
    assert not tells(text=NOTEBOOK, suffix=".ipynb")


def test_preferences_are_read_with_their_own_length(read):
    options = read(("SFTTrainer(", "DPOTrainer("), ("SFTConfig(", "DPOConfig(beta = 0.1, "), ("packing = False,", ""))
    assert (options.options["task"], options.options["seq_len"]) == ("dpo", 1024)


def test_towers_that_stay_in_16_bits_are_said_with_what_they_take(read):
    modules = [one for name, one in build_model(find_model("qwen2-vl-2b").config).named_modules() if "visual" in name]
    size = sum(one.weight.numel for one in modules if isinstance(one, Linear))
    notes = read(text=NOTEBOOK, suffix=".ipynb").notes
    (more,) = (float(found[1]) for note in notes if (found := re.search(r"up to ([\d.]+) GiB more", note)))
    assert more == pytest.approx(size * (2 - 0.5) / 1024**3, rel=0.02)  # and the scales of 4 bits
    wide = NOTEBOOK.replace("load_in_4bit = True", "load_in_4bit = False")
    assert not any("in 16 for most models" in note for note in read(text=wide, suffix=".ipynb").notes)


@pytest.mark.parametrize(
    ("variable", "is_said"),
    [('UNSLOTH_FUSED_LINEAR"] = "0"', True), ('UNSLOTH_FUSED_LINEAR"] = "1"', False), ('WANDB_MODE"] = "off"', False)],
)
def test_variables_that_change_memory_are_named(read, variable: str, is_said: bool):
    notes = read(text=f'import os\nos.environ["{variable}\n{SCRIPT}').notes
    assert any("UNSLOTH_FUSED_LINEAR: the program sets" in note for note in notes) is is_said


def test_only_runs_like_the_published_ones_are_told_what_those_took(read):
    def caveat(*changes: tuple[str, str], **how: Any) -> str:
        return "; ".join(note for note in read(*changes, **how).notes if isinstance(note, Caveat))

    assert "took 0.89 to 1.04 of what is planned so" in caveat()
    for change in (("load_in_4bit = True", "load_in_4bit = False"), ('"unsloth",', "True,")):
        assert "26 of Unsloth's notebooks" in caveat(change)
        assert "no published run" not in caveat(change)
    pairs = (("SFTTrainer(", "DPOTrainer("), ("SFTConfig(", "DPOConfig(beta = 0.1, "), ("packing = False,", ""))
    assert "no published run" in caveat(*pairs)
    assert "keeps all scores" in caveat(("dtype = None", "dtype = torch.float16"))
    assert "checkpoints towers" in caveat(text=NOTEBOOK, suffix=".ipynb")


# -- images ----------------------------------------------------------------------------------------------------------


def test_a_notebook_with_images(read):
    config = read(text=NOTEBOOK, suffix=".ipynb")
    assert (config.options["image_size"], config.options["seq_len"]) == ("512x512", 2048)
    assert config.saving.num_written(60, 1.0, None) == 0  # no folder is said


@pytest.mark.parametrize(
    ("resize", "size"), [("'max'", None), ("336", "336x336"), ("(448, 224)", "448x224"), ("'min'", "512x512")]
)
def test_how_large_images_may_be(read, resize: str, size: str | None):
    options = read(("tokenizer),", f"tokenizer, resize = {resize}),"), text=NOTEBOOK, suffix=".ipynb").options
    assert options.get("image_size") == size


def test_a_model_whose_own_size_has_two_sides_gets_all_images_so(read):
    config = read(("unsloth/Qwen2-VL-2B-Instruct", "OpenGVLab/InternVL3-1B-hf"), text=NOTEBOOK, suffix=".ipynb")
    assert config.options["image_size"] == "448x448"
    assert not any("that are wider" in note for note in config.notes)


PARTS = {**dict.fromkeys(WORDS, True), "audio_layers": False}


def adapted(model: str, *, names: tuple[str, ...] = (), **parts: bool) -> set[str]:
    """The Linears of a model that are adapted."""
    files = find_model(model)
    options = adapted_modules(
        loader="FastVisionModel", targets=names, parts={**PARTS, **parts}, stacked=(), model=files
    )
    pattern = str(options["lora_targets"]).removeprefix(REGEX)
    linears = [name for name, module in build_model(files.config).named_modules() if isinstance(module, Linear)]
    return {name for name in linears if re.fullmatch(pattern, name)}


@pytest.mark.parametrize("model", ["qwen2-vl-2b", "qwen2.5-vl-3b", "gemma-3-4b-it", "llama-3.2-11b-vision"])
def test_all_linears_of_attention_and_mlps_are_adapted_and_neither_projector_nor_head(model: str):
    files = find_model(model)
    linears = {name for name, module in build_model(files.config).named_modules() if isinstance(module, Linear)}
    layered = {name for name in linears if re.search(r"\.(layers|blocks)\.\d+\.", name)}
    found = adapted(model)
    assert found
    assert found == {name for name in layered if re.search(r"attn|attention|mlp", name)}


def test_attention_of_a_text_model_is_adapted_too():
    found = {name.rpartition(".")[2] for name in adapted("qwen2.5-0.5b")}
    assert found == set("q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split())


def test_embedders_of_images_and_towers_that_hear_are_adapted_where_they_are_asked_for():
    seen, heard = adapted("gemma-4-e2b"), adapted("gemma-4-e2b", audio_layers=True)
    assert any("embed_vision" in name for name in seen)
    assert not any("audio" in name for name in seen)
    assert {name.partition("audio")[0] for name in heard - seen} == {"model.", "model.embed_"}
    assert adapted("gemma-4-e2b", audio_layers=True, mlp_modules=False) < heard


def test_targets_that_the_chosen_layers_do_not_have_are_refused():
    with pytest.raises(InputError, match="name no Linear"):
        adapted("gpt2", names=("q_proj",), vision_layers=False)


def test_modules_that_hold_a_linear_are_passed_by():
    files = find_model("gemma-4-e2b")
    pattern = str(
        adapted_modules(loader="FastModel", targets=(), parts=PARTS, stacked=(), model=files)["lora_targets"]
    ).removeprefix(REGEX)
    meant = {
        name: isinstance(module, Linear)
        for name, module in build_model(files.config).named_modules()
        if re.fullmatch(pattern, name)
    }
    assert meant
    assert all(meant.values())
    assert any(name.endswith("q_proj.linear") for name in meant)
    assert any(name.endswith("language_model.layers.0.self_attn.q_proj") for name in meant)


def test_mixtures_are_read_where_no_expert_is_adapted(read):
    mixture = ("Meta-Llama-3.1-8B-Instruct-bnb-4bit", "Qwen3-30B-A3B")
    wide = ("load_in_4bit = True", "load_in_4bit = False")
    with pytest.raises(InputError, match="experts"):
        read(mixture, wide)
    attention = ('"o_proj",\n                      "gate_proj", "up_proj", "down_proj",]', '"o_proj"]')
    assert read(mixture, wide, attention).options["lora_targets"] == "q_proj,k_proj,v_proj,o_proj"


def test_an_image_that_no_sample_has_room_for_is_left_to_the_user(read):
    config = read(("Qwen2-VL-2B-Instruct", "Ministral-3-3B-Instruct-2512"), text=NOTEBOOK, suffix=".ipynb")
    assert "image_size" not in config.options
    assert any("1540 pixels wide" in note for note in config.notes)


def test_images_are_as_large_as_the_programs_processor_leaves_them(read):
    cells = [LOADS + "tokenizer.image_processor.max_pixels = 512 * 28 * 28\n", ADAPTS, TRAINS, "trainer.train()"]
    own = read(text=notebook(*cells), suffix=".ipynb")
    assert own.options == read(text=NOTEBOOK, suffix=".ipynb").options
    assert any(note.startswith("processor.max_pixels: images are planned as") for note in own.notes)
    cells[2] = TRAINS.replace("    data_collator = UnslothVisionDataCollator(model, tokenizer),\n", "")
    assert read(text=notebook(*cells), suffix=".ipynb").options["image_size"] == "633x633"
    cells[0] = LOADS + "tokenizer.image_processor.do_resize = False\n"
    with pytest.raises(InputError, match=r"processor.do_resize is false; which changes how large images are"):
        read(text=notebook(*cells), suffix=".ipynb")


def test_parts_and_modules_are_left_out():
    everything = adapted("qwen2-vl-2b")
    language, vision = adapted("qwen2-vl-2b", vision_layers=False), adapted("qwen2-vl-2b", language_layers=False)
    assert language | vision == everything
    assert all("visual" in name for name in vision)
    assert not any("visual" in name for name in language)
    attention = adapted("qwen2-vl-2b", mlp_modules=False)
    assert attention == {name for name in everything if "attn" in name}
    named = adapted("qwen2-vl-2b", names=("q_proj",), mlp_modules=False)
    assert {name.rpartition(".")[2] for name in named} == {"q_proj"}
    with pytest.raises(InputError, match="until none is left"):
        adapted("qwen2-vl-2b", vision_layers=False, language_layers=False)


# -- names -----------------------------------------------------------------------------------------------------------


def test_every_name_of_the_table_is_of_a_packaged_model():
    names = json.loads(TABLE.read_text())["names"]
    assert {name.casefold() for name in names.values()} <= alias_by_hub_id().keys()
    assert all(name.startswith("unsloth/") and name == name.casefold() for name in names)


def test_names_are_looked_up_whatever_their_capitals_and_others_stay():
    assert makers_name("unsloth/Qwen2.5-7B-bnb-4bit") == "Qwen/Qwen2.5-7B"
    assert makers_name("unsloth/meta-llama-3.1-8b-instruct-BNB-4bit") == "meta-llama/Meta-Llama-3.1-8B-Instruct"
    assert makers_name("unsloth/mistral-7b-bnb-4bit") == "mistralai/Mistral-7B-v0.1"  # of the table
    assert makers_name("me/mine-bnb-4bit") == "me/mine-bnb-4bit"
    assert makers_name("unsloth/Magistral-Small-2509") == "unsloth/Magistral-Small-2509"


def test_the_table_has_what_is_called_otherwise_than_its_makers_call_it():
    assert not [name for name in json.loads(TABLE.read_text())["names"] if same_repository(name)]


def test_the_longest_expression_that_unsloth_makes_is_one_that_is_planned():
    parts = {**dict.fromkeys(WORDS, True), "audio_layers": False}
    chosen = adapted_modules(
        loader="FastVisionModel", targets=[ALL_LINEAR], parts=parts, stacked=(), model=find_model("gemma-4-e2b")
    )
    assert len(str(chosen["lora_targets"])) > 1000
    assert target_names(str(chosen["lora_targets"]), "--lora-targets") is not None
