"""Laguna: gated attention, whose heads and positions differ by layer, and experts by sigmoid scores.

Source: transformers 5.23 ``models/laguna/modeling_laguna.py`` and ``configuration_laguna.py``. What experts are chosen
by is a weight of each router, which no gradient reaches.
"""

from dataclasses import dataclass, replace
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.llama import (
    DecoderLayer,
    DecoderShape,
    GatedMlp,
    RotaryContext,
    decoder_shape,
    stack_of_kinds,
    windows_by_type,
)
from vlmplan.architecture.families.moe import Experts, chosen_by, sparse_by_name, top
from vlmplan.architecture.families.partial_rotary import (
    FULL,
    SLIDING,
    KindsRotatedDecoder,
    PartlyRotatedAttention,
    rotary_widths,
)
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.parameter_adapters import AdaptableModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

ROTATED_FRACTIONS = {FULL: 0.5, SLIDING: 1.0}
"""Of a head, where the file has no ``rope_parameters``."""
PER_HEAD = (True, "per-head")
"""Values of ``gating`` with one gate a head; with any other each element has its own."""


class LagunaAttention(PartlyRotatedAttention):
    """``LagunaAttention``."""

    def __init__(self, shape: DecoderShape, window: int | None, *, gates_heads: bool) -> None:
        super().__init__(shape, window)
        self.gates_heads = gates_heads
        self.g_proj = Linear(shape.hidden_size, shape.num_heads * (1 if gates_heads else shape.head_dim))

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        shape = self.shape
        q = self.by_head(self.q_proj(x), shape.num_heads)
        k = self.by_head(self.k_proj(x), shape.num_kv_heads)
        v = self.v_proj(x).view(batch, shape.num_kv_heads, num_tokens, shape.head_dim)
        v = context.values(q, k, v, window=self.window)
        q = self.q_norm(q)
        k = self.k_norm(k)
        q, k = self.positioned(q, k, context)
        out = context.attended(q, k, v, window=self.window, scores=shape.scores)
        gate = ops.to(ops.unary(ops.to(self.g_proj(x), DType.FLOAT32), saves_input=True), out.dtype)  # softplus
        if self.gates_heads:
            rows = (batch, num_tokens, shape.num_heads)
            out = ops.mul(out.view(*rows, shape.head_dim), gate.view(*rows, 1)).view(*out.shape)
        else:
            out = ops.mul(out, gate)
        return self.o_proj(out)


class LagunaRouter(AdaptableModule):
    """``LagunaTopKRouter``: (logits, scores, indices); ``caps``: whether logits pass through ``tanh``."""

    def __init__(self, num_experts: int, hidden_size: int, num_per_token: int, *, caps: bool) -> None:
        self.weight = Parameter(num_experts, hidden_size)
        self.e_score_correction_bias = Parameter(num_experts)
        self.num_per_token, self.caps = num_per_token, caps

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = ops.to(ops.linear(x, self.weight_of("weight")), DType.FLOAT32)
        if self.caps:
            logits = ops.scale(ops.tanh(ops.scale(logits)))
        scores = ops.sigmoid(logits)
        held = chosen_by(scores, self.num_per_token)
        picked, indices = top(scores, self.num_per_token)
        picked = chunks.divide(picked, ops.total(picked, (*picked.shape[:-1], 1)))
        picked = ops.to(picked, x.dtype)
        del held
        return logits, picked, indices


class LagunaBlock(Module):
    """``LagunaSparseMoeBlock``."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        num_experts, width, activation = config.integer("num_experts"), shape.hidden_size, shape.activation
        caps = config.number("moe_router_logit_softcapping") > 0
        self.experts: Any = Experts(num_experts, width, config.integer("moe_intermediate_size"), activation=activation)
        self.gate: Any = LagunaRouter(num_experts, width, config.integer("num_experts_per_tok"), caps=caps)
        shared = config.integer("shared_expert_intermediate_size")
        self.shared_experts = GatedMlp(width, shared, activation=activation)

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        flat = x.view(x.numel // width, width)
        shared = self.shared_experts(flat)
        _logits, scores, indices = self.gate(flat)
        routed = self.experts(flat, indices, scores)
        routed = ops.scale(routed)
        routed = ops.add(routed, shared)
        return routed.view(*x.shape)


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What tells layers apart."""

    window: int | None
    num_heads: int
    is_sparse: bool


def _num_heads(config: Config, shape: DecoderShape) -> list[int]:
    numbers = config.integers("num_attention_heads_per_layer") or (shape.num_heads,) * shape.num_layers
    if len(numbers) != shape.num_layers:
        allowed = f"a number for each of {shape.num_layers} layers"
        raise not_allowed(CONFIG, "num_attention_heads_per_layer", list(numbers), allowed)
    return list(numbers)


def decoder(config: Config) -> KindsRotatedDecoder:
    windows = windows_by_type(config, lambda index: False)
    shape = replace(decoder_shape(config), qk_norm=True, windows=windows)
    gates_heads = config.get("gating") in PER_HEAD
    numbers = zip(windows, _num_heads(config, shape), sparse_by_name(config), strict=True)
    kinds = [LayerKind(*kind) for kind in numbers]

    def layer(kind: LayerKind) -> DecoderLayer:
        own = replace(shape, num_heads=kind.num_heads)
        attention = LagunaAttention(own, kind.window, gates_heads=gates_heads)
        return DecoderLayer(own, attention=attention, mlp=LagunaBlock(config, own) if kind.is_sparse else None)

    made = KindsRotatedDecoder(shape, stack_of_kinds(kinds, layer))
    made.rotary_widths = rotary_widths(config, shape.head_dim, windows, default=1.0, unnamed=ROTATED_FRACTIONS)
    return made
