"""Ministral (2024): a Mistral that builds both masks, whichever kinds of layers it has.

Source: transformers 5.23 ``models/ministral/modeling_ministral.py``.
"""

from dataclasses import replace

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import Decoder, decoder_shape, windows_by_type, with_head
from vlmplan.architecture.model import CausalLM


def decoder(config: Config) -> Decoder:
    """The decoder alone, as composite models hold it (``families.text``)."""
    window = config.optional_integer("sliding_window")
    windows = windows_by_type(config, lambda _index: True)
    model = Decoder(replace(decoder_shape(config), qkv_bias=False, output_bias=False, windows=windows))
    model.masked_windows = (None, window)
    return model


def build(config: Config) -> CausalLM:
    """``MinistralForCausalLM``."""
    return with_head(decoder(config), config)
