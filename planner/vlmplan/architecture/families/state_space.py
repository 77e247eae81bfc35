"""The mixer of Mamba-2: a causal convolution, a state for each head that tokens decay and add to, a gated norm.

Source: transformers 5.23 ``models/nemotron_h/modeling_nemotron_h.py`` (``NemotronHMamba2Mixer``,
``NemotronHRMSNormGated``) and its likes, as they run without mamba-ssm and causal-conv1d (``chunk_scan``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from vlmplan.architecture import ops
from vlmplan.architecture.attention import keep_state
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.chunk_scan import chunk_scan
from vlmplan.architecture.families.gated_delta import CausalConvolution, as_float
from vlmplan.architecture.families.llama import RotaryContext
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.read_weights import ReadingModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpaceShape:
    """The dimensions of a Mamba-2 mixer; ``has_bias`` is that of its Linears."""

    hidden_size: int
    num_heads: int
    head_dim: int
    num_groups: int
    """Of heads that share what is written to their states and read from them."""
    state_size: int
    num_taps: int
    chunk_size: int
    activation: str
    has_bias: bool
    convolution_bias: bool

    @property
    def inner_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def group_width(self) -> int:
        return self.num_groups * self.state_size

    @property
    def convolved_width(self) -> int:
        return self.inner_width + 2 * self.group_width


class StateSpaceKeys(NamedTuple):
    """What a configuration calls the dimensions of its mixers."""

    num_heads: str
    head_dim: str
    num_groups: str
    state_size: str
    num_taps: str
    chunk_size: str
    activation: str
    has_bias: str
    convolution_bias: str


EXPANDED_KEYS = StateSpaceKeys(
    num_heads="mamba_n_heads",
    head_dim="mamba_d_head",
    num_groups="mamba_n_groups",
    state_size="mamba_d_state",
    num_taps="mamba_d_conv",
    chunk_size="mamba_chunk_size",
    activation="hidden_act",
    has_bias="mamba_proj_bias",
    convolution_bias="mamba_conv_bias",
)
"""Those of Bamba, Falcon-H1 and Granite 4.0 H."""


def expanded_shape(config: Config, *, inner_width: int | None = None) -> StateSpaceShape:
    """The dimensions of the mixers of a configuration with ``EXPANDED_KEYS``.

    ``inner_width``: where it is not ``mamba_expand`` times the hidden size. Raises InputError.
    """
    width = inner_width or config.integer("mamba_expand") * config.integer("hidden_size")
    keys = EXPANDED_KEYS
    is_auto = config.get(keys.head_dim) == "auto"
    return state_space_shape(
        config, keys, inner_width=width, head_dim=width // config.integer(keys.num_heads) if is_auto else None
    )


def state_space_shape(
    config: Config, keys: StateSpaceKeys, *, inner_width: int | None = None, head_dim: int | None = None
) -> StateSpaceShape:
    """The dimensions of the mixers of a configuration that calls them ``keys``. All heads are ``inner_width`` wide
    where that is said, and each ``head_dim`` where the configuration leaves it open. Raises InputError."""
    num_heads, num_groups = config.integer(keys.num_heads), config.integer(keys.num_groups)
    head_dim = head_dim or config.integer(keys.head_dim)
    if inner_width is not None and head_dim * num_heads != inner_width:
        raise not_allowed(CONFIG, keys.head_dim, head_dim, f"what {num_heads} heads make {inner_width} of")
    if num_heads % num_groups:
        raise not_allowed(CONFIG, keys.num_groups, num_groups, f"a number that divides the {num_heads} heads")
    return StateSpaceShape(
        hidden_size=config.integer("hidden_size"),
        num_heads=num_heads,
        head_dim=head_dim,
        num_groups=num_groups,
        state_size=config.integer(keys.state_size),
        num_taps=config.integer(keys.num_taps),
        chunk_size=config.integer(keys.chunk_size),
        activation=config.text(keys.activation),
        has_bias=config.boolean(keys.has_bias),
        convolution_bias=config.boolean(keys.convolution_bias),
    )


class GroupedGatedNorm(Module):
    """``NemotronHRMSNormGated``: times ``silu(gate)``, then an RMS norm of each group, all in float32."""

    def __init__(self, width: int, num_groups: int) -> None:
        self.weight = Parameter(width)
        self.num_groups = num_groups

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        dtype, shape = x.dtype, x.shape
        x = ops.to(x, DType.FLOAT32)
        x = ops.mul(x, ops.silu(ops.to(gate, DType.FLOAT32)))
        x = x.view(*shape[:-1], self.num_groups, shape[-1] // self.num_groups)
        variance = ops.mean_last(ops.power(x))
        x = ops.mul(x, ops.unary(ops.shift(variance), saves_output=True))
        return ops.mul(ops.to(x.view(*shape), dtype), self.weight)


class StateSpaceMixer(ReadingModule):
    """``NemotronHMamba2Mixer``. In training it hands ``mamba2_split_conv1d_scan_combined`` the weights of all but its
    first Linear, whether or not that is a kernel, and it calls its convolution by no module."""

    def __init__(self, shape: StateSpaceShape) -> None:
        self.shape = shape
        self.dt_bias = Parameter(shape.num_heads)
        self.A_log = Parameter(shape.num_heads)
        self.D = Parameter(shape.num_heads)
        self.conv1d = CausalConvolution(shape.convolved_width, shape.num_taps, bias=shape.convolution_bias)
        self.in_proj = Linear(
            shape.hidden_size, shape.inner_width + shape.convolved_width + shape.num_heads, bias=shape.has_bias
        )
        self.make_norm()
        self.out_proj = Linear(shape.inner_width, shape.hidden_size, bias=shape.has_bias)
        self.activation = ops.ACTIVATIONS[shape.activation]

    def make_norm(self) -> None:
        """What comes behind ``in_proj`` in the order of parameters."""
        self.norm: Any = GroupedGatedNorm(self.shape.inner_width, self.shape.num_groups)

    def read_modules(self) -> Sequence[Module]:
        return self.conv1d, self.norm, self.out_proj

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        shape, dtype, tape = self.shape, x.dtype, x.tape
        tokens = (batch, num_tokens)
        projected = self.projected(x)
        a = ops.scale(ops.unary(as_float(self.A_log, tape), saves_output=True))
        gate, mixed, dt = ops.split(
            projected,
            (*tokens, shape.inner_width),
            (batch, shape.convolved_width, num_tokens),
            (*tokens, shape.num_heads),
        )
        keep_state(mixed, batch, shape.convolved_width, shape.num_taps)
        mixed = ops.to(self.activation(self.conv1d.forward(mixed)), mixed.dtype)
        group = (*tokens, shape.num_groups, shape.state_size)
        x, b, c = ops.split(mixed, (*tokens, shape.num_heads, shape.head_dim), group, group)
        result, _final_state = chunk_scan(x, dt, a, b, c, self.D, self.dt_bias, shape.chunk_size)
        if _final_state is not None:
            keep_state(_final_state)
        out = self.gated(result.view(*tokens, shape.inner_width), gate)
        return self.out_proj(ops.to(out, dtype))

    def projected(self, x: Tensor) -> Tensor:
        """Gate, what is convolved and steps side by side."""
        return self.in_proj(x)

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        """What the scan made, normed and gated."""
        return self.norm(x, gate)


class NamedInputMixer(StateSpaceMixer):
    """``BambaMixer``, ``GraniteMoeHybridMambaLayer``: their layers call them by keyword."""

    takes_keywords = True
