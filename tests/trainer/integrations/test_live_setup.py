"""What a live model and its TrainingArguments mean to ``vlmplan.estimate``."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, TrainingArguments

import vlmplan
from vlmplan.errors import InputError
from vlmplan_trainer.integrations.live_setup import arguments_file, configuration, model_options, num_trained

CONFIG = LlamaConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
LORA = LoraConfig(r=4, lora_alpha=12, lora_dropout=0.25, use_rslora=True, target_modules=["q_proj", "v_proj"])


@pytest.fixture
def arguments(tmp_path: Path) -> TrainingArguments:
    return TrainingArguments(
        str(tmp_path / "out"),
        use_cpu=True,
        bf16=True,
        per_device_train_batch_size=3,
        gradient_accumulation_steps=5,
        optim="adamw_torch_fused",
        gradient_checkpointing=True,
        report_to=[],
    )


def live(dtype: torch.dtype, *, adapts: bool) -> Any:
    model = AutoModelForCausalLM.from_config(CONFIG, dtype=dtype)
    return get_peft_model(model, LORA) if adapts else model


def planned(model: Any, arguments: TrainingArguments, folder: Path) -> vlmplan.EstimateResult:
    ask: Any = vlmplan.estimate
    options = model_options(model, arguments)
    return ask(configuration(model), "cpu:1", config=arguments_file(arguments, folder), seq_len=64, **options)


@pytest.mark.parametrize(("dtype", "adapts"), [(torch.float32, False), (torch.bfloat16, True)])
def test_the_plan_has_the_model_and_the_arguments_as_they_are(
    arguments: TrainingArguments, tmp_path: Path, dtype: torch.dtype, adapts: bool
):
    model = live(dtype, adapts=adapts)
    found = planned(model, arguments, tmp_path)
    recipe = found.recipe
    assert found.num_trainable_params == num_trained(model)
    assert (recipe["micro_batch"], recipe["grad_accum"], recipe["activation_checkpointing"]) == (3, 5, True)
    assert (recipe["loss"], recipe["fuses_optimizer"], recipe["precision"]) == ("model", True, "bf16")
    if adapts:
        kept = [recipe[name] for name in ("lora_rank", "lora_alpha", "lora_dropout", "use_rslora", "adapter_dtype")]
        assert kept == [4, 12, 0.25, True, "float32"]  # peft makes adapters of 16-bit models float32
    else:
        assert recipe["weight_dtype"] == "float32"


def test_keys_that_say_nothing_new_are_not_in_the_file(arguments: TrainingArguments, tmp_path: Path):
    written = json.loads(arguments_file(arguments, tmp_path).read_text())
    assert "output_dir" not in written
    assert "warmup_steps" not in written
    assert written["gradient_checkpointing"] is True


def test_adapters_that_are_none_of_lora_are_refused(arguments: TrainingArguments):
    model = live(torch.float32, adapts=True)
    model.peft_config["default"].peft_type = "IA3"
    with pytest.raises(InputError, match="adapters of type IA3"):
        model_options(model, arguments)
