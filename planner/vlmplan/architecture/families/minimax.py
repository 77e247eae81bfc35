"""MiniMax-Text-01: lightning attention in some layers, Mixtral's attention in the others, Mixtral's experts in all.

Source: transformers 5.23 ``models/minimax/modeling_minimax.py`` and ``configuration_minimax.py``. A residual begins
behind its norm, and both parts of its sum are scaled. ``router_jitter_noise`` is not described: it is 0 by default.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.lightning import LightningAttention, LightningContext
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderShape,
    RotaryContext,
    causal_masks,
    decoder_shape,
    stack_of_kinds,
)
from vlmplan.architecture.families.mixtral import Mixtral
from vlmplan.architecture.families.moe import Experts, SparseMoeBlock, TopKRouter
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Module, RMSNorm
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

LINEAR, FULL = "linear_attention", "full_attention"


class MiniMaxLayer(Module):
    """``MiniMaxDecoderLayer``."""

    def __init__(self, config: Config, shape: DecoderShape, kind: str) -> None:
        width = shape.hidden_size
        self.self_attn: Any = (
            LightningAttention(shape, config.integer("block_size"))
            if kind == LINEAR
            else Attention(shape, shape.windows[0])
        )
        self.input_layernorm = RMSNorm(width)
        self.post_attention_layernorm = RMSNorm(width)
        num_experts = config.integer("num_local_experts")
        router = TopKRouter(num_experts, width, config.integer("num_experts_per_tok"), casts_scores=False)
        experts = Experts(num_experts, width, shape.intermediate_size, activation=shape.activation)
        self.mlp = SparseMoeBlock(router, experts, registers_gate_first=True)

    def forward(self, x: Tensor, context: LightningContext) -> Tensor:
        x = self.input_layernorm(x)
        residual = x
        x = self.self_attn(x, context)
        x = ops.add(ops.scale(residual), ops.scale(x))
        x = self.post_attention_layernorm(x)
        residual = x
        x = self.mlp(x)
        return ops.add(ops.scale(residual), ops.scale(x))


class MiniMaxDecoder(Decoder):
    """``MiniMaxModel``."""

    table_dtype = DType.BFLOAT16
    """Element type of the tables of decays."""

    def contexts(self, x: Tensor, backend: AttentionBackend) -> Callable[[Any], RotaryContext]:
        masks = causal_masks(x, backend, self.windows)
        cos, sin = self.positions(x)

        def context_of(layer: Any) -> LightningContext:
            own = {window: masks[window] for window in self.windows_of(layer) if window in masks}
            return LightningContext(backend, cos, sin, own, table_dtype=self.table_dtype)

        return context_of

    def windows_of(self, layer: Any) -> Sequence[int | None]:
        """Lightning attention takes no mask where nothing is padded."""
        return () if isinstance(layer.self_attn, LightningAttention) else (layer.self_attn.window,)


class MiniMax(Mixtral):
    """``MiniMaxForCausalLM``."""

    num_table_elements = 0
    """Of the tables of decays of all layers."""

    @property
    def layer_buffer_bytes(self) -> int:
        return self.num_table_elements * self.buffer_dtype.num_bytes

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        self.decoder.table_dtype = self.buffer_dtype
        return super().last_hidden_state(batch, ids, pixels, backend)


def layer_types(config: Config) -> Sequence[str]:
    """The attention of each layer; full attention and lightning attention take turns where the file does not say."""
    names = config.layer_types()
    if names is None:
        return [LINEAR if index % 2 else FULL for index in range(config.integer("num_hidden_layers"))]
    if not set(names) <= {LINEAR, FULL}:
        raise not_allowed(CONFIG, "layer_types", sorted(set(names)), f"names out of {LINEAR} and {FULL}")
    return names


def decoder(config: Config) -> MiniMaxDecoder:
    """Raises InputError where inputs of the experts get noise."""
    if config.number("router_jitter_noise"):
        raise not_allowed(CONFIG, "router_jitter_noise", config.get("router_jitter_noise"), "0: noise is not described")
    shape = decoder_shape(config)
    shape = replace(shape, windows=(config.optional_integer("sliding_window"),) * shape.num_layers)
    return MiniMaxDecoder(shape, stack_of_kinds(layer_types(config), lambda kind: MiniMaxLayer(config, shape, kind)))


def causal_lm(decoder: Module, config: Config) -> MiniMax:
    """``MiniMaxForCausalLM``."""
    causal = MiniMax(decoder, config)
    for _, layer in causal.decoder.layers.children():
        if isinstance(layer.self_attn, LightningAttention):
            causal.num_table_elements += layer.self_attn.num_table_elements
    if FULL not in layer_types(config):
        causal.attention_linears = LightningAttention.LINEARS
    return causal
