"""Granite and HyperCLOVA X: a Llama that scales embeddings, what attention and MLP add to the residual, and logits.

Source: transformers 5.23 ``models/granite/modeling_granite.py`` and ``models/hyperclovax/modeling_hyperclovax.py``,
which may norm what attention and MLP return, too.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.causal_lm import ScaledCausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import (
    Decoder,
    DecoderLayer,
    DecoderShape,
    RotaryContext,
    decoder_shape,
)
from vlmplan.architecture.modules import RMSNorm, Stack
from vlmplan.architecture.tensor import Tensor


class GraniteLayer(DecoderLayer):
    """``GraniteDecoderLayer``."""

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, context)
        x = self.attended(x)
        x = ops.add(residual, ops.scale(x))
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        x = self.fed_forward(x)
        return ops.add(residual, ops.scale(x))

    def attended(self, x: Tensor) -> Tensor:
        """What becomes of the result of attention before it is scaled."""
        return x

    def fed_forward(self, x: Tensor) -> Tensor:
        """The MLP's result as it is added to the residual stream."""
        return x


class PostNormLayer(GraniteLayer):
    """``HyperCLOVAXDecoderLayer``; without ``is_normed`` its second norms are modules that pass on what they get."""

    def __init__(self, shape: DecoderShape, *, is_normed: bool) -> None:
        super().__init__(shape)
        self.is_normed = is_normed
        if is_normed:
            self.post_norm1 = RMSNorm(shape.hidden_size)
            self.post_norm2 = RMSNorm(shape.hidden_size)

    def attended(self, x: Tensor) -> Tensor:
        return self.post_norm1(x) if self.is_normed else ops.called(_same, x)

    def fed_forward(self, x: Tensor) -> Tensor:
        return self.post_norm2(x) if self.is_normed else ops.called(_same, x)


def _same(x: Tensor) -> Tensor:
    return x


class GraniteDecoder(Decoder):
    """``GraniteModel``: embeddings are scaled."""

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.scaled(self.embed_tokens(ids))

    def scaled(self, embeddings: Tensor) -> Tensor:
        """As the first layer gets them."""
        return ops.scale(embeddings)


def decoder(config: Config) -> GraniteDecoder:
    shape = decoder_shape(config)
    layer: GraniteLayer = GraniteLayer(shape)
    if config.model_type == "hyperclovax":
        layer = PostNormLayer(shape, is_normed=config.boolean("use_post_norm"))
    return GraniteDecoder(shape, Stack.of(layer, shape.num_layers, label="layers"))


causal_lm = ScaledCausalLM
