"""Small models whose encoder reads an image, their processor and tokenizer beside them, in folders."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from encoder_decoder_folders import BEGIN, END, PAD, tokenizer
from vlmplan_trainer.probe import configuration, model_class, name_head

IMAGE = 290
"""The id of Florence-2's placeholder."""
TOKENS = {"bos_token_id": BEGIN, "pad_token_id": PAD, "eos_token_id": END}
BART: Mapping[str, Any] = {
    "vocab_size": 320,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 128,
    "decoder_start_token_id": END,
    "forced_eos_token_id": END,
    **TOKENS,
}
VIT = {
    "model_type": "vit",
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
DECODER = {"is_decoder": True, "add_cross_attention": True, "is_encoder_decoder": False}
BOTH = {"model_type": "vision-encoder-decoder", "decoder_start_token_id": END, "pad_token_id": PAD}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "donut": {
        **BOTH,
        "encoder": {
            "model_type": "donut-swin",
            "image_size": [64, 96],
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        "decoder": {**BART, **DECODER, "model_type": "mbart", "scale_embedding": True},
    },
    "trocr": {
        **BOTH,
        "encoder": VIT,
        "decoder": {
            **DECODER,
            "model_type": "trocr",
            "vocab_size": 320,
            "d_model": 32,
            "decoder_layers": 1,
            "decoder_attention_heads": 4,
            "decoder_ffn_dim": 64,
            "max_position_embeddings": 128,
            "cross_attention_hidden_size": 48,
            **TOKENS,
        },
    },
    "captioner": {
        **BOTH,
        "encoder": VIT,
        "decoder": {
            **DECODER,
            "model_type": "gpt2",
            "vocab_size": 320,
            "n_embd": 32,
            "n_layer": 1,
            "n_head": 4,
            "n_positions": 128,
            **TOKENS,
        },
    },
    "florence2": {
        "model_type": "florence2",
        "image_token_id": IMAGE,
        "text_config": {**BART, "model_type": "bart"},
        "vision_config": {
            "depths": [1, 1],
            "patch_size": [7, 3],
            "patch_stride": [4, 2],
            "patch_padding": [3, 1],
            "patch_prenorm": [False, True],
            "embed_dim": [16, 32],
            "num_heads": [2, 4],
            "num_groups": [2, 4],
            "window_size": 4,
            "projection_dim": 32,
        },
    },
    "pix2struct": {
        "model_type": "pix2struct",
        "decoder_start_token_id": PAD,
        "text_config": {
            "vocab_size": 320,
            "hidden_size": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": PAD,
            **TOKENS,
        },
        "vision_config": {
            "hidden_size": 32,
            "patch_embed_hidden_size": 192,
            "d_ff": 64,
            "d_kv": 8,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "seq_len": 64,
            "patch_size": 8,
        },
        "pad_token_id": PAD,
        "eos_token_id": END,
    },
    "pp_formulanet": {
        "model_type": "pp_formulanet",
        "text_config": BART,
        "vision_config": {
            "hidden_size": 32,
            "output_channels": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 64,
            "patch_size": 8,
            "window_size": 4,
            "global_attn_indexes": [1],
            "mlp_dim": 64,
            "post_conv_in_channels": 16,
            "post_conv_out_channels": 32,
            "post_conv_mid_channels": 24,
            "decoder_hidden_size": 32,
        },
    },
}
PREPROCESSORS: Mapping[str, Mapping[str, Any]] = {
    "donut": {
        "image_processor_type": "DonutImageProcessor",
        "size": {"height": 64, "width": 96},
        "processor_class": "DonutProcessor",
    },
    "trocr": {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": 32, "width": 32},
        "processor_class": "TrOCRProcessor",
    },
    "captioner": {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}},
    "florence2": {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"height": 64, "width": 64},
        "crop_size": {"height": 64, "width": 64},
        "image_seq_length": 65,
        "processor_class": "Florence2Processor",
    },
    "pix2struct": {
        "image_processor_type": "Pix2StructImageProcessor",
        "patch_size": {"height": 8, "width": 8},
        "max_patches": 32,
        "processor_class": "Pix2StructProcessor",
    },
    "pp_formulanet": {"image_processor_type": "PPFormulaNetImageProcessor", "size": {"height": 64, "width": 64}},
}


def small_image_model(kind: str) -> Any:
    """A model of that kind with weights that are drawn, and nothing left to chance while it is trained."""
    torch.manual_seed(0)
    config = configuration(json.loads(json.dumps(CONFIGS[kind])))
    model = name_head(model_class(config)._from_config(config, dtype=torch.float32))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout", "activation_dropout", "drop_prob", "drop_path"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def image_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """``tokenizer`` of the text models; Florence-2's has a placeholder for the image."""
    made = tokenizer()
    if kind != "florence2":
        return made
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>"}
    extra = {"image_token": "<image>"}
    made = PreTrainedTokenizerFast(tokenizer_object=made.backend_tokenizer, **names, extra_special_tokens=extra)
    assert made.image_token_id == IMAGE
    return made


def write_image_model(folder: Path, kind: str) -> Path:
    """What ``from_pretrained`` loads."""
    small_image_model(kind).save_pretrained(folder)
    image_tokenizer(kind).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSORS[kind]))
    return folder
