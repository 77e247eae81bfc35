"""AFMoE (Trinity): gated attention with windows, norms before and behind each part, and experts by sigmoid scores.

Source: transformers 5.23 ``models/afmoe/modeling_afmoe.py`` and ``configuration_afmoe.py``. Layers with a window alone
have rotary positions; what experts are chosen by is a weight of each block, which no gradient reaches.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.group_router import OLD_EXPERT_NAMES
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderShape,
    GatedMlp,
    RotaryContext,
    decoder_shape,
    stack_of_kinds,
    windows_by_type,
)
from vlmplan.architecture.families.moe import Experts, chosen_by, top
from vlmplan.architecture.modules import Linear, Module, WideRMSNorm
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class GatedAttention(Attention):
    """``AfmoeAttention``."""

    head_norm = WideRMSNorm

    def __init__(self, shape: DecoderShape, window: int | None) -> None:
        super().__init__(shape, window)
        self.gate_proj = Linear(shape.hidden_size, shape.num_heads * shape.head_dim)
        self.has_positions = window is not None

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        shape = self.shape
        q = self.by_head(self.q_proj(x), shape.num_heads)
        k = self.by_head(self.k_proj(x), shape.num_kv_heads)
        v = self.v_proj(x).view(batch, shape.num_kv_heads, num_tokens, shape.head_dim)
        gate = self.gate_proj(x)
        q = self.q_norm(q)
        k = self.k_norm(k)
        if self.has_positions:
            q, k = self.positioned(q, k, context)
        out = attend(context.backend, q, k, v, is_causal=True, mask=context.masks.get(self.window), scores=shape.scores)
        out = ops.mul(out, ops.sigmoid(gate))
        return self.o_proj(out)


class AfmoeRouter(Module):
    """``AfmoeTokenChoiceRouter``: (logits, scores, indices)."""

    def __init__(self, num_experts: int, hidden_size: int, num_per_token: int) -> None:
        self.gate = Linear(hidden_size, num_experts)
        self.num_per_token = num_per_token

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = ops.to(self.gate(x), DType.FLOAT32)
        scores = ops.sigmoid(logits)
        best = chosen_by(scores, self.num_per_token)[1]
        picked, indices = top(scores, self.num_per_token)
        total = ops.shift(ops.total(picked, (*picked.shape[:-1], 1)))
        picked = chunks.divide(picked, total)
        picked = ops.scale(picked)
        del best, total
        return logits, picked, indices


class AfmoeBlock(Module):
    """``AfmoeSparseMoeBlock``."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        num_experts, width = config.integer("num_experts"), shape.hidden_size
        inner = config.integer("moe_intermediate_size")
        self.router = AfmoeRouter(num_experts, width, config.integer("num_experts_per_tok"))
        shared = inner * config.integer("num_shared_experts")
        self.shared_experts = GatedMlp(width, shared, activation=shape.activation)
        self.experts = Experts(num_experts, width, inner, activation=shape.activation)
        self.expert_bias = Parameter(num_experts)

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        flat = x.view(x.numel // width, width)
        _logits, scores, indices = self.router(flat)
        shared = self.shared_experts(flat).view(*x.shape)
        routed = self.experts(flat, indices, scores).view(*x.shape)
        return ops.add(shared, routed)


class AfmoeLayer(Module):
    """``AfmoeDecoderLayer``."""

    def __init__(self, config: Config, shape: DecoderShape, window: int | None, *, is_sparse: bool) -> None:
        width = shape.hidden_size
        self.self_attn = GatedAttention(shape, window)
        self.input_layernorm = WideRMSNorm(width)
        self.post_attention_layernorm = WideRMSNorm(width)
        self.pre_mlp_layernorm = WideRMSNorm(width)
        self.post_mlp_layernorm = WideRMSNorm(width)
        dense = GatedMlp(width, shape.intermediate_size, activation=shape.activation)
        self.mlp: Module = AfmoeBlock(config, shape) if is_sparse else dense

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, context)
        x = self.post_attention_layernorm(x)
        x = ops.add(residual, x)
        residual = x
        x = self.pre_mlp_layernorm(x)
        x = self.mlp(x)
        x = self.post_mlp_layernorm(x)
        return ops.add(residual, x)


class AfmoeDecoder(Decoder):
    """``AfmoeModel``; ``scales``: the embeddings, by the root of the width."""

    scales = False

    def entering(self, x: Tensor) -> Tensor:
        if not self.scales:
            return x
        with x.tape.section("scaling"):
            return ops.scale(x)


def decoder(config: Config) -> AfmoeDecoder:
    # ``AfmoeConfig.__post_init__``: every so many layers see everything.
    period = config.integer("global_attn_every_n_layers")
    windows = windows_by_type(config, lambda index: (index + 1) % period != 0)
    shape = replace(decoder_shape(config), qk_norm=True, windows=windows)
    num_dense = config.count("num_dense_layers")
    kinds = [(window, index >= num_dense) for index, window in enumerate(windows)]
    layers = stack_of_kinds(kinds, lambda kind: AfmoeLayer(config, shape, kind[0], is_sparse=kind[1]))
    masked = (None, config.integer("sliding_window"))
    model = AfmoeDecoder(shape, layers, norm=WideRMSNorm, masked_windows=masked)
    model.scales = config.boolean("mup_enabled")
    return model


class Afmoe(CausalLM):
    """``AfmoeForCausalLM``, whose gates of routers are Linears: their name means no weight of a router."""

    PARAMETER_TARGETS = {name: weight for name, weight in OLD_EXPERT_NAMES.items() if name != "gate"}


causal_lm = Afmoe
