"""Tiny models with random weights, their tokenizers and processors: for trying vlmplan out without a download.

A folder as ``write_tiny_model`` leaves it is what ``from_pretrained`` takes, offline: configuration, weights, a
byte-level tokenizer trained on a few sentences, a chat template, and for a vision model the image processor.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

Family = Literal["qwen2_vl", "llama"]
FAMILIES: tuple[Family, ...] = ("qwen2_vl", "llama")
HEAD_DIM = 16
VISION_HEAD_DIM = 16
NUM_VISION_HEADS = 2
PATCH_SIZE = 14
MERGE_SIZE = 2
MAX_POSITIONS = 4096
MAX_LEARNED_TOKENS = 512
"""Bytes, merges and special tokens; a larger vocabulary has rows that no text uses, as published models have."""

SPECIAL_TOKENS: Mapping[Family, tuple[str, ...]] = {
    "qwen2_vl": (
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
        "<|image_pad|>",
        "<|video_pad|>",
    ),
    "llama": (
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|finetune_right_pad_id|>",
    ),
}
"""The published models' names, from id 0."""

CORPUS = (
    "You are a helpful assistant.",
    "system user assistant",
    "What does the image show? The image shows a red square.",
    "Which colour is it? It is green, blue, yellow, black or white.",
    "How many circles are there? There are two circles and one triangle on the left, three on the right.",
    "What is written on the sign? The sign says stop. Describe the picture in one sentence, please.",
    "Two and two are four. The answer is forty-two. Thank you, that is all.",
)

QWEN2_VL_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen2-VL's own without its numbering of pictures."""

LLAMA_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% else %}{% for content in message['content'] %}"
    "{% if 'text' in content %}{{ content['text'] | trim }}{% endif %}"
    "{% endfor %}{% endif %}<|eot_id|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
"""Llama 3's without tools."""


def write_tiny_model(
    folder: Path,
    family: Family,
    *,
    seed: int = 0,
    hidden_size: int = 64,
    num_layers: int = 2,
    vocab_size: int = MAX_LEARNED_TOKENS,
    ties_weights: bool = True,
) -> Path:
    """Write a model of ``family`` with random bfloat16 weights into ``folder``, which is made; returns ``folder``.

    ``hidden_size`` is a multiple of 32, ``num_layers`` that of decoder and vision tower each. ``vocab_size`` is that
    of the weights, at least 300; the tokenizer knows at most 512 tokens. Equal arguments write equal files.
    """
    assert hidden_size % (2 * HEAD_DIM) == 0, hidden_size
    assert vocab_size >= 300, vocab_size
    folder.mkdir(parents=True, exist_ok=True)
    make = qwen2_vl_config if family == "qwen2_vl" else llama_config
    config = make(hidden_size=hidden_size, num_layers=num_layers, vocab_size=vocab_size, ties_weights=ties_weights)
    _write_weights(folder, config, seed=seed)
    tokenizer = tiny_tokenizer(family, num_tokens=min(vocab_size, MAX_LEARNED_TOKENS))
    tokenizer.save_pretrained(folder)
    if family == "qwen2_vl":
        _write_processor(folder)
    return folder


def llama_config(*, hidden_size: int, num_layers: int, vocab_size: int, ties_weights: bool) -> dict[str, Any]:
    """config.json of a Llama with grouped heads."""
    tokens = SPECIAL_TOKENS["llama"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "bos_token_id": tokens.index("<|begin_of_text|>"),
        "eos_token_id": tokens.index("<|eot_id|>"),
        "pad_token_id": tokens.index("<|finetune_right_pad_id|>"),
        **_decoder_values(hidden_size, num_layers, vocab_size),
        "rope_theta": 500000.0,
        "tie_word_embeddings": ties_weights,
        "torch_dtype": "bfloat16",
    }


def qwen2_vl_config(*, hidden_size: int, num_layers: int, vocab_size: int, ties_weights: bool) -> dict[str, Any]:
    """config.json of a Qwen2-VL, flat as the published ones are."""
    tokens = SPECIAL_TOKENS["qwen2_vl"]
    third = 3 * (HEAD_DIM // 2) // 8
    return {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "bos_token_id": tokens.index("<|endoftext|>"),
        "eos_token_id": tokens.index("<|im_end|>"),
        "vision_start_token_id": tokens.index("<|vision_start|>"),
        "vision_end_token_id": tokens.index("<|vision_end|>"),
        "vision_token_id": tokens.index("<|vision_pad|>"),
        "image_token_id": tokens.index("<|image_pad|>"),
        "video_token_id": tokens.index("<|video_pad|>"),
        **_decoder_values(hidden_size, num_layers, vocab_size),
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [HEAD_DIM // 2 - 2 * third, third, third]},
        "use_sliding_window": False,
        "tie_word_embeddings": ties_weights,
        "torch_dtype": "bfloat16",
        "vision_config": {
            "model_type": "qwen2_vl",
            "depth": num_layers,
            "embed_dim": NUM_VISION_HEADS * VISION_HEAD_DIM,
            "hidden_size": hidden_size,
            "mlp_ratio": 2,
            "num_heads": NUM_VISION_HEADS,
            "in_channels": 3,
            "patch_size": PATCH_SIZE,
            "spatial_merge_size": MERGE_SIZE,
            "temporal_patch_size": 2,
        },
    }


def _decoder_values(hidden_size: int, num_layers: int, vocab_size: int) -> dict[str, Any]:
    return {
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": 2 * hidden_size,
        "max_position_embeddings": MAX_POSITIONS,
        "num_attention_heads": hidden_size // HEAD_DIM,
        "num_hidden_layers": num_layers,
        "num_key_value_heads": hidden_size // HEAD_DIM // 2,
        "rms_norm_eps": 1e-06,
        "use_cache": True,
        "vocab_size": vocab_size,
    }


def _write_weights(folder: Path, config: Mapping[str, Any], *, seed: int) -> None:
    """config.json as given (transformers would write it in its own words) and model.safetensors."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.utils import logging

    path = folder / "config.json"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    settings = AutoConfig.from_pretrained(folder, local_files_only=True)
    auto_class = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto_class.from_config(settings, dtype=torch.float32)
    shows_progress = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    model.to(torch.bfloat16).save_pretrained(folder)
    if shows_progress:
        logging.enable_progress_bar()
    (folder / "generation_config.json").unlink(missing_ok=True)
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def tiny_tokenizer(family: Family, *, num_tokens: int = MAX_LEARNED_TOKENS) -> Any:
    """A byte-level tokenizer with the family's special tokens and chat template; any text can be encoded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = SPECIAL_TOKENS[family]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    is_llama = family == "llama"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|begin_of_text|>" if is_llama else None,
        eos_token="<|eot_id|>" if is_llama else "<|im_end|>",
        pad_token="<|finetune_right_pad_id|>" if is_llama else "<|endoftext|>",
        additional_special_tokens=list(special),
        model_max_length=MAX_POSITIONS,
        chat_template=LLAMA_TEMPLATE if is_llama else QWEN2_VL_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _write_processor(folder: Path) -> None:
    """preprocessor_config.json with the published keys and the template where processors look for it."""
    values = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2VLProcessor",
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "min_pixels": (MERGE_SIZE * PATCH_SIZE) ** 2,
        "max_pixels": (16 * MERGE_SIZE * PATCH_SIZE) ** 2,
        "patch_size": PATCH_SIZE,
        "temporal_patch_size": 2,
        "merge_size": MERGE_SIZE,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(QWEN2_VL_TEMPLATE, encoding="utf-8")
