"""The vision tower of SigLIP: learned positions, no class token, a norm behind the layers, perhaps a pooling head.

Source: transformers 5.23 ``models/siglip/modeling_siglip.py``, ``SiglipVisionModel``. The layers are CLIP's with their
modules in another order.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.clip_vision import EncoderLayer, Mlp, VisionEmbeddings
from vlmplan.architecture.families.vision_tower import Encoder, VisionOutput
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import DerivedLinear, LayerNorm, Module
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor


class SiglipLayer(EncoderLayer):
    """``SiglipEncoderLayer``."""

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.layer_norm1 = LayerNorm(width)
        self.self_attn = self.attention(width, config.integer("num_attention_heads"))
        self.self_attn.scores = Scores(dropout=config.number("attention_dropout"))
        self.layer_norm2 = LayerNorm(width)
        self.mlp = Mlp(width, config.integer("intermediate_size"), config.text("hidden_act"))


class SingleQueryAttention(Module):
    """``nn.MultiheadAttention`` of one learned query: attention weights written out."""

    def __init__(self, width: int, num_heads: int) -> None:
        self.num_heads = num_heads
        self.in_proj_weight = Parameter(3 * width, width)
        self.in_proj_bias = Parameter(3 * width)
        self.out_proj = DerivedLinear(width, width, bias=True)  # NonDynamicallyQuantizableLinear

    def forward(self, x: Tensor, query: Tensor) -> Tensor:
        """``F.multi_head_attention_forward`` with ``need_weights``: slices of one weight project q, and k with v."""
        batch, num_keys, width = x.shape
        tape, heads = x.tape, self.num_heads
        head_dim = width // heads
        q_weight = ops.expand_weight(self.in_proj_weight, (width, width), tape)
        kv_weight = ops.expand_weight(self.in_proj_weight, (2 * width, width), tape)
        q_bias = ops.expand_weight(self.in_proj_bias, (width,), tape)
        kv_bias = ops.expand_weight(self.in_proj_bias, (2 * width,), tape)
        q = ops.linear(query, q_weight, q_bias)
        both = ops.resample(ops.linear(x, kv_weight, kv_bias), 2, num_keys, batch, width)
        k, v = (ops.part(both, batch, heads, num_keys, head_dim) for _ in range(2))
        q = ops.scale(q.view(batch, heads, 1, head_dim))
        weights = ops.softmax(ops.matmul(q, k, (batch, heads, 1, num_keys), head_dim))
        out = ops.matmul(ops.to(weights, v.dtype), v, q.shape, num_keys)
        return self.out_proj(ops.copy(out, batch, 1, width))


class PoolingHead(Module):
    """``SiglipMultiheadAttentionPoolingHead``: what composite models that use patches build but do not use."""

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.probe = Parameter(1, 1, width)
        self.attention = SingleQueryAttention(width, config.integer("num_attention_heads"))
        self.layernorm = LayerNorm(width)
        self.mlp = Mlp(width, config.integer("intermediate_size"), config.text("hidden_act"))

    def forward(self, x: Tensor) -> Tensor:
        batch, _, width = x.shape
        probe = ops.copy(ops.expand_weight(self.probe, (batch, 1, width), x.tape))
        hidden = self.attention(x, probe)
        residual = hidden
        hidden = self.layernorm(hidden)
        hidden = ops.add(residual, self.mlp(hidden))
        return ops.part(hidden, batch, width)


class SiglipVision(Module):
    """``SiglipVisionModel``."""

    keeps_channels_first = True
    """Nothing copies what the convolution returns, so the residuals have its layout, positions innermost."""

    def __init__(self, config: Config, feature_layers: Sequence[int]) -> None:
        self.embeddings = VisionEmbeddings(config, has_class_token=False)
        self.encoder = Encoder(lambda: SiglipLayer(config), config.integer("num_hidden_layers"), feature_layers)
        self.post_layernorm = LayerNorm(config.integer("hidden_size"))
        self.head = PoolingHead(config) if config.boolean("vision_use_head") else None

    @property
    def patch_numel(self) -> int:
        return self.embeddings.patch_numel

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> VisionOutput:
        with pixels.tape.section("vision.embedding"):
            hidden = self.embeddings(pixels, batch)
        last, held = self.encoder.run(hidden, lambda layer, x: layer(x, backend))
        with pixels.tape.section("vision.pooling"):
            last = self.post_layernorm(last)
            pooled = None if self.head is None else self.head(last)
        return VisionOutput(last, held, pooled)
