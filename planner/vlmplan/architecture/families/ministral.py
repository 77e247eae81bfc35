"""Ministral (2024): a Mistral that builds both masks, whichever kinds of layers it has.

Source: transformers 5.23 ``models/ministral/modeling_ministral.py``.
"""

from dataclasses import replace

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import Decoder, decoder_shape, windows_by_type


def decoder(config: Config) -> Decoder:
    windows = windows_by_type(config, lambda _index: True)
    shape = replace(decoder_shape(config), qkv_bias=False, output_bias=False, windows=windows)
    return Decoder(shape, masked_windows=(None, config.optional_integer("sliding_window")))
