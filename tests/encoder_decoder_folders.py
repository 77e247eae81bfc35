"""Small models with an encoder and a decoder, their tokenizer beside them, in folders."""

import copy
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

BEGIN, PAD, END = 0, 1, 2
SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "bos_token_id": BEGIN,
    "pad_token_id": PAD,
    "eos_token_id": END,
    "forced_eos_token_id": END,
    "decoder_start_token_id": END,
    "use_cache": False,
}


STACK: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "bos_token_id": BEGIN,
    "pad_token_id": PAD,
    "eos_token_id": END,
    "dropout_rate": 0.0,
}
"""A stack of T5Gemma's, which have a configuration each."""
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
OF_TYPES: dict[str, dict[str, Any]] = {
    "led": {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64, "attention_window": 8},
    "prophetnet": {
        **{name: SIZES[name] for name in SIZES if name not in ("encoder_layers", "decoder_layers", "d_model")},
        "hidden_size": 32,
        "num_encoder_layers": 2,
        "num_decoder_layers": 1,
        "num_encoder_attention_heads": 2,
        "num_decoder_attention_heads": 4,
    },
    "pegasus_x": {"block_size": 8, "num_global_tokens": 4},
    "longt5": {"d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "local_radius": 7},
    "t5gemma": {"encoder": STACK, "decoder": STACK, "vocab_size": 320},
    "t5gemma2": {
        "encoder": {
            "text_config": STACK,
            "vision_config": {**TOWER, "image_size": 28, "patch_size": 14},
            "mm_tokens_per_image": 4,
            **dict(zip(("boi_token_index", "eoi_token_index", "image_token_index"), (310, 311, 312), strict=True)),
        },
        "decoder": STACK,
        "eoi_token_index": 311,
        "image_token_index": 312,
    },
}
"""What types need besides, or in place of ``SIZES``."""


def small_model(kind: str, **changes: Any) -> Any:
    """A model of that type with weights that are drawn."""
    torch.manual_seed(0)
    sizes = {} if kind.startswith(("t5gemma", "prophetnet")) else SIZES
    config = AutoConfig.for_model(kind, **copy.deepcopy(sizes | changes | OF_TYPES.get(kind, {})))
    return AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32)


def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, with a token at the beginning and one at the end, as BART's."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learn = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["Sort these colours: red, green, blue, white"], learn)
    made.post_processor = processors.RobertaProcessing(("</s>", END), ("<s>", BEGIN))
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def write_model(folder: Path, kind: str, **changes: Any) -> Path:
    """What ``from_pretrained`` loads."""
    small_model(kind, **changes).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
