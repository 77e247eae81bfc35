"""MiMo-V2-Flash: attention with sinks in layers with a window, values of a width of their own, DeepSeek's router.

Source: transformers 5.23 ``models/mimo_v2_flash/modeling_mimo_v2_flash.py`` and ``configuration_mimo_v2_flash.py``.
Attention is eager: the model has no sdpa, and other flash kernels than version 4 are refused
(``_compatible_flash_implementations``). What predicts more than one token is not in transformers' class.
"""

from collections.abc import Mapping
from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.attention import by_head, cached
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.attention_kernels import attention_with_sinks
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.group_router import GroupRouter
from vlmplan.architecture.families.llama import (
    DecoderLayer,
    DecoderShape,
    RotaryContext,
    decoder_shape,
    stack_of_kinds,
    windows_by_type,
)
from vlmplan.architecture.families.moe import Experts, SparseMoeBlock, sparse_by_name
from vlmplan.architecture.families.partial_rotary import (
    FULL,
    SLIDING,
    KindsRotatedDecoder,
    partly_rotated,
    rotary_widths,
)
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor

ROTATED_FRACTION = 0.334
"""Of a head, where the file names none."""
UNNAMED: Mapping[str, float] = {FULL: ROTATED_FRACTION, SLIDING: ROTATED_FRACTION}
FULL_LAYERS = 6
"""Every so many layers see everything, and the first, where the file has no ``layer_types``."""
WINDOW_HEADS = 2
"""Key heads of layers with a window, by one of the others (``MiMoV2FlashAttention.__init__``)."""


class MiMoAttention(Module):
    """``MiMoV2FlashAttention``: ``value_width`` is that of a head of values."""

    def __init__(self, shape: DecoderShape, window: int | None, value_width: int) -> None:
        self.shape, self.window, self.value_width = shape, window, value_width
        self.num_kv_heads = shape.num_kv_heads * (1 if window is None else WINDOW_HEADS)
        width, bias = shape.hidden_size, shape.qkv_bias
        self.q_proj = Linear(width, shape.num_heads * shape.head_dim, bias=bias)
        self.k_proj = Linear(width, self.num_kv_heads * shape.head_dim, bias=bias)
        self.v_proj = Linear(width, self.num_kv_heads * value_width, bias=bias)
        self.o_proj = Linear(shape.num_heads * value_width, width)
        self.sinks = None if window is None else Parameter(shape.num_heads)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        """The layer has the weights until it ends."""
        shape = self.shape
        q = by_head(self.q_proj(x), shape.num_heads)
        k = by_head(self.k_proj(x), self.num_kv_heads)
        v = ops.scale(by_head(self.v_proj(x), self.num_kv_heads))
        q, k = partly_rotated(q, k, context.cos, context.sin)
        k, v = cached(k, v)
        mask, dropout = context.masks[self.window], shape.scores.dropout
        out, weights = attention_with_sinks(q, k, v, mask, self.sinks, dropout=dropout, holds_scores=False)
        x.tape.layer_locals.append(weights.detached())
        del weights
        return self.o_proj(out)


class MiMoDecoder(KindsRotatedDecoder):
    """``MiMoV2FlashModel``."""

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        return super().forward(x, replace(backend, implementation="eager"))


def moe(config: Config, shape: DecoderShape) -> SparseMoeBlock:
    """``MiMoV2FlashMoE``."""
    num_experts, width = config.integer("n_routed_experts"), shape.hidden_size
    experts = Experts(num_experts, width, config.integer("moe_intermediate_size"), activation=shape.activation)
    router = GroupRouter(
        num_experts,
        width,
        config.integer("num_experts_per_tok"),
        num_groups=config.integer("n_group"),
        normalizes=config.boolean("norm_topk_prob"),
    )
    return SparseMoeBlock(router, experts, registers_gate_first=False)


def layer_windows(config: Config) -> tuple[int | None, ...]:
    """The window of each layer (``MiMoV2FlashConfig.__post_init__``): a ``sliding_window_size`` leaves out the token
    itself."""
    size = config.optional_integer("sliding_window_size")
    windows = windows_by_type(config, lambda index: index > 0 and (index + 1) % FULL_LAYERS != 0)
    return windows if size is None else tuple(window and size + 1 for window in windows)


def decoder(config: Config) -> MiMoDecoder:
    windows = layer_windows(config)
    shape = replace(decoder_shape(config), windows=windows)
    value_width = config.integer("v_head_dim")

    def layer(kind: tuple[int | None, bool]) -> DecoderLayer:
        window, is_sparse = kind
        attention = MiMoAttention(shape, window, value_width)
        return DecoderLayer(shape, attention=attention, mlp=moe(config, shape) if is_sparse else None)

    made = MiMoDecoder(shape, stack_of_kinds(list(zip(windows, sparse_by_name(config), strict=True)), layer))
    made.rotary_widths = rotary_widths(config, shape.head_dim, windows, default=ROTATED_FRACTION, unnamed=UNNAMED)
    return made
