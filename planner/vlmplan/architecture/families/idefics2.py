"""Idefics2: the Idefics tower at native resolution, a gated MLP and a Perceiver resampler, a Mistral decoder.

Source: transformers 5.23 ``models/idefics2/modeling_idefics2.py``.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.idefics import Idefics, IdeficsModel, padding_mask
from vlmplan.architecture.families.packed_patches import Sequential
from vlmplan.architecture.images.shape import ImageShape
from vlmplan.architecture.modules import Linear, Module, RMSNorm
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor


class ConnectorMlp(Module):
    """``Idefics2MLP``: a gated MLP from one width to another."""

    def __init__(self, in_width: int, inner: int, out_width: int, activation: str) -> None:
        self.gate_proj = Linear(in_width, inner)
        self.up_proj = Linear(in_width, inner)
        self.down_proj = Linear(inner, out_width)
        self.act_fn = ops.activation_module(activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(ops.mul(self.act_fn(self.gate_proj(x)), self.up_proj(x)))


class PerceiverAttention(Module):
    """``Idefics2PerceiverAttention``: latents look at the picture and at themselves, with grouped heads."""

    def __init__(self, config: Config, width: int) -> None:
        self.num_heads, self.head_dim = config.integer("resampler_n_heads"), config.integer("resampler_head_dim")
        self.num_kv_heads = config.integer("num_key_value_heads")
        self.q_proj = Linear(width, self.num_heads * self.head_dim)
        self.k_proj = Linear(width, self.num_kv_heads * self.head_dim)
        self.v_proj = Linear(width, self.num_kv_heads * self.head_dim)
        self.o_proj = Linear(self.num_heads * self.head_dim, width)

    def forward(self, latents: Tensor, context: Tensor, mask: Tensor | None, backend: AttentionBackend) -> Tensor:
        batch, num_latents, width = latents.shape
        num_keys = num_latents + context.shape[1]
        hidden = ops.concatenate([context, latents], (batch, num_keys, width))
        q = self.q_proj(latents).view(batch, self.num_heads, num_latents, self.head_dim)
        k = self.k_proj(hidden).view(batch, self.num_kv_heads, num_keys, self.head_dim)
        v = self.v_proj(hidden).view(batch, self.num_kv_heads, num_keys, self.head_dim)
        return self.o_proj(attend(backend, q, k, v, is_causal=False, mask=mask))


class PerceiverLayer(Module):
    """``Idefics2PerceiverLayer``: no ``GradientCheckpointingLayer``, so it keeps its activations in any case."""

    def __init__(self, config: Config, width: int) -> None:
        self.input_latents_norm = RMSNorm(width)
        self.input_context_norm = RMSNorm(width)
        self.self_attn = PerceiverAttention(config, width)
        self.post_attention_layernorm = RMSNorm(width)
        self.mlp = ConnectorMlp(width, 4 * width, width, config.text("hidden_act"))

    def forward(self, latents: Tensor, context: Tensor, mask: Tensor | None, backend: AttentionBackend) -> Tensor:
        residual = latents
        latents = self.input_latents_norm(latents)
        context = self.input_context_norm(context)
        latents = self.self_attn(latents, context, mask, backend)
        latents = ops.add(residual, latents)
        residual = latents
        latents = self.post_attention_layernorm(latents)
        latents = self.mlp(latents)
        return ops.add(residual, latents)


class PerceiverResampler(Module):
    """``Idefics2PerceiverResampler``."""

    def __init__(self, config: Config, width: int) -> None:
        self.latents = Parameter(config.integer("resampler_n_latents"), width)
        depth = config.integer("resampler_depth")
        self.layers = Sequential({str(index): PerceiverLayer(config, width) for index in range(depth)})
        self.norm = RMSNorm(width)

    def forward(self, context: Tensor, image: ImageShape, backend: AttentionBackend) -> Tensor:
        num_latents, width = self.latents.shape
        latents = ops.expand_weight(self.latents, (context.shape[0], num_latents, width), context.tape)
        mask = padding_mask(latents, num_latents, context.shape[1] + num_latents, image, backend)
        for layer in self.layers.modules_by_name.values():
            latents = layer(latents, context, mask, backend)
        return self.norm(latents)


class Connector(Module):
    """``Idefics2Connector``."""

    def __init__(self, config: Config) -> None:
        text = config.section("text_config")
        # Idefics2Config.__post_init__ sets the resampler's width to that of the text configuration.
        width = text.integer("hidden_size")
        self.modality_projection = ConnectorMlp(
            config.section("vision_config").integer("hidden_size"),
            text.integer("intermediate_size"),
            width,
            text.text("hidden_act"),
        )
        self.perceiver_resampler = PerceiverResampler(config.section("perceiver_config"), width)

    def forward(self, x: Tensor, image: ImageShape, backend: AttentionBackend) -> Tensor:
        x = self.modality_projection(x)
        return self.perceiver_resampler(x, image, backend)


def build(config: Config) -> Idefics:
    """``Idefics2ForConditionalGeneration``."""
    return Idefics(config, IdeficsModel(config, Connector(config)))
