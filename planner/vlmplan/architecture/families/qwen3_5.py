"""Qwen3.5: three gated delta nets to one layer of gated attention, and Qwen3-VL's vision encoder without DeepStack.

Source: transformers 5.23 ``models/qwen3_5/modeling_qwen3_5.py``. ``q_proj`` has heads twice as wide, half of each is a
gate; the first quarter of a head is rotated. Norms are in float32 with a factor ``1 + weight``.
"""

from collections.abc import Mapping, Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.attention import by_head
from vlmplan.architecture.attention_backend import Scores
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gated_delta import GatedDeltaNet, delta_shape
from vlmplan.architecture.families.llama import DecoderShape, GatedMlp, RotaryContext
from vlmplan.architecture.families.packed_patches import InterleavedDecoder
from vlmplan.architecture.families.partial_rotary import partly_rotated
from vlmplan.architecture.families.residual_layers import PreNormLayer
from vlmplan.architecture.modules import GemmaRMSNorm, Linear, Module, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import UnknownNameError

LINEAR, FULL = "linear_attention", "full_attention"
ROTARY_FRACTION = 0.25
"""``partial_rotary_factor`` where the file has none (``Qwen3_5TextConfig.__post_init__``)."""
FULL_ATTENTION_INTERVAL = 4
"""Every how many layers one has full attention where the file has neither (the same)."""


class GatedAttention(Module):
    """``Qwen3_5Attention``: queries and keys are normed and partly rotated, the result is gated."""

    def __init__(self, shape: DecoderShape) -> None:
        self.shape = shape
        query_width, key_width = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = Linear(shape.hidden_size, 2 * query_width, bias=shape.qkv_bias)
        self.k_proj = Linear(shape.hidden_size, key_width, bias=shape.qkv_bias)
        self.v_proj = Linear(shape.hidden_size, key_width, bias=shape.qkv_bias)
        self.o_proj = Linear(query_width, shape.hidden_size, bias=shape.output_bias)
        self.q_norm = GemmaRMSNorm(shape.head_dim)
        self.k_norm = GemmaRMSNorm(shape.head_dim)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        shape = self.shape
        head = (batch, shape.num_heads, num_tokens, shape.head_dim)
        q, gate = ops.split(self.q_proj(x), head, head)
        gate = ops.copy(gate, batch, num_tokens, shape.num_heads * shape.head_dim)
        q = self.q_norm(q)
        k = self.k_norm(by_head(self.k_proj(x), shape.num_kv_heads))
        v = self.v_proj(x).view(batch, shape.num_kv_heads, num_tokens, shape.head_dim)
        v = context.values(q, k, v)
        q, k = partly_rotated(q, k, context.cos, context.sin)
        out = context.attended(q, k, v, scores=shape.scores)
        out = ops.mul(out, ops.sigmoid(gate))
        return self.o_proj(out)


class DecoderLayer(PreNormLayer):
    """``Qwen3_5DecoderLayer``: a token mixer, ``linear_attn`` or ``self_attn``, and an MLP, each behind a norm."""

    def __init__(self, hidden_size: int, mixers: Mapping[str, Module], mlp: Module) -> None:
        """``mixers``: the one mixer by its name."""
        ((name, mixer),) = mixers.items()
        self.MODULES = ("input_layernorm", name, "post_attention_layernorm", "mlp")
        setattr(self, name, mixer)
        self.mlp = mlp
        self.input_layernorm = GemmaRMSNorm(hidden_size)
        self.post_attention_layernorm = GemmaRMSNorm(hidden_size)


def layer_types(config: Config) -> Sequence[str]:
    """The token mixer of each layer: ``layer_types``, else full attention in every fourth layer.

    Source: ``Qwen3_5TextConfig.__post_init__``.
    """
    names = config.layer_types()
    if names is None:
        interval = config.integer("full_attention_interval", FULL_ATTENTION_INTERVAL)
        layers = range(config.integer("num_hidden_layers"))
        return [FULL if (index + 1) % interval == 0 else LINEAR for index in layers]
    for name in names:
        if name not in (LINEAR, FULL):
            raise UnknownNameError("entry of layer_types", name, (LINEAR, FULL))
    return names


def rotary_width(config: Config, head_dim: int) -> int:
    """How much of a head is rotated."""
    own = config.number("partial_rotary_factor", ROTARY_FRACTION)
    return int(head_dim * config.mapping("rope_parameters").number("partial_rotary_factor", own))


def hybrid_shape(config: Config, *, intermediate_size: int) -> DecoderShape:
    """The dimensions of what is no gated delta net; ``intermediate_size`` is that of a dense MLP."""
    has_bias = config.boolean("attention_bias")
    return DecoderShape(
        hidden_size=config.integer("hidden_size"),
        intermediate_size=intermediate_size,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=config.integer("num_attention_heads"),
        num_kv_heads=config.integer("num_key_value_heads"),
        head_dim=config.integer("head_dim"),
        vocab_size=config.integer("vocab_size"),
        qkv_bias=has_bias,
        output_bias=has_bias,
        activation=config.text("hidden_act"),
        scores=Scores(dropout=config.number("attention_dropout")),
    )


def hybrid_decoder(config: Config, shape: DecoderShape, mlp: Module) -> InterleavedDecoder:
    """The decoder of a text configuration whose layers have ``mlp``."""
    width, types = rotary_width(config, shape.head_dim), layer_types(config)
    kinds: list[Module] = []
    for name in dict.fromkeys(types):
        is_linear = name == LINEAR
        mixer = GatedDeltaNet(delta_shape(config)) if is_linear else GatedAttention(shape)
        kinds.append(DecoderLayer(shape.hidden_size, {"linear_attn" if is_linear else "self_attn": mixer}, mlp))
    order = list(dict.fromkeys(types))
    layers = Stack(kinds, [order.index(name) for name in types], label="layers")
    return InterleavedDecoder(shape, layers, norm=GemmaRMSNorm, rotary_width=width)


def decoder(config: Config) -> InterleavedDecoder:
    """``Qwen3_5TextModel``, the decoder without a head."""
    shape = hybrid_shape(config, intermediate_size=config.integer("intermediate_size"))
    return hybrid_decoder(
        config, shape, GatedMlp(shape.hidden_size, shape.intermediate_size, activation=shape.activation)
    )
