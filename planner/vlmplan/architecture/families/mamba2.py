"""Mamba-2 alone: one mixer in every layer, and no attention.

Source: transformers 5.23 ``models/mamba2/modeling_mamba2.py`` and ``configuration_mamba2.py``. The residual is float32
where ``residual_in_fp32`` says so. Not described: the model's forward asks for the type of its head's weight, so that
ZeRO-3 gathers this with the model and prefetches less beside it.
"""

from dataclasses import dataclass
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.llama import RotaryContext
from vlmplan.architecture.families.state_space import StateSpaceMixer, StateSpaceShape, require_groups
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.modules import Embedding, Linear, Module, RMSNorm, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.json_reader import not_allowed
from vlmplan.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Shape:
    """The dimensions outside of the mixers."""

    hidden_size: int
    vocab_size: int
    num_layers: int
    widens_residual: bool


class Mamba2Block(Module):
    """``Mamba2Block``."""

    def __init__(self, mixer: StateSpaceShape, *, widens_residual: bool) -> None:
        super().__init__()
        self.norm = RMSNorm(mixer.hidden_size)
        self.mixer = StateSpaceMixer(mixer)
        self.widens_residual = widens_residual

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.norm(ops.to(x, self.norm.weight.dtype))
        if self.widens_residual:
            residual = ops.to(residual, DType.FLOAT32)
        x = self.mixer(x, context)
        return ops.add(residual, x)


class Mamba2Decoder(Module):
    """``Mamba2Model``."""

    def __init__(self, shape: Mamba2Shape, mixer: StateSpaceShape) -> None:
        super().__init__()
        self.shape = shape
        self.embeddings = Embedding(shape.vocab_size, shape.hidden_size)
        block = Mamba2Block(mixer, widens_residual=shape.widens_residual)
        self.layers = Stack.of(block, shape.num_layers, label="layers")
        self.norm_f = RMSNorm(shape.hidden_size)

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.embeddings(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        tape = x.tape
        with tape.section("positions"):
            nothing = tape.tensor((0,), x.dtype)
            context = RotaryContext(backend, nothing, nothing)
        hidden = self.layers.run(x, lambda layer, hidden: layer(hidden, context))
        with tape.section("norm"):
            return self.norm_f(hidden)


class Mamba2(Model):
    """``Mamba2ForCausalLM``."""

    EMBEDDINGS = "backbone.embeddings"
    widens_logits = True

    def __init__(self, backbone: Mamba2Decoder, head: Linear, *, ties_weights: bool) -> None:
        super().__init__()
        self.backbone = backbone
        self.lm_head: Any = head
        if ties_weights:
            self.tie_weights()

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        """In the type of the head."""
        hidden = self.backbone(self.backbone.embed(ids), backend)
        ids.tape.locals.append(hidden.detached())
        return ops.to(hidden, getattr(self.lm_head, "base_layer", self.lm_head).weight.dtype)


def mixer_shape(config: Config) -> StateSpaceShape:
    """The dimensions of the mixers."""
    num_heads, num_groups, head_dim = (config.integer(key) for key in ("num_heads", "n_groups", "head_dim"))
    width = config.integer("expand") * config.integer("hidden_size")
    if num_heads * head_dim != width:
        raise not_allowed(CONFIG, "head_dim", head_dim, f"what {num_heads} heads make {width} of")
    require_groups("n_groups", num_heads, num_groups)
    return StateSpaceShape(
        hidden_size=config.integer("hidden_size"),
        num_heads=num_heads,
        head_dim=head_dim,
        num_groups=num_groups,
        state_size=config.integer("state_size"),
        num_taps=config.integer("conv_kernel"),
        chunk_size=config.integer("chunk_size"),
        activation=config.text("hidden_act"),
        has_bias=config.boolean("use_bias"),
        convolution_bias=config.boolean("use_conv_bias"),
    )


def decoder(config: Config) -> Mamba2Decoder:
    """The decoder alone, as composite models hold it (``families.text``)."""
    shape = Mamba2Shape(
        hidden_size=config.integer("hidden_size"),
        vocab_size=config.integer("vocab_size"),
        num_layers=config.integer("num_hidden_layers"),
        widens_residual=config.boolean("residual_in_fp32"),
    )
    return Mamba2Decoder(shape, mixer_shape(config))


def build(config: Config) -> Mamba2:
    """``Mamba2ForCausalLM``."""
    model = decoder(config)
    head = Linear(model.shape.hidden_size, model.shape.vocab_size)
    return Mamba2(model, head, ties_weights=config.boolean("tie_word_embeddings"))
