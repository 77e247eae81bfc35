"""Arcee (AFM): a Llama with Jais 2's MLP, which has no gate.

Source: transformers 5.23 ``models/arcee/modeling_arcee.py``.
"""

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.jais2 import Jais2Mlp
from vlmplan.architecture.families.llama import Decoder, DecoderLayer, decoder_shape
from vlmplan.architecture.modules import Stack


def decoder(config: Config) -> Decoder:
    shape = decoder_shape(config)
    layer = DecoderLayer(shape, mlp=Jais2Mlp(shape))
    return Decoder(shape, Stack.of(layer, shape.num_layers, label="layers"))
