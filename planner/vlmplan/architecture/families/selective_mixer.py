"""The mixer of Mamba: a causal convolution, and a state for each channel whose decay, input and output tokens choose.

Source: transformers 5.23 ``models/mamba/modeling_mamba.py`` (``MambaMixer``), ``models/falcon_mamba`` and
``models/jamba``, as they run without mamba-ssm, causal-conv1d and mambapy: token after token (``ops.selective_scan``).
The decays and inputs of all tokens, states of every channel each, are there at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import keep_state
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.gated_delta import CausalConvolution, as_float
from vlmplan.architecture.families.llama import RotaryContext
from vlmplan.architecture.modules import DerivedLinear, Linear, Module
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.ops.selective_scan import selective_states
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.read_weights import ReadingModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.units import DType

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveShape:
    """The dimensions of a Mamba mixer; ``has_bias`` is that of its Linears at both ends."""

    hidden_size: int
    inner_width: int
    state_size: int
    step_rank: int
    """Width of what the steps of all channels are made of."""
    num_taps: int
    activation: str
    has_bias: bool
    convolution_bias: bool


def step_rank(config: Config, key: str) -> int:
    """``math.ceil(hidden_size / 16)`` where the file leaves it open. Raises InputError."""
    if config.get(key) == AUTO:
        return -(-config.integer("hidden_size") // 16)
    return config.integer(key)


def refuse_mambapy(config: Config) -> None:
    """Raise InputError where the file asks for another way of computing, a package's."""
    if config.boolean("use_mambapy"):
        raise InputError(f"{CONFIG}: use_mambapy is set; the scan of mambapy is not planned")


class StepProjection(DerivedLinear):
    """``dt_proj``, of which the mixer reads weight and bias: its weight stays in 16 bit, which no product could take
    packed (``lora_targets.STEP_PROJECTION``)."""


class WeightlessNorm(Module):
    """``FalconMambaWeightlessRMSNorm``."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.to(ops.weightless_rms_norm(ops.to(x, DType.FLOAT32)), x.dtype)


class SelectiveMixer(ReadingModule):
    """``MambaMixer``; ``norm`` makes the norms of steps, b and c, of which that has none."""

    takes_mask = True
    """Whether it is given a mask of padding where nothing is padded too."""

    def __init__(self, shape: SelectiveShape, norm: Callable[[int], Module] | None = None) -> None:
        self.shape = shape
        width, channels, rank, size = shape.hidden_size, shape.inner_width, shape.step_rank, shape.state_size
        self.A_log = Parameter(channels, size)
        self.D = Parameter(channels)
        self.conv1d: Any = CausalConvolution(channels, shape.num_taps, bias=shape.convolution_bias)
        self.in_proj: Any = Linear(width, 2 * channels, bias=shape.has_bias)
        self.x_proj: Any = Linear(channels, rank + 2 * size)
        self.dt_proj: Any = StepProjection(rank, channels, bias=True)
        self.out_proj: Any = Linear(channels, width, bias=shape.has_bias)
        self.x_proj.copies_input = self.out_proj.copies_input = True
        self.normalizes = norm is not None
        if norm is not None:
            self.dt_layernorm, self.b_layernorm, self.c_layernorm = norm(rank), norm(size), norm(size)
        self.activation = ops.ACTIVATIONS[shape.activation]

    def read_modules(self) -> Sequence[Any]:
        """In training it hands ``mamba_inner_fn`` the weights of all but its first Linear, kernel or not."""
        return self.conv1d, self.x_proj, self.dt_proj, self.out_proj

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        shape, dtype, tape = self.shape, x.dtype, x.tape
        tokens, channels = (batch, num_tokens), (batch, shape.inner_width, num_tokens)
        gets_mask = self.takes_mask and context.backend.gets_mask
        x = _masked(x) if gets_mask else x
        projected = self.in_proj(x)
        a = ops.scale(ops.unary(as_float(self.A_log, tape), saves_output=True))
        mixed, gate = ops.split(projected, channels, channels)
        keep_state(mixed, batch, shape.inner_width, shape.num_taps)
        mixed = ops.to(self.activation(self.conv1d.forward(mixed)), mixed.dtype)
        mixed = _masked(mixed.view(*tokens, shape.inner_width)).view(*channels) if gets_mask else mixed
        sizes = (shape.step_rank, shape.state_size, shape.state_size)
        steps, b, c = ops.split(
            self.x_proj(mixed.view(*tokens, shape.inner_width)), *[(*tokens, size) for size in sizes]
        )
        if self.normalizes:
            steps, b, c = self.dt_layernorm(steps), self.b_layernorm(b), self.c_layernorm(c)
        steps = ops.weight_product(self.dt_proj.weight, steps)
        bias = as_float(self.dt_proj.bias, tape)
        out, _final_state = selective_scan(mixed, steps, a, b, c, as_float(self.D, tape), gate, bias)
        if _final_state is not None:
            keep_state(_final_state)
        del a, bias
        return self.out_proj(ops.to(out.view(*tokens, shape.inner_width), dtype))


def _masked(x: Tensor) -> Tensor:
    """``apply_mask_to_padding_states``: x (batch, tokens, width) times a mask that came with the samples."""
    mask = Tensor(x.tape.tensor((0,), DType.INT64).storage, (*x.shape[:-1], 1), DType.INT64)
    return ops.mul(x, mask)


def selective_scan(
    x: Tensor, steps: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, gate: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor | None]:
    """``mamba_selective_scan``, and where text is generated its last state; its local names are kept: each keeps a
    tensor alive to the end.

    Shapes: x, steps, gate and the result, in float32, (batch, channels, tokens), a, in float32, (channels, state), b
    and c (batch, tokens, state), d and bias (channels).
    """
    tape, (batch, channels, num_tokens), size = x.tape, x.shape, a.shape[-1]
    each, wide = (batch, channels, num_tokens, 1), (batch, channels, num_tokens, size)
    steps = ops.add(steps, ops.to(bias, steps.dtype).view(1, channels, 1))
    steps = ops.unary(steps if tape.autocast is None else ops.to(steps, DType.FLOAT32), saves_input=True)
    decay = chunks.exponential(chunks.outer(a.view(1, channels, 1, size), steps.view(*each), wide))
    written = chunks.outer(steps.view(*each), ops.to(b, DType.FLOAT32).view(batch, 1, num_tokens, size), wide)
    added = ops.mul(written, ops.to(x, DType.FLOAT32).view(*each))
    out, held = selective_states(decay, added, c, x.dtype)
    out = ops.add(out, chunks.outer(x, d.view(1, channels, 1), x.shape))
    out = ops.mul(out, ops.silu(gate))
    state = None if tape.key_cache is None else held[0]
    del decay, written, added, held
    return out, state
