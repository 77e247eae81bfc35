"""CWM: a Llama of which every fourth layer, the first one of them, sees everything and the others have a window.

Source: transformers 5.23 ``models/cwm/modeling_cwm.py`` and ``configuration_cwm.py``.
"""

from dataclasses import replace

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import Decoder, decoder_shape, windows_by_type

PERIOD = 4
"""Every how many layers one has no window where the file does not say (``CwmConfig.__post_init__``)."""


def decoder(config: Config) -> Decoder:
    windows = windows_by_type(config, lambda index: index % PERIOD != 0)
    shape = replace(decoder_shape(config), qkv_bias=False, output_bias=False, windows=windows)
    return Decoder(shape, masked_windows=(None, config.optional_integer("sliding_window")))
