"""InternLM 3: a Llama under another name.

Source: transformers 5.23 ``models/internlm3/configuration_internlm3.py``, whose models are Llama's classes.
"""

from vlmplan.architecture.config import Config
from vlmplan.architecture.families import llama
from vlmplan.architecture.families.llama import Decoder
from vlmplan.errors import InputError


def decoder(config: Config) -> Decoder:
    """Raises InputError as transformers does."""
    if config.boolean("attention_bias") != config.boolean("mlp_bias"):
        raise InputError("config.json: qkv_bias and bias differ; transformers has no InternLM3 with one of them alone")
    return llama.decoder(config)
