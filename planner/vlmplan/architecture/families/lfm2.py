"""LFM2: short gated convolutions in most layers, grouped-query attention with normed heads in the others.

Source: transformers 5.23 ``models/lfm2/modeling_lfm2.py``. The convolution is torch's own, which runs where no
kernel of causal-conv1d is installed.
"""

from dataclasses import replace
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, by_head, keep_state
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.gated_delta import CausalConvolution
from vlmplan.architecture.families.llama import (
    Decoder,
    DecoderShape,
    RotaryContext,
    decoder_shape,
    stack_of_kinds,
)
from vlmplan.architecture.modules import Linear, Module, RMSNorm
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed

ATTENTION, CONVOLUTION = "full_attention", "conv"


class Lfm2Attention(Module):
    """``Lfm2Attention``."""

    window: int | None = None

    def __init__(self, shape: DecoderShape) -> None:
        self.shape, width = shape, shape.hidden_size
        key_width = shape.num_kv_heads * shape.head_dim
        self.q_proj = Linear(width, shape.num_heads * shape.head_dim)
        self.k_proj = Linear(width, key_width)
        self.v_proj = Linear(width, key_width)
        self.out_proj = Linear(shape.num_heads * shape.head_dim, width)
        self.q_layernorm = RMSNorm(shape.head_dim)
        self.k_layernorm = RMSNorm(shape.head_dim)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        shape = self.shape
        keys = (batch, shape.num_kv_heads, num_tokens, shape.head_dim)
        q = self.q_layernorm(by_head(self.q_proj(x), shape.num_heads))
        k = self.k_layernorm(by_head(self.k_proj(x), shape.num_kv_heads))
        v = context.values(q, k, self.v_proj(x).view(*keys))
        q, k = ops.rotate(q, context.cos, context.sin), ops.rotate(k, context.cos, context.sin)
        return self.out_proj(attend(context.backend, q, k, v, is_causal=True, mask=context.masks.get(None)))


class ShortConvolution(Module):
    """``Lfm2ShortConv``: ``out(c * convolution(b * x))`` with b, c and x from one Linear."""

    def __init__(self, config: Config, width: int) -> None:
        if config.boolean("conv_bias"):
            raise InputError("config.json: conv_bias is set; short convolutions with a bias are not planned")
        self.conv = CausalConvolution(width, config.integer("conv_L_cache"))
        self.in_proj = Linear(width, 3 * width)
        self.out_proj = Linear(width, width)

    def forward(self, x: Tensor, _context: RotaryContext | None) -> Tensor:
        batch, num_tokens, width = x.shape
        part = (batch, width, num_tokens)
        projected = self.in_proj(x)
        b, c, x = ops.split(projected, part, part, part)
        x = ops.mul(b, x)
        keep_state(x, batch, width, self.conv.weight.shape[-1])
        x = ops.to(self.conv(x), x.dtype)
        y = ops.mul(c, x)
        return self.out_proj(y.view(batch, num_tokens, width))


class Lfm2Mlp(Module):
    """``Lfm2MLP``."""

    def __init__(self, width: int, intermediate_size: int) -> None:
        self.w1 = Linear(width, intermediate_size)
        self.w3 = Linear(width, intermediate_size)
        self.w2 = Linear(intermediate_size, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(ops.mul(ops.silu(self.w1(x)), self.w3(x)))


class Lfm2Layer(Module):
    """``Lfm2DecoderLayer``: attention or a convolution, and an MLP or experts, each behind a norm."""

    def __init__(self, width: int, mixer: Any, feed_forward: Module) -> None:
        self.mixer_name = "self_attn" if hasattr(mixer, "window") else "conv"
        setattr(self, self.mixer_name, mixer)
        self.feed_forward = feed_forward
        self.operator_norm = RMSNorm(width)
        self.ffn_norm = RMSNorm(width)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.modules_by_name[self.mixer_name](self.operator_norm(x), context)
        x = ops.add(x, residual)
        return ops.add(x, self.feed_forward(self.ffn_norm(x)))


class Lfm2Decoder(Decoder):
    """``Lfm2Model``."""

    NORM = "embedding_norm"


class Lfm2(CausalLM):
    """``Lfm2ForCausalLM``."""

    attention_linears = ("q_proj", "k_proj", "v_proj", "self_attn.out_proj")

    def __init__(self, decoder: Module, config: Config) -> None:
        """Tied by ``tie_embedding`` where the file has it."""
        is_tied = config.boolean("tie_embedding", config.boolean("tie_word_embeddings"))
        super().__init__(decoder, config, ties_weights=is_tied)


def lfm2_shape(config: Config) -> DecoderShape:
    """The dimensions of the decoder; the width of its MLPs is ``block_ff_dim``, made smaller where the file says so."""
    shape = decoder_shape(config)
    width = config.integer("block_ff_dim", config.integer("intermediate_size"))
    if config.boolean("block_auto_adjust_ff_dim"):
        width = 2 * width // 3
        if config.get("block_ffn_dim_multiplier") is not None:
            multiple = config.integer("block_multiple_of")
            width = int(config.positive_number("block_ffn_dim_multiplier") * width)
            width = multiple * ((width + multiple - 1) // multiple)
    return replace(shape, intermediate_size=width, windows=())


def layer_kinds(config: Config) -> tuple[str, ...]:
    """The kind of each layer: ``layer_types``, or attention in ``full_attn_idxs``, or everywhere."""
    num_layers = config.integer("num_hidden_layers")
    kinds = config.layer_types()
    if kinds is None:
        chosen = config.integers("full_attn_idxs") if config.get("full_attn_idxs") is not None else range(num_layers)
        kinds = tuple(ATTENTION if index in chosen else CONVOLUTION for index in range(num_layers))
    if not set(kinds) <= {ATTENTION, CONVOLUTION}:
        raise not_allowed(CONFIG, "layer_types", sorted(set(kinds)), f"names out of {ATTENTION} and {CONVOLUTION}")
    return kinds


def token_mixer(config: Config, shape: DecoderShape, kind: str) -> Module:
    """What mixes tokens in a layer of this kind."""
    return Lfm2Attention(shape) if kind == ATTENTION else ShortConvolution(config, shape.hidden_size)


def decoder(config: Config) -> Lfm2Decoder:
    shape = lfm2_shape(config)

    def layer(kind: str) -> Lfm2Layer:
        mlp = Lfm2Mlp(shape.hidden_size, shape.intermediate_size)
        return Lfm2Layer(shape.hidden_size, token_mixer(config, shape, kind), mlp)

    return Lfm2Decoder(shape, stack_of_kinds(layer_kinds(config), layer))


causal_lm = Lfm2
