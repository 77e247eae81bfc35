"""MiniCPM 3: latent attention in a Granite, whose last hidden states are scaled in place of its logits.

Source: transformers 5.23 ``models/minicpm3/modeling_minicpm3.py``. Embeddings are scaled by a tensor that is no
parameter.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.deepseek_v3 import latent_decoder_shape
from vlmplan.architecture.families.gemma import ScaledEmbedding
from vlmplan.architecture.families.granite import GraniteLayer
from vlmplan.architecture.families.latent_attention import LatentAttention, latent_shape
from vlmplan.architecture.families.llama import Decoder
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Stack
from vlmplan.architecture.tensor import Tensor


class MiniCPM3(CausalLM):
    """``MiniCPM3ForCausalLM``."""

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        hidden = super().last_hidden_state(batch, ids, pixels, backend)
        ids.tape.locals.append(hidden.detached())  # among the decoder's outputs
        return ops.scale(hidden)


def decoder(config: Config) -> Decoder:
    latent = latent_shape(config)
    shape = latent_decoder_shape(config, latent)
    layer = GraniteLayer(shape, attention=LatentAttention(latent))
    model = Decoder(shape, Stack.of(layer, shape.num_layers, label="layers"), rotary_width=latent.rotary_width)
    model.embed_tokens = ScaledEmbedding(shape.vocab_size, shape.hidden_size)
    return model


def causal_lm(decoder: Decoder, config: Config) -> MiniCPM3:
    causal = MiniCPM3(decoder, config)
    causal.attention_linears = latent_shape(config).linears
    return causal
