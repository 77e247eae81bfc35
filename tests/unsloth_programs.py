"""Programs of Unsloth as their authors write them, for tests: a script, and a notebook's cells."""

import json

SCRIPT = """\
from unsloth import FastLanguageModel
from trl import SFTTrainer, SFTConfig
from unsloth.chat_templates import train_on_responses_only

max_seq_length = 2048  # größer geht auch
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit",
    max_seq_length = max_seq_length,
    dtype = None,
    load_in_4bit = True,
    # token = "hf_...",
)
model = FastLanguageModel.get_peft_model(
    model,
    r = 16, # a rank
    target_modules = ["q_proj", "k_proj", "v_proj", "o_proj",
                      "gate_proj", "up_proj", "down_proj",],
    lora_alpha = 16,
    lora_dropout = 0,
    bias = "none",
    use_gradient_checkpointing = "unsloth",
    random_state = 3407,
    use_rslora = False,
    loftq_config = None,
)
trainer = SFTTrainer(
    model = model,
    tokenizer = tokenizer,
    train_dataset = dataset,
    packing = False,
    args = SFTConfig(
        per_device_train_batch_size = 2,
        gradient_accumulation_steps = 4,
        max_steps = 60,
        learning_rate = 2e-4,
        optim = "adamw_8bit",
        output_dir = "outputs",
        report_to = "none",
    ),
)
trainer = train_on_responses_only(trainer, instruction_part = "user", response_part = "assistant")
trainer.train()
if False:
    model, tokenizer = FastLanguageModel.from_pretrained(model_name = "lora_model", load_in_4bit = False)
"""
INSTALLS = """\
%%capture
import os
if "COLAB_" not in "".join(os.environ.keys()):
    !pip install unsloth
else:
    !pip install --no-deps bitsandbytes \\
        accelerate
    x = !nvidia-smi
"""
LOADS = """\
from unsloth import FastVisionModel
model, tokenizer = FastVisionModel.from_pretrained(
    "unsloth/Qwen2-VL-2B-Instruct",
    load_in_4bit = True,
    use_gradient_checkpointing = "unsloth",
)
"""
ADAPTS = """\
model = FastVisionModel.get_peft_model(
    model,
    finetune_vision_layers     = True,
    finetune_language_layers   = True,
    finetune_attention_modules = True,
    finetune_mlp_modules       = True,
    r = 16,
)"""
TRAINS = """\
from unsloth.trainer import UnslothVisionDataCollator
from trl import SFTTrainer, SFTConfig
trainer = SFTTrainer(
    model = model,
    data_collator = UnslothVisionDataCollator(model, tokenizer),
    args = SFTConfig(per_device_train_batch_size = 2, max_length = 2048, remove_unused_columns = False),
)"""


def notebook(*cells: str, indent: int | None = 1) -> str:
    """A notebook as Jupyter writes it, with a text before its cells of code."""
    text = {"cell_type": "markdown", "metadata": {}, "source": ["# Übung"]}
    code = [
        {
            "cell_type": "code",
            "execution_count": None,
            "metadata": {},
            "outputs": [],
            "source": cell.splitlines(keepends=True),
        }
        for cell in cells
    ]
    document = {"cells": [text, *code], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(document, indent=indent, ensure_ascii=False) + "\n"


NOTEBOOK = notebook(INSTALLS, LOADS, ADAPTS, TRAINS, "trainer.train()")
