"""Phi-3: a Llama with fused projections (q, k, v in one, gate and up in one) and rotary positions on part of a head.

Source: transformers 5.23 ``models/phi3/modeling_phi3.py``.
"""

from dataclasses import dataclass

from vlmplan.architecture import ops
from vlmplan.architecture.attention import by_head
from vlmplan.architecture.attention_backend import Scores
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import Decoder, DecoderShape, RotaryContext, decoder_shape
from vlmplan.architecture.families.partial_rotary import parts_of_heads
from vlmplan.architecture.modules import Linear, Module, RMSNorm, Stack
from vlmplan.architecture.tensor import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Phi3Rules:
    """What Phi-3 adds to the dimensions of a Llama: how much of a head is rotated, and what is dropped out."""

    rotary_width: int
    residual_dropout: float
    scores: Scores


class Phi3Attention(Module):
    """Grouped-query attention out of one projection, cut by slices of which each has a gradient of the whole size."""

    def __init__(self, shape: DecoderShape, rules: Phi3Rules, window: int | None) -> None:
        self.shape, self.rules, self.window = shape, rules, window
        query_width, key_width = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.o_proj = Linear(query_width, shape.hidden_size)
        self.qkv_proj = Linear(shape.hidden_size, query_width + 2 * key_width)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        shape = self.shape
        query_width, key_width = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        qkv = self.qkv_proj(x)
        q, k, v = ops.slice_last(qkv, query_width), ops.slice_last(qkv, key_width), ops.slice_last(qkv, key_width)
        q = by_head(q, shape.num_heads)
        k = by_head(k, shape.num_kv_heads)
        v = v.view(batch, shape.num_kv_heads, num_tokens, shape.head_dim)
        v = context.values(q, k, v, window=self.window)
        q, k = self._rotated(q, k, context)
        out = context.attended(q, k, v, window=self.window, scores=self.rules.scores)
        return self.o_proj(out)

    def _rotated(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        """``apply_rotary_pos_emb``: q and k are cut into the rotated part and the rest, however narrow, before either
        is put together in a new tensor."""
        width, cos, sin = self.rules.rotary_width, context.cos, context.sin
        q_rotated, q_rest = parts_of_heads(q, width)
        k_rotated, k_rest = parts_of_heads(k, width)
        return (
            ops.concatenate([ops.rotate(q_rotated, cos, sin), q_rest], q.shape),
            ops.concatenate([ops.rotate(k_rotated, cos, sin), k_rest], k.shape),
        )


class Phi3Mlp(Module):
    """``down(up * act(gate))`` with gate and up out of one projection."""

    def __init__(self, shape: DecoderShape) -> None:
        self.gate_up_proj = Linear(shape.hidden_size, 2 * shape.intermediate_size)
        self.down_proj = Linear(shape.intermediate_size, shape.hidden_size)
        self.activation_fn = ops.activation_module(shape.activation)

    def forward(self, x: Tensor) -> Tensor:
        up = self.gate_up_proj(x)
        half = (*up.shape[:-1], up.shape[-1] // 2)
        gate, up = ops.split(up, half, half)
        up = ops.mul(up, self.activation_fn(gate))
        return self.down_proj(up)


class Phi3Layer(Module):
    """``Phi3DecoderLayer``: pre-norm attention and MLP, dropped out before they join the residual."""

    def __init__(self, shape: DecoderShape, rules: Phi3Rules, window: int | None) -> None:
        self.self_attn = Phi3Attention(shape, rules, window)
        self.mlp = Phi3Mlp(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size)
        self.dropout = rules.residual_dropout

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, context)
        x = ops.add(residual, ops.dropout(x, self.dropout))
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        return ops.add(residual, ops.dropout(x, self.dropout))


class Phi3Decoder(Decoder):
    """``Phi3Model``."""

    def __init__(self, shape: DecoderShape, rules: Phi3Rules) -> None:
        window = shape.windows[0] if shape.windows else None
        layers = Stack.of(Phi3Layer(shape, rules, window), shape.num_layers, label="layers")
        super().__init__(shape, layers, rotary_width=rules.rotary_width)


class Phi3ForCausalLM(CausalLM):
    attention_linears = ("qkv_proj", "o_proj")


def phi3_rules(config: Config, head_dim: int) -> Phi3Rules:
    """Rotary width and dropout; the share of a head stands at the top level or among the rotary parameters."""
    rope = config.mapping("rope_parameters" if config.get("rope_parameters") else "rope_scaling")
    fraction = rope.number("partial_rotary_factor") or config.number("partial_rotary_factor", 1.0)
    return Phi3Rules(
        rotary_width=int(head_dim * fraction),
        residual_dropout=config.number("resid_pdrop"),
        scores=Scores(dropout=config.number("attention_dropout")),
    )


def decoder(config: Config) -> Phi3Decoder:
    shape = decoder_shape(config)
    return Phi3Decoder(shape, phi3_rules(config, shape.head_dim))


causal_lm = Phi3ForCausalLM
