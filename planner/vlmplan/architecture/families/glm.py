"""GLM (GLM-4-9B): GLM-4's attention in a layer with norms before attention and MLP alone.

Source: transformers 5.23 ``models/glm/modeling_glm.py``.
"""

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.glm4 import Glm4Attention, glm_decoder
from vlmplan.architecture.families.llama import Decoder, DecoderLayer, DecoderShape
from vlmplan.architecture.families.phi3 import Phi3Mlp


class GlmLayer(DecoderLayer):
    """``GlmDecoderLayer``."""

    attention = Glm4Attention

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__(shape, mlp=Phi3Mlp(shape))


def decoder(config: Config) -> Decoder:
    return glm_decoder(config, GlmLayer)
