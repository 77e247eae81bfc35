"""A folder without config.json is told for what it is."""

import json
from pathlib import Path

import pytest

from cli_calls import refusal, says

ADAPTER = json.dumps({"base_model_name_or_path": "meta-llama/Llama-3.1-8B", "peft_type": "LORA"})


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (
            "adapter_config.json",
            ADAPTER,
            "is an adapter, with no config.json; give its base model, meta-llama/Llama-3.1-8B",
        ),
        ("adapter_config.json", "{", "is an adapter, with no config.json; give its base model"),
        ("model_index.json", "{}", "is a pipeline of diffusers"),
        ("model-Q4_K_M.gguf", "", "model-Q4_K_M.gguf: weights in GGUF are not trained"),
        ("checkpoint-20/config.json", "{}", "checkpoint-20"),
        ("tokenizer.json", "{}", "has no config.json; a Hugging Face config.json or the folder with it is needed"),
    ],
)
def test_a_folder_that_is_no_model_says_what_it_is(file: str, text: str, words: str, tmp_path: Path):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    says(refusal("estimate", "--model", str(tmp_path), "--gpu", "h100-sxm"), words)
