"""A small Whisper, its tokenizer and its feature extractor, in a folder."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

CHUNK_SECONDS = 2
PLACES = 100
"""Of a sound: a hundred frames a second, halved."""
SPECIAL = (
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|zh|>", "<|de|>", "<|translate|>", "<|transcribe|>"),
    *("<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)
SIZES: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 64,
    "num_mel_bins": 16,
    "max_source_positions": PLACES,
    "max_target_positions": 64,
    "begin_suppress_tokens": None,
}


def tokenizer(**more: Any) -> Any:
    """Bytes, and the tokens that Whisper's has besides."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: place for place, token in enumerate((*alphabet, *SPECIAL))}
    made = WhisperTokenizer(vocab=vocab, merges=[], **more)
    made.add_tokens(list(SPECIAL), special_tokens=True)
    made.set_prefix_tokens()
    return made


def small_whisper(**changes: Any) -> Any:
    """A model with weights that are drawn."""
    torch.manual_seed(0)
    one = tokenizer()
    end, start = one.convert_tokens_to_ids(["<|endoftext|>", "<|startoftranscript|>"])
    ids: dict[str, Any] = {
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": start,
    }
    values: dict[str, Any] = SIZES | ids | changes
    return WhisperForConditionalGeneration(WhisperConfig(vocab_size=len(one), **values))


def write_whisper(folder: Path) -> Path:
    """What ``from_pretrained`` loads, as ``openai/whisper-small`` has its files."""
    model, one = small_whisper(), tokenizer()
    names = {f"<|{name}|>": one.convert_tokens_to_ids(f"<|{name}|>") for name in ("en", "de")}
    tasks = {name: one.convert_tokens_to_ids(f"<|{name}|>") for name in ("transcribe", "translate")}
    start = model.config.decoder_start_token_id
    model.generation_config = GenerationConfig(
        decoder_start_token_id=start,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
        is_multilingual=True,
        lang_to_id=names,
        task_to_id=tasks,
        no_timestamps_token_id=one.convert_tokens_to_ids("<|notimestamps|>"),
        max_length=32,
    )
    model.save_pretrained(folder)
    one.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=SIZES["num_mel_bins"], chunk_length=CHUNK_SECONDS).save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"processor_class": "WhisperProcessor"}))
    return folder
