"""Llama and the decoders built like it: llama, mistral, qwen2, qwen3 (text).

Source: transformers 5.23 ``models/llama/modeling_llama.py`` and the files derived from it.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from vlmplan.architecture import ops, trace
from vlmplan.architecture.attention import (
    attend,
    by_head,
    heads_together,
    position_rows,
    rotary_tables,
    values_by_head,
)
from vlmplan.architecture.attention_backend import PLAIN_SCORES, AttentionBackend, Scores
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.residual_layers import PreNormLayer
from vlmplan.architecture.layer_calls import Calls
from vlmplan.architecture.modules import Embedding, Linear, Module, RMSNorm, Stack
from vlmplan.architecture.tensor import ForwardTape, Tensor
from vlmplan.units import DType

Kind = TypeVar("Kind", bound=Hashable)
"""What tells the layers of one stack apart, such as the window of their attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """The dimensions of a Llama-like decoder."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norms_behind_projections: bool = False
    """With ``qk_norm``, whether queries and keys are normed when the values are there too."""
    activation: str = "silu"
    windows: tuple[int | None, ...] = ()
    """Attention window of each layer, None for full attention; empty: all full."""
    scores: Scores = PLAIN_SCORES


class RotaryContext:
    """What every layer of a stack is called with besides the hidden states."""

    __slots__ = ("backend", "cos", "masks", "sin")

    def __init__(
        self, backend: AttentionBackend, cos: Tensor, sin: Tensor, masks: Mapping[int | None, Tensor] | None = None
    ) -> None:
        self.backend, self.cos, self.sin, self.masks = backend, cos, sin, masks or {}

    def with_masks_of(self, windows: Iterable[int | None]) -> "RotaryContext":
        """The same with the masks of these windows alone."""
        masks = {window: self.masks[window] for window in windows if window in self.masks}
        return RotaryContext(self.backend, self.cos, self.sin, masks)

    def values(self, q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None) -> Tensor:
        """v as it was projected, of which attention within ``window`` will be."""
        return values_by_head(self.backend, q, k, v, has_mask=window in self.masks)

    def attended(
        self, q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, scores: Scores = PLAIN_SCORES
    ) -> Tensor:
        """Causal attention within ``window``, (batch, tokens, heads * width), where q lies in memory head by head, as a
        concatenation of rotated and other parts leaves it."""
        mask = self.masks.get(window)
        out = attend(self.backend, q, k, v, is_causal=True, mask=mask, scores=scores)
        return heads_together(self.backend, q, k, out, has_mask=mask is not None)


def causal_masks(x: Tensor, backend: AttentionBackend, windows: Iterable[int | None]) -> dict[int | None, Tensor]:
    """The masks that transformers builds before the layers run, by attention window; none where a flag does.

    sdpa skips a purely causal mask, and a window's while the sequence is shorter (``_ignore_causal_mask_sdpa``), but
    not where a row has several samples, which it tells by their positions (``find_packed_sequence_indices``); then it
    is boolean, one for all samples unless a mask of padding comes with them. Eager attention adds one in x's type.
    flash_attention_2 needs none. All are (batch, 1, t, t).
    """
    batch, num_tokens, _ = x.shape
    shape = (batch, 1, num_tokens, num_tokens)
    masks: dict[int | None, Tensor] = {}
    for window in dict.fromkeys(windows):
        if backend.implementation == "eager":
            with x.tape.charged_to(trace.Kind.TEMPORARY):
                seen = _seen(x.tape, (1, *shape[1:]), window, is_packed=backend.is_packed)
            masks[window] = x.tape.tensor(shape, x.dtype)
            del seen
        elif backend.implementation == "sdpa" and (backend.is_packed or (window is not None and num_tokens >= window)):
            rows = batch if backend.gets_mask else 1
            mask = _seen(x.tape, (rows, *shape[1:]), window, is_packed=backend.is_packed)
            masks[window] = ops.expand(mask, *shape)
    return masks


def _seen(tape: ForwardTape, shape: tuple[int, ...], window: int | None, *, is_packed: bool) -> Tensor:
    """Which keys each query sees: those up to it, and of these with a ``window`` those behind where that begins
    (``sliding_window_overlay`` and ``causal_mask_function`` in transformers' ``masking_utils.py``); ``is_packed``: and
    of these those of its own sample, which come first (``packed_sequence_compatibility_function``)."""
    if is_packed:
        with tape.charged_to(trace.Kind.TEMPORARY):
            equal = tape.tensor(shape, DType.BOOL)
            own = [tape.tensor(shape, DType.BOOL)]
            del equal
            own.append(_seen(tape, shape, window, is_packed=False))
        seen = tape.tensor(shape, DType.BOOL)
        del own
        return seen
    if window is None:
        return tape.tensor(shape, DType.BOOL)
    with tape.charged_to(trace.Kind.TEMPORARY):
        newer = tape.tensor((1, *shape[1:]), DType.BOOL)
        found = [tape.tensor(newer.shape, DType.BOOL)]
        del newer
        found.append(tape.tensor((1, *shape[1:]), DType.BOOL))
    seen = tape.tensor(shape, DType.BOOL)
    del found
    return seen


class Attention(Module):
    """Grouped-query attention with rotary positions; with ``qk_norm`` queries and keys are normed per head (Qwen3)."""

    head_norm: Any = RMSNorm
    rotates_in_place = False
    """Whether Liger's kernel rotates, whose gradients lie in rows."""
    has_positions = True
    """Whether queries and keys are rotated at all."""

    def __init__(self, shape: DecoderShape, window: int | None) -> None:
        self.shape, self.window = shape, window
        query_width = shape.num_heads * shape.head_dim
        key_width = shape.num_kv_heads * shape.head_dim
        self.q_proj = Linear(shape.hidden_size, query_width, bias=shape.qkv_bias)
        self.k_proj = Linear(shape.hidden_size, key_width, bias=shape.qkv_bias)
        self.v_proj = Linear(shape.hidden_size, key_width, bias=shape.qkv_bias)
        self.o_proj = Linear(query_width, shape.hidden_size, bias=shape.output_bias)
        if shape.qk_norm:
            self.q_norm = self.head_norm(shape.head_dim)
            self.k_norm = self.head_norm(shape.head_dim)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        q, k, v = self.heads(x)
        v = context.values(q, k, v, window=self.window)
        q, k = self.positioned(q, k, context)
        mask = context.masks.get(self.window)
        out = attend(context.backend, q, k, v, is_causal=True, mask=mask, scores=self.shape.scores)
        return self.o_proj(out)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of x, (batch, heads, tokens, head_dim), before positions enter them."""
        batch, num_tokens, _ = x.shape
        shape = self.shape
        norms_each = shape.qk_norm and not shape.norms_behind_projections
        q = self.by_head(self.q_proj(x), shape.num_heads)
        if norms_each:
            q = self.q_norm(q)
        k = self.by_head(self.k_proj(x), shape.num_kv_heads)
        if norms_each:
            k = self.k_norm(k)
        v = self.v_proj(x).view(batch, shape.num_kv_heads, num_tokens, shape.head_dim)
        if shape.qk_norm and not norms_each:
            q = self.q_norm(q)
            k = self.k_norm(k)
        return q, k, v

    def by_head(self, x: Tensor, num_heads: int) -> Tensor:
        """Queries or keys (batch, tokens, heads * head_dim) seen by head."""
        if self.has_positions and not self.rotates_in_place:
            return by_head(x, num_heads)
        batch, num_tokens, width = x.shape
        return x.view(batch, num_heads, num_tokens, width // num_heads)

    def positioned(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        """``apply_rotary_pos_emb``."""
        if self.rotates_in_place:
            return ops.liger_rotate(q, context.cos, context.sin), ops.liger_rotate(k, context.cos, context.sin)
        return ops.rotate(q, context.cos, context.sin), ops.rotate(k, context.cos, context.sin)


class GatedMlp(Module):
    """``down(act(gate(x)) * up(x))``."""

    is_fused = False
    """Whether activation and product are Liger's kernel."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, *, activation: str = "silu", bias: bool = False
    ) -> None:
        self.gate_proj = Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias)
        self.act_fn = ops.activation_module(activation)
        self.is_swiglu = activation in ("silu", "swish") and not bias

    @property
    def _fused_weights(self) -> list[ops.AdaptedWeight]:
        """Of gate, up and down, where all have adapters that run with them as one operation; else none."""
        layers: list[Any] = [self.gate_proj, self.up_proj, self.down_proj]
        found = [getattr(layer, "fused_weight", None) for layer in layers]
        return [one for one in found if one is not None] if self.is_swiglu and None not in found else []

    def forward(self, x: Tensor) -> Tensor:
        if self.is_fused:
            return self.down_proj(ops.liger_silu_mul(self.gate_proj(x), self.up_proj(x)))
        weights = self._fused_weights
        if weights and not x.tape.switches_adapters_off:
            return ops.adapted_swiglu(x, *weights)
        return self.down_proj(ops.mul(self.act_fn(self.gate_proj(x)), self.up_proj(x)))


class DecoderLayer(PreNormLayer):
    """Pre-norm attention and MLP, each added to the residual; ``attention`` and ``mlp`` where they are others."""

    attention: Any = Attention
    norm: Any = RMSNorm

    def __init__(
        self,
        shape: DecoderShape,
        window: int | None = None,
        *,
        attention: Module | None = None,
        mlp: Module | None = None,
    ) -> None:
        self.self_attn: Any = self.attention(shape, window) if attention is None else attention
        self.mlp = mlp or GatedMlp(
            shape.hidden_size, shape.intermediate_size, activation=shape.activation, bias=shape.mlp_bias
        )
        self.input_layernorm = self.norm(shape.hidden_size)
        self.post_attention_layernorm = self.norm(shape.hidden_size)


def stack_of_kinds(kinds: Sequence[Kind], layer: Callable[[Kind], Module], label: str = "layers") -> Stack:
    """Layers of these ``kinds`` in their order, one module for each kind."""
    distinct = list(dict.fromkeys(kinds))
    return Stack([layer(kind) for kind in distinct], [distinct.index(kind) for kind in kinds], label=label)


class Decoder(Module):
    """``LlamaModel`` and those like it: embedding, layers, final norm."""

    NORM = "norm"
    """What the model calls its final norm."""
    ROTARY_MODULES = ("rotary_emb",)

    def __init__(
        self,
        shape: DecoderShape,
        layers: Stack | None = None,
        *,
        norm: Callable[[int], Module] = RMSNorm,
        rotary_width: int | None = None,
        rotary_dtype: DType | None = None,
        masked_windows: tuple[int | None, ...] = (),
    ) -> None:
        """``norm`` makes the final norm. ``rotary_width``: of cos and sin, where it is not that of a head;
        ``rotary_dtype``: theirs, where it is not the model's type. ``masked_windows``: of which the model builds a mask
        whether or not a layer has them."""
        self.shape = shape
        self.embed_tokens = Embedding(shape.vocab_size, shape.hidden_size)
        self.windows = shape.windows or (None,) * shape.num_layers
        self.masked_windows = masked_windows
        self.rotary_width, self.rotary_dtype = rotary_width or shape.head_dim, rotary_dtype
        self.layers = layers or stack_of_kinds(self.windows, lambda window: DecoderLayer(shape, window))
        setattr(self, self.NORM, norm(shape.hidden_size))

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.embed_tokens(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        tape = x.tape
        with tape.section("positions"):
            unused_masks = self.unused_masks(x, backend)
            tape.prefetch()  # for the module of the positions
            context_of = self.contexts(x, backend)
        hidden = self.layers.run(self.entering(x), Calls(context_of))
        with tape.section("norm"):
            hidden = self.final_norm(hidden)
        del unused_masks
        return hidden

    def entering(self, x: Tensor) -> Tensor:
        """What the first layer gets of x, the embeddings, which stay until ``forward`` returns."""
        return x

    def contexts(self, x: Tensor, backend: AttentionBackend) -> Callable[[Any], RotaryContext]:
        """What each layer is called with: the positions, and the mask that it has a use for
        (``causal_mask_mapping[self.config.layer_types[i]]``), which is all that it keeps where it runs again."""
        masks = causal_masks(x, backend, self.windows)  # before the positions
        context = RotaryContext(backend, *self.positions(x), masks)
        return lambda layer: context.with_masks_of(self.windows_of(layer))

    def windows_of(self, layer: Any) -> Sequence[int | None]:
        """The windows of the masks that a layer is given: that of its attention, none where it has no attention."""
        attention = getattr(layer, "self_attn", None)
        return () if attention is None else (getattr(attention, "window", None),)

    @property
    def final_norm(self) -> Module:
        return self.modules_by_name[self.NORM]

    def unused_masks(self, x: Tensor, backend: AttentionBackend) -> dict[int | None, Tensor]:
        """Masks that live until the model returns, unlike the others, which checkpointed layers keep."""
        return causal_masks(x, backend, [window for window in self.masked_windows if window not in self.windows])

    def positions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin."""
        shape = (position_rows(x), 1, x.shape[1], self.rotary_width)
        return rotary_tables(x.tape, shape, self.rotary_dtype or x.dtype)


def decoder_shape(config: Config) -> DecoderShape:
    """The shape of a decoder from its Hugging Face text config."""
    model_type = config.model_type
    num_heads = config.integer("num_attention_heads")
    hidden_size = config.integer("hidden_size")
    attention_bias = config.boolean("attention_bias")
    return DecoderShape(
        hidden_size=hidden_size,
        # Where every layer has experts there may be no other width.
        intermediate_size=config.integer("intermediate_size", config.optional_integer("moe_intermediate_size")),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", num_heads),
        head_dim=config.integer("head_dim", hidden_size // num_heads),
        vocab_size=config.integer("vocab_size"),
        qkv_bias=model_type in QKV_BIAS or attention_bias,
        output_bias=model_type not in QKV_BIAS and attention_bias,
        mlp_bias=config.boolean("mlp_bias"),
        qk_norm=model_type in ("qwen3", "qwen3_vl_text"),
        activation=config.text("hidden_act", "silu"),
        windows=layer_windows(config),
        scores=Scores(dropout=config.number("attention_dropout")),
    )


def layer_windows(config: Config) -> tuple[int | None, ...]:
    """Width of the attention window of each layer, None where it sees everything before it.

    ``layer_types`` decides where it is given; else all layers slide (Mistral), or those from ``max_window_layers`` on
    where ``use_sliding_window`` says so (Qwen2).
    """
    num_layers = config.integer("num_hidden_layers")
    window = config.optional_integer("sliding_window")
    model_type = config.model_type
    if model_type.startswith("qwen") and not config.boolean("use_sliding_window"):
        window = None
    if window is None:
        return (None,) * num_layers
    layer_types = config.layer_types()
    if layer_types is not None:
        return tuple(window if kind == "sliding_attention" else None for kind in layer_types)
    if model_type.startswith("qwen"):
        first = config.integer("max_window_layers", num_layers)
        return tuple(window if index >= first else None for index in range(num_layers))
    return (
        (window,) * num_layers if model_type in ("ministral3", "mistral", "mixtral", "phi3") else (None,) * num_layers
    )


def windows_by_type(config: Config, slides: Callable[[int], bool]) -> tuple[int | None, ...]:
    """The window of each layer where ``layer_types`` says which slide, or ``slides`` of the layer's index does."""
    num_layers = config.integer("num_hidden_layers")
    window = config.optional_integer("sliding_window")
    layer_types = config.layer_types()
    if layer_types is None:
        return tuple(window if slides(index) else None for index in range(num_layers))
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types)


QKV_BIAS = ("qwen2", "qwen2_vl_text", "qwen2_5_omni_text", "qwen2_5_vl_text")
"""Decoders with biases on q, k, v and none on the output projection, whatever the config says."""


def decoder(config: Config) -> Decoder:
    return Decoder(decoder_shape(config))
