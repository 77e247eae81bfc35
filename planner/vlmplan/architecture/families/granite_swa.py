"""Granite SWA, with and without experts: Granite with windows, positions of each layer's own, and sinks of attention.

Source: transformers 5.23 ``models/granite_swa/modeling_granite_swa.py`` and
``models/granitemoe_swa/modeling_granitemoe_swa.py``. Attention is eager: there is no sdpa, and transformers puts
kernels that it downloads in the place of every flash implementation (``_compatible_flash_implementations``).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from typing import cast as typing_cast

from vlmplan.architecture import ops
from vlmplan.architecture.attention import cached
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.attention_kernels import product, repeat_kv
from vlmplan.architecture.causal_lm import ScaledCausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.granite import GraniteDecoder, GraniteLayer
from vlmplan.architecture.families.granitemoe import GraniteMoeLayer
from vlmplan.architecture.families.llama import (
    Attention,
    DecoderShape,
    RotaryContext,
    causal_masks,
    decoder_shape,
    stack_of_kinds,
    windows_by_type,
)
from vlmplan.architecture.layer_calls import Calls
from vlmplan.architecture.modules import Module
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.errors import InputError
from vlmplan.units import DType

LayerKind = tuple[int | None, float]
"""The window of a layer's attention, and the base of its rotary positions; 0: it has none."""


def log_sum_exp(x: Tensor) -> Tensor:
    """``torch.logsumexp(x, dim=-1)``: saves x and the result. Forward makes one tensor of x's size in between; backward
    ``g * (x - result).exp()`` three, of which one is the gradient.

    Sources: ``logsumexp_out_impl`` in ``aten/src/ATen/native/ReduceOps.cpp``, ``logsumexp_backward`` in
    ``torch/csrc/autograd/FunctionsManual.cpp``.
    """
    tape = x.tape
    node = tape.node((x,), _log_sum_exp_backward, (x.detached(),) if x.requires_grad else (), (x.shape, x.dtype))
    out = tape.tensor(x.shape[:-1], x.dtype, node)
    tape.save(node, out)
    with tape.charged_to(Kind.TEMPORARY):
        between = tape.tensor(x.shape, x.dtype)
    tape.move(5 * between.num_bytes, num_kernels=3)
    return out


def _log_sum_exp_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    shape, dtype = node.meta
    less, powers = g.tape.tensor(shape, dtype), g.tape.tensor(shape, dtype)
    out = g.tape.tensor(shape, dtype)
    g.tape.move(6 * out.num_bytes, num_kernels=3)
    del less, powers
    return (out,)


class SinkAttention(Attention):
    """``GraniteSWAAttention``: what attention returns is scaled by the share that the sink leaves."""

    def __init__(self, shape: DecoderShape, window: int | None, base: float) -> None:
        super().__init__(shape, window)
        self.base = base
        self.sinks = Parameter(shape.num_heads)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        q, k, v = self.heads(x)
        if self.base:
            q, k = self.positioned(q, k, context)
        return self.o_proj(self._attended(q, *cached(k, v), context.masks[self.window]))

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """``eager_attention_forward``; the layer has the weights until it ends."""
        batch, num_heads, num_tokens, head_dim = q.shape
        num_keys, several = k.shape[2], batch > 1
        keys, values = repeat_kv(k, num_heads), repeat_kv(v, num_heads)
        copies = several and k.shape[1] == num_heads
        scores = (batch, num_heads, num_tokens, num_keys)
        weights = product(q, keys, scores, head_dim, copies=(several, copies))
        weights = ops.scale(weights)
        weights = ops.add(weights, mask)
        left = ops.subtract(log_sum_exp(weights), ops.expand_weight(self.sinks, scores[:-1], q.tape))
        share = ops.sigmoid(ops.to(left, DType.FLOAT32))
        del left
        weights = ops.to(ops.softmax(weights, DType.FLOAT32), q.dtype)
        q.tape.layer_locals.append(weights.detached())
        out = product(weights, values, q.shape, num_keys, copies=(False, copies))
        out = ops.mul(out, ops.to(share.view(*scores[:-1], 1), out.dtype))
        out = ops.copy(out, batch, num_tokens, num_heads * head_dim)
        del keys, values, weights, share
        return out


class GraniteSwaLayer(GraniteLayer):
    """``GraniteSWADecoderLayer``."""

    def __init__(self, shape: DecoderShape, attention: SinkAttention) -> None:
        super().__init__(shape, attention=attention)


class GraniteMoeSwaLayer(GraniteMoeLayer):
    """``GraniteMoeSWADecoderLayer``."""

    def __init__(self, config: Config, shape: DecoderShape, attention: SinkAttention) -> None:
        super().__init__(config, shape, config.count("shared_intermediate_size"), attention=attention)


class GraniteSwaDecoder(GraniteDecoder):
    """``GraniteSWAModel``: each layer is called with its own mask and positions alone."""

    def __init__(self, config: Config, shape: DecoderShape, kinds: Sequence[LayerKind]) -> None:
        def layer(kind: LayerKind) -> Module:
            attention = SinkAttention(shape, *kind)
            if config.model_type == "granite_swa":
                return GraniteSwaLayer(shape, attention)
            return GraniteMoeSwaLayer(config, shape, attention)

        window = config.optional_integer("sliding_window")
        super().__init__(shape, stack_of_kinds(kinds, layer), masked_windows=(None, window))
        self.bases = sorted({base for _, base in kinds if base})

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        tape, backend = x.tape, replace(backend, implementation="eager")
        with tape.section("positions"):
            unused_masks = self.unused_masks(x, backend)
            masks = causal_masks(x, backend, self.windows)
            positions: dict[float, tuple[Tensor, Tensor]] = {}
            for base in self.bases:
                tape.prefetch()  # for the module of these positions
                positions[base] = self.positions(x)
            nothing = x.tape.tensor((0,), x.dtype)

        def context(layer: Any) -> RotaryContext:
            attention = layer.self_attn
            cos, sin = positions.get(attention.base, (nothing, nothing))
            return RotaryContext(backend, cos, sin, {attention.window: masks[attention.window]})

        hidden = self.layers.run(x, Calls(context))
        with tape.section("norm"):
            hidden = self.final_norm(hidden)
        del unused_masks
        return hidden


def bases_of_layers(config: Config, num_layers: int) -> Sequence[float]:
    """``layer_rope_theta``, of which 0 is for no positions; without it all layers have the same."""
    given: object = config.get("layer_rope_theta")
    if given is None:
        return (1.0,) * num_layers
    items = list(typing_cast("list[object]", given)) if isinstance(given, list | tuple) else [given]
    bases = [float(item) for item in items if isinstance(item, int | float)]
    if len(bases) != num_layers or len(items) != num_layers:
        raise InputError(f"config.json: layer_rope_theta has to have a number for each of {num_layers} layers")
    return bases


def decoder(config: Config) -> GraniteSwaDecoder:
    # ``GraniteSWAConfig.__post_init__``: every fourth layer sees everything.
    windows = windows_by_type(config, lambda index: index % 4 != 0)
    shape = replace(decoder_shape(config), windows=windows)
    bases = bases_of_layers(config, shape.num_layers)
    return GraniteSwaDecoder(config, shape, list(zip(windows, bases, strict=True)))


causal_lm = ScaledCausalLM
