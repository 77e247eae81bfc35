"""Llama 4's language model: layers with and without positions, and experts that each see every token.

Source: transformers 5.23 ``models/llama4/modeling_llama4.py``. The router's scores, zero for experts that a token did
not choose, weight what goes into the experts: every expert computes all tokens, N * E rows in two batched products.
The router is a Linear that returns two tensors, which peft 0.21 cannot add to (its layer asks the result for its dtype
and fails on a tuple); bitsandbytes leaves it in 16 bit, as it is a class derived from ``nn.Linear``. Seen with a small
model on CPU: LoRA and QLoRA on all Linears fail, and train where the router is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, by_kernel, writes_by_head
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.containers import call_container
from vlmplan.architecture.families.latent_attention import complex_positions
from vlmplan.architecture.families.llama import (
    Decoder,
    DecoderShape,
    GatedMlp,
    RotaryContext,
    decoder_shape,
    stack_of_kinds,
)
from vlmplan.architecture.families.moe import added_in_place, expert_products_backward, top, written_anew
from vlmplan.architecture.modules import DerivedLinear, Linear, Module, RMSNorm, Stack
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.parameter_adapters import AdaptableModule
from vlmplan.architecture.read_weights import ReadingModule, WeightsOfReader
from vlmplan.architecture.tensor import Operand, Tensor
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

CHUNKED, FULL = "chunked_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What tells layers apart: whether they rotate, norm heads and scale queries, how far they see, their experts."""

    rotates: bool
    norms_heads: bool
    scales_queries: bool
    window: int | None
    has_experts: bool


class Norm(RMSNorm):
    """``Llama4TextRMSNorm``: the weight is applied in the input's type; what was cast for it goes before."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.mul(l2_normed(x), self.weight)


def l2_normed(x: Tensor) -> Tensor:
    """``Llama4TextL2Norm``: a norm without a weight, in float32."""
    return ops.to(ops.weightless_rms_norm(ops.to(x, DType.FLOAT32)), x.dtype)


class Llama4Attention(Module):
    """``Llama4TextAttention``."""

    def __init__(self, shape: DecoderShape, kind: LayerKind) -> None:
        self.shape, self.kind, self.window = shape, kind, kind.window
        query_width, key_width = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = Linear(shape.hidden_size, query_width, bias=shape.qkv_bias)
        self.k_proj = Linear(shape.hidden_size, key_width, bias=shape.qkv_bias)
        self.v_proj = Linear(shape.hidden_size, key_width, bias=shape.qkv_bias)
        self.o_proj = Linear(query_width, shape.hidden_size, bias=shape.qkv_bias)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        shape, kind = self.shape, self.kind
        keys = (batch, shape.num_kv_heads, num_tokens, shape.head_dim)
        q = self.q_proj(x).view(batch, shape.num_heads, num_tokens, shape.head_dim)
        k = self.k_proj(x).view(*keys)
        v = self.v_proj(x).view(*keys)
        mask = context.masks.get(self.window)
        if kind.rotates:
            moves = writes_by_head(context.backend, q, k, v, has_mask=mask is not None)
            v = ops.in_rows(v, *v.shape) if moves[1] else v
            q, k = rotated_as_complex(q, k, context.cos, moves=moves)
        else:
            q, k, v = by_kernel(context.backend, q, k, v, has_mask=mask is not None)
        if kind.norms_heads:
            q = l2_normed(q)
            k = l2_normed(k)
        if kind.scales_queries:
            q = ops.to(ops.mul(q, x.tape.tensor((1, 1, num_tokens, 1), DType.FLOAT32)), q.dtype)
        return self.o_proj(attend(context.backend, q, k, v, is_causal=True, mask=mask, scores=shape.scores))


def rotated_as_complex(q: Tensor, k: Tensor, positions: Tensor, *, moves: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
    """``apply_rotary_emb``: pairs of elements times a complex number in float32; both are cast back at the end.
    ``moves``: which of their gradients come head after head, and are copied into rows (``ViewAsRealBackward0``)."""
    wide_q, wide_k = ops.to(q, DType.FLOAT32), ops.to(k, DType.FLOAT32)
    q_out = ops.mul(wide_q, positions)
    if moves[0]:
        q_out = ops.in_rows(q_out, *q_out.shape)
    k_out = ops.mul(wide_k, positions)
    if moves[1]:
        k_out = ops.in_rows(k_out, *k_out.shape)
    return ops.to(q_out, q.dtype), ops.to(k_out, k.dtype)


class Llama4Router(DerivedLinear):
    """``Llama4Router``: (scores, logits) of all experts."""

    def __init__(self, hidden_size: int, num_experts: int, num_per_token: int) -> None:
        super().__init__(hidden_size, num_experts)
        self.num_per_token = num_per_token

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self(x)
        values, indices = top(logits, self.num_per_token)
        scattered = _scattered(values, indices, logits.shape)
        scores = ops.to(ops.sigmoid(ops.to(scattered, DType.FLOAT32)), scattered.dtype)
        return scores, logits


def _scattered(values: Tensor, indices: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``full_like(...).scatter_(1, indices, values)``: saves the indices; the gradient is gathered."""
    tape = values.tape
    node = tape.node((values,), written_anew, (indices.detached(),), (values.shape, values.dtype))
    out = tape.tensor(shape, values.dtype, node)
    tape.move(out.num_bytes + 2 * values.num_bytes + indices.num_bytes)
    return out


class Llama4Experts(AdaptableModule):
    """``Llama4TextExperts``: x (E * N, width), the rows of each expert behind those of the one before."""

    is_transposed = True

    def __init__(self, num_experts: int, hidden_size: int, inner: int, activation: str) -> None:
        self.gate_up_proj = Parameter(num_experts, hidden_size, 2 * inner)
        self.down_proj = Parameter(num_experts, inner, hidden_size)
        self.act_fn = ops.activation_module(activation)

    def forward(self, x: Tensor) -> Tensor:
        gate_up = batched_product(x, self.weight_of("gate_up_proj"))
        half = (gate_up.shape[0], gate_up.shape[1] // 2)
        gate, up = ops.split(gate_up, half, half)
        return batched_product(ops.mul(up, self.act_fn(gate)), self.weight_of("down_proj"))


def batched_product(x: Tensor, weight: Operand) -> Tensor:
    """``torch.bmm`` of x (E * n, in) and (E, in, out), (E * n, out): saves each if the other needs a gradient.

    The weight's gradient comes first (``bmm(self, mat2)``); autocast casts both.
    """
    tape = x.tape
    if tape.autocast is not None:
        weight = ops.cast_weight(weight, tape.autocast, tape)
        x = ops.to(x, tape.autocast)
    num_experts, in_width, out_width = weight.shape
    kept = weight if isinstance(weight, Parameter) else weight.detached()
    saved = (x.detached() if weight.requires_grad else None, kept if x.requires_grad else None)
    node = tape.node((x, weight), expert_products_backward, saved, (x.shape, weight.shape, x.dtype))
    out = tape.tensor((x.shape[0], out_width), x.dtype, node)
    weight_bytes = num_experts * in_width * out_width * x.dtype.num_bytes
    tape.matmul(2 * x.shape[0] * in_width * out_width, x.num_bytes + weight_bytes + out.num_bytes, x.dtype)
    return out


class Llama4Mlp(GatedMlp):
    """``Llama4TextMLP``."""

    ACTIVATION_NAME = "activation_fn"


class Llama4Moe(Module):
    """``Llama4TextMoe``: routed experts, and one that sees every token as it is."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        width, inner = shape.hidden_size, shape.intermediate_size
        num_experts = config.integer("num_local_experts")
        self.num_experts = num_experts
        self.experts = Llama4Experts(num_experts, width, inner, shape.activation)
        self.router: Any = Llama4Router(width, num_experts, config.integer("num_experts_per_tok"))
        self.shared_expert = Llama4Mlp(width, inner, activation=shape.activation)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The result, and the router's logits, which live to the end of the layer."""
        if not isinstance(self.router, Llama4Router):
            raise InputError(
                "Llama 4's router cannot take an adapter: peft fails on its two results; give --lora-exclude router"
            )
        width = x.shape[-1]
        flat = x.view(x.numel // width, width)
        num_tokens, num_rows = flat.shape[0], flat.shape[0] * self.num_experts
        scores, logits = self.router.routed(flat)
        routed_in = _repeated(flat, self.num_experts)
        routed_in = ops.mul(routed_in, ops.copy(scores, num_rows, 1))  # the scores of each expert, transposed
        routed_out = self.experts(routed_in)
        out = self.shared_expert(flat)
        return added_in_place(out, sum_of_experts(routed_out, num_tokens, width)), logits


def sum_of_experts(x: Tensor, *shape: int) -> Tensor:
    """The sum over experts of x (E * N, width), under autocast in float32 (``AT_FORALL_FP32_SET_OPT_DTYPE`` in
    ``aten/src/ATen/autocast_mode.h``). Saves nothing; its gradient is g, expanded and written out in x's type: by the
    cast to that, or where there is none by ``reshape``."""
    tape = x.tape
    node = tape.node((x,), written_anew, meta=(x.shape, x.dtype))
    out = tape.tensor(shape, x.dtype if tape.autocast is None else DType.FLOAT32, node)
    tape.move(x.num_bytes + out.num_bytes)
    return out


def _repeated(x: Tensor, times: int) -> Tensor:
    """``x.repeat(times, 1)``: saves nothing; its gradient is summed over the copies."""
    tape = x.tape
    node = tape.node((x,), written_anew, (), (x.shape, x.dtype))
    out = tape.tensor((times * x.shape[0], x.shape[1]), x.dtype, node)
    tape.move(2 * out.num_bytes)
    return out


class Llama4Layer(Module):
    """``Llama4TextDecoderLayer``."""

    def __init__(self, config: Config, shape: DecoderShape, kind: LayerKind) -> None:
        self.self_attn = Llama4Attention(shape, kind)
        inner = config.integer("intermediate_size_mlp")
        mlp: Module = Llama4Mlp(shape.hidden_size, inner, activation=shape.activation)
        self.feed_forward: Any = Llama4Moe(config, shape) if kind.has_experts else mlp
        self.has_experts = kind.has_experts
        self.input_layernorm = Norm(shape.hidden_size)
        self.post_attention_layernorm = Norm(shape.hidden_size)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        attended = self.self_attn(x, context)
        x = ops.add(residual, attended)
        residual = x
        x = self.post_attention_layernorm(x)
        logits = None
        if self.has_experts:
            x, logits = self.feed_forward(x)
        else:
            x = self.feed_forward(x)
        x = ops.add(residual, x.view(*residual.shape))
        del attended, logits
        return x


class Llama4Decoder(ReadingModule, Decoder):
    """``Llama4TextModel``: it makes the masks of both kinds of layers, whether or not there are some."""

    takes_ids = True
    """It embeds token ids, and reads the embedding's weight for the device that they go to; False: the model around it
    embeds them."""

    def read_modules(self) -> Sequence[Module]:
        return (self.embed_tokens,)

    def __call__(self, x: Tensor, *args: Any) -> Any:
        return Module.__call__(self, x, *args)

    def __init__(self, shape: DecoderShape, layers: Stack, chunk: int) -> None:
        super().__init__(shape, layers, norm=Norm, masked_windows=(None, chunk))

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        """A chunk's mask asks how much padding each sample has, where none is said too
        (``create_chunked_causal_mask``)."""
        run = partial(super().forward, x, replace(backend, gets_mask=True))
        if not self.takes_ids or not x.tape.fetches_weights:
            return run()
        return call_container(x.tape, WeightsOfReader(self), run, has_input_grad=False)

    def positions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        positions = complex_positions(x, self.shape.head_dim)
        return positions, positions


def layer_kinds(config: Config, chunk: int) -> list[LayerKind]:
    """The kind of each layer, as ``Llama4TextConfig`` completes the file."""
    num_layers = config.integer("num_hidden_layers")
    interval = config.integer("no_rope_layer_interval")
    rotates = config.integers("no_rope_layers") or tuple(int((i + 1) % interval != 0) for i in range(num_layers))
    if len(rotates) < num_layers:
        raise not_allowed(CONFIG, "no_rope_layers", list(rotates), f"a list of {num_layers} numbers, one a layer")
    step = config.integer("interleave_moe_layer_step")
    sparse = config.integers("moe_layers")
    if config.get("moe_layers") is None:
        sparse = tuple(range(step - 1, num_layers, step))
    types = config.layer_types() or tuple(CHUNKED if rotates[i] else FULL for i in range(num_layers))
    if not set(types) <= {CHUNKED, FULL}:
        raise not_allowed(CONFIG, "layer_types", sorted(set(types)), f"names out of {CHUNKED} and {FULL}")
    norms, scales = config.boolean("use_qk_norm"), config.boolean("attn_temperature_tuning")
    return [
        LayerKind(
            bool(rotates[index]),
            norms and bool(rotates[index]),
            scales and not rotates[index],
            chunk if types[index] == CHUNKED else None,
            index in sparse,
        )
        for index in range(num_layers)
    ]


def decoder(config: Config) -> Llama4Decoder:
    """``Llama4TextModel``."""
    chunk = config.integer("attention_chunk_size")
    kinds = layer_kinds(config, chunk)
    shape = replace(
        decoder_shape(config),
        qkv_bias=config.boolean("attention_bias"),
        windows=tuple(kind.window for kind in kinds),
        scores=Scores(dropout=config.number("attention_dropout"), upcasts=False, casts_back=False),
    )
    layers = stack_of_kinds(kinds, lambda kind: Llama4Layer(config, shape, kind))
    return Llama4Decoder(shape, layers, chunk)
