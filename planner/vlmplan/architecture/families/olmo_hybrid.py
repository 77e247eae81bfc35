"""OLMo Hybrid: three gated delta nets to one layer of attention as in OLMo 3, without positions where the file says so.

Source: transformers 5.23 ``models/olmo_hybrid/modeling_olmo_hybrid.py`` and ``configuration_olmo_hybrid.py``. Norms are
behind attention and MLP, but before a delta net and its MLP. Queries, keys and values of a delta net, its gate and what
becomes ``beta`` and the decay have a Linear each.
"""

from collections.abc import Callable, Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import keep_state
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gated_delta import (
    CausalConvolution,
    DeltaShape,
    GatedDeltaNet,
    GatedRMSNorm,
    chunked_delta_rule,
    kept_last,
)
from vlmplan.architecture.families.llama import (
    Decoder,
    DecoderShape,
    GatedMlp,
    RotaryContext,
    decoder_shape,
    stack_of_kinds,
)
from vlmplan.architecture.families.olmo import OlmoAttention, PostNormLayer
from vlmplan.architecture.families.qwen3_5 import FULL, LINEAR
from vlmplan.architecture.families.residual_layers import PreNormLayer
from vlmplan.architecture.modules import Linear, Module, WideRMSNorm
from vlmplan.architecture.ops import delta_kernels
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import UnknownNameError
from vlmplan.units import DType

INTERVAL = 4
"""Every how many layers one has full attention where the file does not say (``OlmoHybridConfig.__post_init__``)."""
KEY_FRACTION = 0.75
"""Width of all keys of a delta net by that of the model, and half of that of values, where the file says neither."""


class OlmoDeltaNet(GatedDeltaNet):
    """``OlmoHybridGatedDeltaNet``."""

    def __init__(self, shape: DeltaShape, *, doubles_beta: bool) -> None:
        Module.__init__(self)
        self.shape, self.doubles_beta = shape, doubles_beta
        width = shape.hidden_size
        self.A_log = Parameter(shape.num_value_heads)
        self.dt_bias = Parameter(shape.num_value_heads)
        self.q_proj = Linear(width, shape.key_width)
        self.k_proj = Linear(width, shape.key_width)
        self.v_proj = Linear(width, shape.value_width)
        self.a_proj = Linear(width, shape.num_value_heads)
        self.b_proj = Linear(width, shape.num_value_heads)
        self.g_proj = Linear(width, shape.value_width)
        self.o_proj = Linear(shape.value_width, width)
        self.conv1d = CausalConvolution(2 * shape.key_width + shape.value_width, shape.num_taps)
        self.o_norm = GatedRMSNorm(shape.value_dim)
        self._activation = ops.activation_module(shape.activation)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        shape, uses_fla = self.shape, context.backend.uses_fla
        keys = (batch, num_tokens, shape.num_key_heads, shape.key_dim)
        values = (batch, num_tokens, shape.num_value_heads, shape.value_dim)
        width = 2 * shape.key_width + shape.value_width
        mixed = ops.concatenate([self.q_proj(x), self.k_proj(x), self.v_proj(x)], (batch, num_tokens, width))
        mixed = self._mixed(mixed.view(batch, width, num_tokens), uses_fla=uses_fla)
        q, k, v = ops.split(mixed, keys, keys, values)
        beta = ops.sigmoid(self.b_proj(x))
        if self.doubles_beta:
            beta = ops.scale(beta)
        decay = self._decay(self.a_proj(x))
        rule = delta_kernels.fla_delta_rule if uses_fla else chunked_delta_rule
        out, _last_recurrent_state = kept_last(rule(q, k, v, decay, beta))
        gate = self.g_proj(x)
        rows = batch * num_tokens * shape.num_value_heads
        out = self.o_norm(out.view(rows, shape.value_dim), gate.view(rows, shape.value_dim))
        return self.o_proj(out.view(batch, num_tokens, shape.value_width))

    def _mixed(self, x: Tensor, *, uses_fla: bool) -> Tensor:
        """Convolved, and all tokens cut out by their number from the end, so that a kernel copies its gradient."""
        keep_state(x, *x.shape[:2], self.shape.num_taps)
        if uses_fla:
            result = delta_kernels.causal_convolution(x, self.conv1d.weight, copies_gradient=True)
        else:
            result = self._convolved(x)
        return ops.part(result, *result.shape)


class UnrotatedAttention(OlmoAttention):
    """``OlmoHybridAttention``; ``rotates``: whether there are positions."""

    def __init__(self, shape: DecoderShape, *, rotates: bool) -> None:
        super().__init__(shape, None)
        self.has_positions = rotates

    def positioned(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        return super().positioned(q, k, context) if self.has_positions else (q, k)


class LinearAttentionLayer(PreNormLayer):
    """``OlmoHybridLinearAttentionDecoderLayer``."""

    MODULES = ("input_layernorm", "linear_attn", "post_attention_layernorm", "mlp")

    def __init__(self, shape: DecoderShape, mixer: OlmoDeltaNet) -> None:
        self.mlp = GatedMlp(shape.hidden_size, shape.intermediate_size, activation=shape.activation)
        self.input_layernorm = WideRMSNorm(shape.hidden_size)
        self.post_attention_layernorm = WideRMSNorm(shape.hidden_size)
        self.linear_attn = mixer


class OlmoHybridDecoder(Decoder):
    """``OlmoHybridModel``."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        self.rotates = has_positions(config)

        def layer(name: str) -> Module:
            if name == FULL:
                return PostNormLayer(shape, UnrotatedAttention(shape, rotates=self.rotates))
            mixer = OlmoDeltaNet(delta_shape(config), doubles_beta=config.boolean("linear_allow_neg_eigval"))
            return LinearAttentionLayer(shape, mixer)

        layers = stack_of_kinds(layer_types(config), layer)
        super().__init__(shape, layers, norm=WideRMSNorm, rotary_dtype=DType.FLOAT32)
        if not self.rotates:
            self.ROTARY_MODULES = ()

    def positions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Empty, where there are none."""
        return super().positions(x) if self.rotates else no_positions(x)

    def contexts(self, x: Tensor, backend: AttentionBackend) -> Callable[[Any], RotaryContext]:
        """Layers that attend alone are given positions."""
        context_of, nothing = super().contexts(x, backend), RotaryContext(backend, *no_positions(x))
        return lambda layer: context_of(layer) if self.windows_of(layer) else nothing


def no_positions(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.tape.tensor((0,), DType.FLOAT32), x.tape.tensor((0,), DType.FLOAT32)


def has_positions(config: Config) -> bool:
    """Whether the angles' base is not null: one that the file does not say is 10,000
    (``convert_rope_params_to_dict`` in ``modeling_rope_utils.py``)."""
    scaling = config.mapping("rope_scaling")
    own = scaling if list(scaling.names()) else config.mapping("rope_parameters")
    for place in (own, config):
        if place.has_own("rope_theta"):
            return place.own("rope_theta") is not None
    return True


def layer_types(config: Config) -> Sequence[str]:
    """The token mixer of each layer: ``layer_types``, else attention in every fourth, and at least in the last."""
    names = config.layer_types()
    if names is None:
        num_layers = config.integer("num_hidden_layers")
        found = [FULL if index % INTERVAL == INTERVAL - 1 else LINEAR for index in range(num_layers)]
        return found if FULL in found else [*found[:-1], FULL]
    for name in names:
        if name not in (LINEAR, FULL):
            raise UnknownNameError("entry of layer_types", name, (LINEAR, FULL))
    return names


def delta_shape(config: Config) -> DeltaShape:
    """The dimensions of the gated delta nets (``OlmoHybridConfig.__post_init__``)."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    num_key_heads = config.integer("linear_num_key_heads", num_heads)
    key_dim = config.integer("linear_key_head_dim", int(KEY_FRACTION * hidden_size / num_key_heads))
    return DeltaShape(
        hidden_size=hidden_size,
        num_key_heads=num_key_heads,
        num_value_heads=config.integer("linear_num_value_heads", num_heads),
        key_dim=key_dim,
        value_dim=config.integer("linear_value_head_dim", 2 * key_dim),
        num_taps=config.integer("linear_conv_kernel_dim"),
        activation=config.text("hidden_act"),
    )


def decoder(config: Config) -> OlmoHybridDecoder:
    return OlmoHybridDecoder(config, decoder_shape(config))
