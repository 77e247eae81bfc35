"""What the scripts here share: options, a model that trains as they say, lines of numbers, lines with images."""

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    BitsAndBytesConfig,
)

NUM_TOKENS = 128


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="llama")
    parser.add_argument("--method", choices=("full", "lora", "qlora"), default="full")
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--save", action="store_true")
    return parser


def sees(given: argparse.Namespace) -> bool:
    """By the folder's own name: that of a temporary folder around it may have these letters too."""
    return "vl" in Path(given.model).name


def make_model(given: argparse.Namespace) -> Any:
    kind = AutoModelForImageTextToText if sees(given) else AutoModelForCausalLM
    four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    more = {"quantization_config": four_bits} if given.method == "qlora" else {}
    model = kind.from_pretrained(given.model, dtype=torch.float32, **more)
    model.config.use_cache = False
    if given.method != "full":
        import peft

        if given.method == "qlora":
            model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=given.checkpointing)
        model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules="all-linear"))
    if given.checkpointing:
        model.enable_input_require_grads()
    return model


class Lines(torch.utils.data.Dataset):
    def __init__(self, count: int, length: int = NUM_TOKENS) -> None:
        self.count, self.length = count, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(self.length) % 90 + index % 7
        return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}


class Pictures(torch.utils.data.Dataset):
    """Each with a question and an answer."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        image = Image.new("RGB", (112, 112 + 28 * (index % 2)), (index, 2 * index, 0))
        question = [{"type": "image", "image": image}, {"type": "text", "text": "Which colour is it?"}]
        return [{"role": "user", "content": question}]


class Collator:
    """Pictures and the words around them as a processor makes them; processors themselves need torchvision."""

    def __init__(self, model: str) -> None:
        self.images = AutoImageProcessor.from_pretrained(model)
        self.words = AutoTokenizer.from_pretrained(model, padding_side="right")

    def __call__(self, samples: list[Any]) -> dict[str, torch.Tensor]:
        pictures = [sample[0]["content"][0]["image"] for sample in samples]
        seen = dict(self.images(pictures, return_tensors="pt"))
        texts = []
        for sample, grid in zip(samples, seen["image_grid_thw"].tolist(), strict=True):
            text = self.words.apply_chat_template(sample, tokenize=False)
            count = math.prod(grid) // self.images.merge_size**2
            texts.append(text.replace("<|image_pad|>", count * "<|image_pad|>"))
        batch = dict(self.words(texts, padding=True, return_tensors="pt"))
        kinds = (batch["input_ids"] == self.words.convert_tokens_to_ids("<|image_pad|>")).long()
        return batch | seen | {"mm_token_type_ids": kinds, "labels": batch["input_ids"].clone()}
