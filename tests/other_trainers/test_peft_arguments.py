"""What peft's and bitsandbytes' configurations refuse is refused of a program, and what they take otherwise is told."""

import dataclasses
import json
from pathlib import Path

import pytest

from trl_readings import read
from vlmplan.architecture.families import build_model
from vlmplan.architecture.parameter_adapters import absent_targets
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers.adapters import PACKED_TYPES, TASK_TYPES
from vlmplan.other_trainers.loaded_adapters import OTHERS, SIZES
from vlmplan.other_trainers.programs.trl_runs import OF_LORA
from vlmplan.other_trainers.trl.program import WITHOUT_EFFECT

PROGRAM = """
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained(
    "Qwen/Qwen2.5-0.5B", dtype="bfloat16", quantization_config=BitsAndBytesConfig(BITS)
)
trainer = SFTTrainer(
    model=model, args=SFTConfig(max_length=64, bf16=True), train_dataset=data, peft_config=LoraConfig(LORA)
)
trainer.train()
"""
LOADED = """
from peft import PeftModel
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="bfloat16")
model = PeftModel.from_pretrained(model, "adapter", is_trainable=True)
trainer = SFTTrainer(model=model, args=SFTConfig(max_length=64, bf16=True), train_dataset=data)
trainer.train()
"""


def refusal(tmp_path: Path, *, lora: str = "", bits: str = "load_in_4bit=True") -> str:
    lora = lora if "target_modules" in lora else f"target_modules=['q_proj', 'v_proj'], {lora}"
    try:
        read(tmp_path, "train.py", PROGRAM, ("BITS", bits), ("LORA", lora))
    except InputError as error:
        return str(error)
    return ""


def test_every_field_of_pefts_configuration_is_read_refused_or_without_effect():
    peft = pytest.importorskip("peft")
    fields = {field.name for field in dataclasses.fields(peft.LoraConfig) if field.init}
    read_ones = {"r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "bias", "init_lora_weights", *SIZES}
    known = {*read_ones, *OF_LORA, *OTHERS, *WITHOUT_EFFECT, "runtime_config", "inference_mode", "ensure_weight_tying"}
    assert fields - known == {"auto_mapping", "peft_version"}
    assert [one.value for one in peft.TaskType] == list(TASK_TYPES)


@pytest.mark.parametrize("storage", PACKED_TYPES)
def test_types_of_packed_weights_are_those_that_transformers_takes(tmp_path: Path, storage: str):
    transformers = pytest.importorskip("transformers")
    transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_storage=storage)
    assert not refusal(tmp_path, bits=f'load_in_4bit=True, bnb_4bit_quant_storage="{storage}"')


@pytest.mark.parametrize(
    ("lora", "told"),
    [
        ("target_modules=[]", "adapts nothing"),
        ("target_modules=['all-linear', 'q_proj']", "all-linear is taken alone"),
        ("target_modules=['all-linear']", "all-linear is taken alone"),
        ("task_type='CAUSAL'", "one of SEQ_CLS, "),
        ("lora_dropout=1.5", "a number"),
        ("layers_to_transform=0", "layers_to_transform is 0; vlmplan has no memory model of it"),
        ("rank_pattern={'q_proj': 4}", "rank_pattern is "),
        ("layer_replication=[[0, 8], [4, 12]]", "layer_replication is "),
        ("trainable_token_indices=[1]", "trainable_token_indices is "),
        ("kasa_config={}", "kasa_config is "),
        ("inference_mode=True", "nothing is trained"),
    ],
)
def test_what_changes_adapters_otherwise_is_refused_by_its_key(tmp_path: Path, lora: str, told: str):
    assert told in refusal(tmp_path, lora=lora)


@pytest.mark.parametrize(
    "lora",
    ["layers_to_transform=None", "rank_pattern={}", "fan_in_fan_out=False", "task_type='CAUSAL_LM'"],
)
def test_what_leaves_adapters_as_they_are_is_taken(tmp_path: Path, lora: str):
    assert not refusal(tmp_path, lora=lora)


@pytest.mark.parametrize(
    ("bits", "told"),
    [
        ("load_in_4bit=True, load_in_8bit=True", "one of the two is needed"),
        ("load_in_4bit=True, bnb_4bit_compute_dtype='bf16'", "one of float32, bfloat16, float16, float64 is needed"),
        ("load_in_4bit=True, bnb_4bit_quant_storage='int4'", "one of uint8, "),
        ("load_in_4bit=True, bnb_4bit_quant_type='int4'", "bnb_4bit_quant_type is "),
        ("load_in_8bit=True, llm_int8_skip_modules=['lm_head']", "llm_int8_skip_modules is "),
        ("load_in_8bit=True, llm_int8_has_fp16_weight=True", "llm_int8_has_fp16_weight is "),
    ],
)
def test_packing_that_is_refused_or_not_planned_is_told_by_its_key(tmp_path: Path, bits: str, told: str):
    assert told in refusal(tmp_path, bits=bits)


@pytest.mark.parametrize(
    "bits",
    [
        "load_in_4bit=True, bnb_4bit_quant_type='fp4', bnb_4bit_compute_dtype=torch.bfloat16",
        "load_in_8bit=True, llm_int8_threshold=6.0",
        "load_in_8bit=True, llm_int8_enable_fp32_cpu_offload=False",
    ],
)
def test_packing_that_takes_the_same_bytes_is_planned(tmp_path: Path, bits: str):
    assert not refusal(tmp_path, bits=bits)


@pytest.mark.parametrize(
    ("key", "value"),
    [("layers_to_transform", 0), ("use_qalora", True), ("kasa_config", {})],
)
def test_an_adapter_of_another_shape_is_refused_where_its_file_says_so(tmp_path: Path, key: str, value: object):
    (tmp_path / "adapter").mkdir()
    file = tmp_path / "adapter" / "adapter_config.json"
    saved = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"], "loftq_config": {}}
    file.write_text(json.dumps({**saved, **dict.fromkeys(OTHERS), "rank_pattern": {}}), encoding="utf-8")
    assert read(tmp_path, "train.py", LOADED).options["lora_rank"] == 8
    file.write_text(json.dumps({**saved, key: value}), encoding="utf-8")
    with pytest.raises(InputError, match=f"{key}: vlmplan has no memory model of it"):
        read(tmp_path, "train.py", LOADED)


def test_the_type_in_which_trl_packs_weights_is_named(tmp_path: Path):
    text = "model_name_or_path: Qwen/Qwen2.5-0.5B\nuse_peft: true\nload_in_4bit: true\nmax_length: 64\ndtype: auto\n"
    with pytest.raises(InputError, match='dtype is "auto"; TRL computes with 4-bit weights in it; one of float32, '):
        read(tmp_path, "train.yaml", text)
    read(tmp_path, "train.yaml", text.replace("auto", "bfloat16"))


@pytest.mark.parametrize(
    ("bits", "is_wide"),
    [
        ("load_in_4bit=True", True),
        ("load_in_4bit=True, bnb_4bit_compute_dtype='float32'", True),
        ("load_in_4bit=True, bnb_4bit_compute_dtype='bfloat16'", False),
        ("load_in_4bit=True, bnb_4bit_compute_dtype=chosen()", False),
        ("load_in_8bit=True", False),
    ],
)
def test_4_bit_layers_that_compute_in_float32_are_told_as_not_planned(tmp_path: Path, bits: str, is_wide: bool):
    found = read(tmp_path, "train.py", PROGRAM, ("BITS", bits), ("LORA", "r=8"))
    assert any("bnb_4bit_compute_dtype is float32" in note for note in found.notes) is is_wide


def test_names_that_mean_no_layer_are_passed_over_beside_one_that_does_and_told(tmp_path: Path):
    """So does peft (``unmatched_modules`` of ``tuners/tuners_utils.py``), which fails where none means any."""
    lora = ("LORA", "target_modules=['q_proj', 'c_attn', 'gate_proj']")
    config = read(tmp_path, "train.py", PROGRAM, ("BITS", "load_in_4bit=True"), lora)
    assert config.options["lora_targets"] == "q_proj,gate_proj"
    assert any("no layer of this model is called c_attn" in note for note in config.notes)
    alone = read(
        tmp_path, "train.py", PROGRAM, ("BITS", "load_in_4bit=True"), ("LORA", "target_modules=['c_attn', 'nope']")
    )
    assert alone.options["lora_targets"] == "c_attn,nope"  # which is refused by its names


@pytest.mark.parametrize(
    "targets", ["q_proj,gate_proj,up_proj,down_proj", "q_proj,experts.down_proj", "layers.3.q_proj,o_proj"]
)
def test_names_of_former_layers_of_experts_and_of_one_layer_are_not_passed_over(targets: str):
    assert absent_targets(build_model(find_model("qwen3-30b-a3b").config), targets) == ()
