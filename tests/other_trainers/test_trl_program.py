"""What keywords of programs mean that train with TRL's trainers, as TRL and peft take them."""

from typing import Any

import pytest
from click.testing import CliRunner

from trl_programs import BY_NAME, QLORA
from vlmplan.cli.check import check
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig, open_trainer_config, read_opened
from vlmplan.recipe.choices import Precision


@pytest.fixture
def read(tmp_path):
    def config(text: str, *changes: tuple[str, str], **asked: Any) -> TrainerConfig:
        for one, other in changes:
            assert one in text
            text = text.replace(one, other)
        opened = open_trainer_config(tmp_path / "train.py", text)
        return read_opened(opened, Asked(find_model=find_model, **{"num_gpus": 1, **asked}))

    return config


def test_a_model_that_the_trainer_loads(read):
    options = read(BY_NAME).options
    assert (options["model"], options["method"], options["seq_len"]) == ("Qwen/Qwen2.5-0.5B-Instruct", "lora", 512)
    assert (options["lora_rank"], options["lora_alpha"], options["lora_dropout"]) == (16, 8, 0.0)  # peft's own
    assert (options["lora_targets"], options["micro_batch"], options["loss"]) == ("all-linear", 2, "trl")
    assert (options["activation_checkpointing"], options["precision"], "weight_dtype" in options) == (
        True,
        "bf16",
        False,
    )
    wide = read(BY_NAME, ('"dtype": "bfloat16", ', "")).options
    assert wide["weight_dtype"] == "float32"  # create_model_from_path


def test_a_model_in_4_bits_that_a_call_loads(read):
    found = read(QLORA)
    options = found.options
    assert 'lora_target_modules ["q_proj"]' in map(str, found.said)
    assert (options["method"], options["use_double_quant"], options["upcasts_frozen"]) == ("qlora", True, True)
    assert (options["adapter_dtype"], options["optimizer"], options["seq_len"]) == ("model", "paged-adamw", 4096)
    assert (options["lora_rank"], options["lora_alpha"], options["lora_dropout"]) == (64, 16, 0.1)
    assert options["lora_targets"] == "q_proj"  # in a list it is no regular expression
    kept = read(QLORA, ("model = prepare_model_for_kbit_training(model)\n", "")).options
    assert kept["upcasts_frozen"] is False


def test_a_model_that_the_trainer_loads_is_packed_as_what_it_is_loaded_with_says(read):
    """``create_model_from_path(model, **model_init_kwargs)``; earlier releases of TRL take the same keyword
    themselves."""
    bits = ("from trl", "from transformers import BitsAndBytesConfig\nfrom trl")
    packed = ('"use_cache": False', '"quantization_config": BitsAndBytesConfig(load_in_4bit=True)')
    assert read(BY_NAME, bits, packed).options["method"] == "qlora"
    by_trainer = ("    ),\n    train_dataset", "    ),\n    model_init_kwargs=KWARGS,\n    train_dataset")
    kwargs = '{"dtype": "bfloat16", "quantization_config": BitsAndBytesConfig(load_in_4bit=True)}'
    own = ('        model_init_kwargs={"dtype": "bfloat16", "use_cache": False},\n', "")
    options = read(BY_NAME, bits, own, by_trainer, ("KWARGS", kwargs)).options
    assert (options["method"], options.get("weight_dtype")) == ("qlora", None)


def test_a_notebook_that_was_saved_as_a_program_has_lines_of_ipython(read, tmp_path):
    saved = "!pip install -q trl \\\n  peft\n%cd /content\n" + BY_NAME
    assert read(saved).options == read(BY_NAME).options
    (tmp_path / "saved.py").write_text(saved.replace("batch_size=2", "batch_size=512"), encoding="utf-8")
    words = [str(tmp_path / "saved.py"), "--gpu", "rtx-3060-12gb:1", "--fix", "--write", str(tmp_path / "fits.py")]
    assert CliRunner().invoke(check, words).exit_code == 0
    written = (tmp_path / "fits.py").read_text(encoding="utf-8")
    assert written.startswith(saved[: saved.index("from peft")])
    assert "batch_size=512" not in written


CHECKPOINTS = """
if args.gradient_checkpointing and getattr(model, "supports_gradient_checkpointing", False):
    model.gradient_checkpointing_enable()
"""


@pytest.mark.parametrize(("said", "later", "expected"), [("False", "False", False), ("True", "True", True)])
def test_a_switch_that_the_arguments_decide_is_not_taken_for_one_that_runs(read, said, later, expected):
    """A condition that only running the program tells stands behind them, and another gives them what they are."""
    made = ("args=SFTConfig(", "args=args,\n    other=dict(")
    before = f"""args = SFTConfig(output_dir="out", max_length=512, gradient_checkpointing={said})
model = load()
if model.is_odd():
    args.gradient_checkpointing = {later}
{CHECKPOINTS}"""
    text = BY_NAME.replace("trainer = SFTTrainer", f"{before}trainer = SFTTrainer")
    assert read(text, made).options["activation_checkpointing"] is expected


def test_that_a_gpu_of_another_kind_is_left_off_changes_nothing(read):
    """``use_mps_device`` and ``no_cuda`` of earlier releases of transformers."""
    switch = ("max_length=512,", 'max_length=512, use_mps_device=device == "mps", no_cuda=False,')
    device = ("from trl", 'import torch\ndevice = "cuda" if torch.cuda.is_available() else "mps"\nfrom trl')
    assert read(BY_NAME, switch, device).options == read(BY_NAME).options
    with pytest.raises(InputError, match="no_cuda is true; a run without CUDA is not planned"):
        read(BY_NAME, ("max_length=512,", "max_length=512, no_cuda=True,"))


def test_the_older_switch_of_flash_attention_is_taken_for_its_name(read):
    for said, attention in (("True", "flash_attention_2"), ("False", None)):
        switch = ("device_map", f"use_flash_attention_2={said}, device_map")
        assert read(QLORA, switch).options.get("attention") == attention


def test_attention_is_taken_under_the_name_that_configurations_have_for_it(read):
    own = ("device_map", '_attn_implementation="flash_attention_2", device_map')
    assert read(QLORA, own).options["attention"] == "flash_attention_2"


def test_a_call_of_transformers_loads_as_the_checkpoint_is(read):
    plain = (("quantization_config=bits, ", ""), (", torch_dtype=torch.bfloat16", ""))
    assert "weight_dtype" not in read(QLORA, *plain).options
    assert read(QLORA, *plain, ("device_map", "dtype=torch.float32, device_map")).options["weight_dtype"] == "float32"


def test_arguments_of_transformers_keep_their_defaults(read):
    options = read(BY_NAME, ("SFTConfig(\n", "TrainingArguments(\n"), ("        max_length=512,\n", "")).options
    assert (options["activation_checkpointing"], options["seq_len"]) == (False, 1024)
    mixed = {"precision": "bf16", "uses_autocast": False, "adapter_dtype": "float32"}
    assert options | mixed == options, "adapters are float32 as peft makes them, and nothing casts"


def test_what_is_prepared_for_training_is_float32_without_autocast_too(read):
    plain = (("SFTConfig(\n", "TrainingArguments(\n"), ("bf16=True", "bf16=False"), ("    max_length=4096,\n", ""))
    mixed = {"method": "qlora", "precision": "bf16", "uses_autocast": False, "upcasts_frozen": True}
    options = read(QLORA, *plain).options
    assert options | mixed == options
    kept = read(QLORA, *plain, ("model = prepare_model_for_kbit_training(model)\n", "")).options
    assert (kept["precision"], "uses_autocast" in kept) == ("bf16-pure", False), "TRL makes those adapters bfloat16"
    assert read(QLORA, *plain, precision=Precision.BF16).options["uses_autocast"] is True


def test_adapters_that_are_added_to_a_model_of_transformers_have_the_type_of_its_weights(read):
    added = ("model = get_peft_model(model, adapters)", "model.add_adapter(adapters)")
    plain = (
        ("SFTTrainer(model", "Trainer(model"),
        ("SFTConfig(\n", "TrainingArguments(\n"),
        ("    max_length=4096,\n", ""),
    )
    whole = ("quantization_config=bits, ", ""), ("model = prepare_model_for_kbit_training(model)\n", "")
    options = read(QLORA, added, *plain, *whole).options
    assert options | {"method": "lora", "lora_rank": 64, "adapter_dtype": "model"} == options
    assert read(QLORA, added, *plain).options["adapter_dtype"] == "float32", "beside 4-bit weights peft leaves float32"
    pure = read(QLORA, added, *plain, *whole, ("bf16=True", "bf16=False")).options
    assert (pure["precision"], "uses_autocast" in pure) == ("bf16-pure", False)
    with pytest.raises(InputError, match=r"add_adapter is true; before a trainer of TRL's: .* get_peft_model"):
        read(QLORA, added)


def test_preferences(read):
    text = BY_NAME.replace("SFT", "DPO")
    assert read(text).options["task"] == "dpo"


def test_transformers_own_trainer(read):
    config = read(
        QLORA,
        ("SFTTrainer(", "Trainer("),
        ("SFTConfig(\n", "TrainingArguments(\n"),
        ("    max_length=4096,\n", ""),
    )
    options = config.options
    assert (options["loss"], options["adapter_dtype"], "seq_len" in options) == ("model", "float32", False)
    assert (options["method"], options["upcasts_frozen"], options["lora_rank"]) == ("qlora", True, 64)
    assert options["activation_checkpointing"] is True  # of prepare_model_for_kbit_training
    assert any("--seq-len" in note for note in config.notes)


def test_what_switches_checkpoints_on_beside_the_arguments(read):
    plain = (
        ("SFTTrainer(", "Trainer("),
        ("SFTConfig(\n", "TrainingArguments(\n"),
        ("    max_length=4096,\n", ""),
        ("training(model)", "training(model, use_gradient_checkpointing=False)"),
    )
    assert read(QLORA, *plain).options["activation_checkpointing"] is False
    enabled = ("model = get_peft", "model.gradient_checkpointing_enable()\nmodel = get_peft")
    assert read(QLORA, *plain, enabled).options["activation_checkpointing"] is True
    by_place = (*plain[:-1], ("training(model)", "training(model, False)"))
    assert read(QLORA, *by_place).options["activation_checkpointing"] is False


def test_checkpoints_that_a_call_switches_on_stay_on_whatever_the_arguments_say(read):
    off = ("SFTConfig(\n", "SFTConfig(\n    gradient_checkpointing=False,\n")
    found = read(QLORA, off)
    assert found.options["activation_checkpointing"] is True
    assert any("prepare_model_for_kbit_training switches checkpoints on" in note for note in found.notes)
    neither = read(QLORA, off, ("training(model)", "training(model, use_gradient_checkpointing=False)"))
    assert neither.options["activation_checkpointing"] is False
    assert not any("switches checkpoints on" in note for note in neither.notes)


def test_a_trainer_whose_model_no_call_loads_is_sent_to_rehearse(read):
    with pytest.raises(InputError, match="vlmplan rehearse"):
        read("from transformers import Trainer\nTrainer(model=Net(), args=arguments).train()")


@pytest.mark.parametrize(
    ("text", "change", "words"),
    [
        (BY_NAME, ("model=model_id", "model=load()"), "load() of SFTTrainer is only running the program tells"),
        (BY_NAME, ("peft_config=LoraConfig(", "peft_config=VeraConfig("), "one call of LoraConfig"),
        (BY_NAME, ("r=16", "r=16, layers_to_transform=[0]"), "layers_to_transform"),
        (BY_NAME, ('"use_cache": False', '"max_memory": {}'), "max_memory may change what is loaded"),
        (QLORA, ("load_in_4bit=True", "load_in_8bit=True, load_in_4bit=True"), "load_in_4bit is set too"),
        (QLORA, ("BitsAndBytesConfig(\n", "GPTQConfig(\n"), "BitsAndBytesConfig is read"),
        (QLORA, ("r=64", "r=args.rank"), "lora_r is args.rank, which only running the program tells"),
        (QLORA, ('bias="none"', 'bias="all"'), "bias"),
    ],
)
def test_what_is_not_read_is_told(read, text: str, change: tuple[str, str], words: str):
    with pytest.raises(InputError) as caught:
        read(text, change)
    assert words in str(caught.value)


@pytest.mark.sweep
def test_a_program_that_does_not_fit_is_changed_so_that_it_does(tmp_path):
    before, after = tmp_path / "train.py", tmp_path / "fits.py"
    before.write_text(QLORA, encoding="utf-8")
    result = CliRunner().invoke(check, [str(before), "--gpu", "rtx-3060-12gb:1", "--fix", "--write", str(after)])
    assert result.exit_code == 0, result.output
    kept, lines = before.read_text().splitlines(), after.read_text().splitlines()
    assert all(line.strip().partition("=")[0] in result.stdout for line in lines if line not in kept)
    again = CliRunner().invoke(check, [str(after), "--gpu", "rtx-3060-12gb:1"])
    assert "\nfits: " in again.stdout
