"""Falcon-H1: Mamba-2 and attention side by side in every layer, and numbers that scale what each takes and gives.

Source: transformers 5.23 ``models/falcon_h1/modeling_falcon_h1.py`` and ``configuration_falcon_h1.py``.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.causal_lm import ScaledCausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.granite import GraniteDecoder
from vlmplan.architecture.families.llama import (
    Attention,
    DecoderShape,
    GatedMlp,
    RotaryContext,
    decoder_shape,
)
from vlmplan.architecture.families.state_space import NamedInputMixer, StateSpaceShape, expanded_shape
from vlmplan.architecture.modules import Linear, Module, RMSNorm, Stack
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class ScaledAttention(Attention):
    """``FalconH1Attention``: keys are scaled."""

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, num_tokens, _ = x.shape
        shape = self.shape
        keys = (batch, shape.num_kv_heads, num_tokens, shape.head_dim)
        q = self.by_head(self.q_proj(x), shape.num_heads)
        k = ops.scale(self.by_head(self.k_proj(x), shape.num_kv_heads))
        return q, k, self.v_proj(x).view(*keys)


class ScaledMlp(GatedMlp):
    """``FalconH1MLP``."""

    def forward(self, x: Tensor) -> Tensor:
        y = ops.mul(self.up_proj(x), self.act_fn(ops.scale(self.gate_proj(x))))
        return ops.scale(self.down_proj(y))


class NormAroundGate(Module):
    """``FalconH1RMSNormGated``: an RMS norm of each group in float32, before or behind ``silu(gate)``."""

    def __init__(self, width: int, num_groups: int, *, norms_first: bool) -> None:
        self.weight = Parameter(width)
        self.num_groups, self.norms_first = num_groups, norms_first

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        dtype, shape = x.dtype, x.shape
        if not self.norms_first:
            x = ops.mul(x, ops.silu(ops.to(gate, DType.FLOAT32)))
        x = ops.to(x, DType.FLOAT32).view(*shape[:-1], self.num_groups, shape[-1] // self.num_groups)
        variance = ops.mean_last(ops.power(x))
        x = ops.mul(x, ops.unary(ops.shift(variance), saves_output=True))
        x = ops.mul(x, self.weight, y_is_first=True).view(*shape)
        if self.norms_first:
            x = ops.mul(x, ops.silu(ops.to(gate, DType.FLOAT32)))
        return ops.to(x, dtype)


class ScaledMixer(NamedInputMixer):
    """``FalconH1Mixer``: what it takes is scaled, what its first Linear makes too, by parts; its norm may be left out,
    and its last Linear has a bias of its own."""

    def __init__(self, config: Config, shape: StateSpaceShape) -> None:
        self.has_norm = config.boolean("mamba_rms_norm")
        self.norms_first = config.boolean("mamba_norm_before_gate")
        super().__init__(shape)
        self.out_proj = Linear(shape.inner_width, shape.hidden_size, bias=config.boolean("projectors_bias"))

    def make_norm(self) -> None:
        if self.has_norm:
            self.norm = NormAroundGate(self.shape.inner_width, self.shape.num_groups, norms_first=self.norms_first)

    def read_modules(self) -> Sequence[Module]:
        return super().read_modules() if self.has_norm else (self.conv1d, self.out_proj)

    def projected(self, x: Tensor) -> Tensor:
        projected = self.in_proj(ops.scale(x))
        return ops.mul(projected, self._factors(projected))

    def _factors(self, x: Tensor) -> Tensor:
        """``mup_vector``, a buffer that is there with the weights, in their type: products with it are float32 where
        they are, under autocast too."""
        dtype = self.dt_bias.dtype
        return Tensor(x.tape.tensor((0,), dtype).storage, (1, 1, x.shape[-1]), dtype)

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return self.norm(x, gate) if self.has_norm else ops.mul(x, ops.silu(gate))


class FalconH1Layer(Module):
    """``FalconH1DecoderLayer``."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        width, activation = shape.hidden_size, shape.activation
        self.feed_forward = ScaledMlp(width, shape.intermediate_size, activation=activation, bias=shape.mlp_bias)
        mixer = expanded_shape(config, inner_width=config.optional_integer("mamba_d_ssm"))
        self.mamba = ScaledMixer(config, mixer)
        self.self_attn = ScaledAttention(shape, None)
        self.input_layernorm = RMSNorm(width)
        self.pre_ff_layernorm = RMSNorm(width)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        recurrent = self.mamba(x, context)
        recurrent = ops.scale(recurrent)
        attended = self.self_attn(ops.scale(x), context)
        attended = ops.scale(attended)
        x = ops.add(recurrent, attended)
        x = ops.add(residual, x)
        residual = x
        x = self.pre_ff_layernorm(x)
        x = self.feed_forward(x)
        return ops.add(residual, x)


class FalconH1Decoder(GraniteDecoder):
    """``FalconH1Model``."""

    NORM = "final_layernorm"


def decoder(config: Config) -> FalconH1Decoder:
    shape = decoder_shape(config)
    return FalconH1Decoder(shape, Stack.of(FalconH1Layer(config, shape), shape.num_layers, label="layers"))


causal_lm = ScaledCausalLM
