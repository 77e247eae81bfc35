"""Gemma 4 text decoders: dense, with experts, or with embeddings of their own for each layer and shared keys.

Source: transformers 5.23 ``models/gemma4/modeling_gemma4.py``. Against Gemma 3: norms multiply by their weight alone,
values are normed too; layers that see everything have wider heads (``global_head_dim``), and where ``attention_k_eq_v``
their keys are their values. Small ones (E2B, E4B) give every layer a part of a second embedding of each token, and
their last layers attend over the keys and values of the last layer of their type before them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.causal_lm import CappedCausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gemma import Masks, ScaledEmbedding
from vlmplan.architecture.families.gemma4_experts import Gemma4Norm, Mixture, mixture
from vlmplan.architecture.families.gemma4_shape import (
    FULL,
    SLIDING,
    Gemma4Shape,
    LayerKind,
    Sharing,
    gemma4_shape,
)
from vlmplan.architecture.families.llama import GatedMlp, causal_masks, stack_of_kinds
from vlmplan.architecture.layer_calls import Calls
from vlmplan.architecture.modules import Embedding, Linear, Module
from vlmplan.architecture.tensor import GraphNode, Tensor


@dataclass(slots=True)
class Gemma4Context:
    """What every layer is called with besides the hidden states: positions and masks by its type, and what
    ``shared_kv_states`` holds."""

    backend: AttentionBackend
    positions: dict[str, tuple[Tensor, Tensor]]
    masks: dict[str, Tensor | None]
    shared: dict[str, Any] = field(default_factory=dict[str, Any])

    def of_layer(self, layer: Any) -> "Gemma4Context":
        """The same with the positions and the mask of a layer's type alone, which are all that it keeps of them where
        it runs again (``causal_mask_mapping[self.config.layer_types[i]]``)."""
        name = layer.kind.layer_type
        return replace(self, positions={name: self.positions[name]}, masks={name: self.masks[name]})


class Gemma4Attention(Module):
    """``Gemma4TextAttention``: scores are not scaled, queries, keys and values are normed per head."""

    def __init__(self, shape: Gemma4Shape, kind: LayerKind) -> None:
        self.shape, self.kind = shape, kind
        width, bias = shape.hidden_size, shape.has_bias
        self.q_proj = Linear(width, shape.num_heads * kind.head_dim, bias=bias)
        self.q_norm = Gemma4Norm(kind.head_dim)
        self.has_values = not (shape.keys_are_values and kind.layer_type == FULL)
        if kind.sharing is not Sharing.REUSE:
            self._own_keys_and_values(width, kind.num_kv_heads * kind.head_dim, bias=bias)
        self.o_proj = Linear(shape.num_heads * kind.head_dim, width, bias=bias)

    def forward(self, x: Tensor, context: Gemma4Context, shared: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The result, and where they are stored for other layers, keys and values. ``shared``: those of another."""
        batch, num_tokens, _ = x.shape
        kind, shape = self.kind, self.shape
        cos, sin = context.positions[kind.layer_type]
        q = self.q_proj(x).view(batch, shape.num_heads, num_tokens, kind.head_dim)
        q = self.q_norm(q)
        q = ops.rotate(q, cos, sin)
        k, v = shared if kind.sharing is Sharing.REUSE else self._keys_and_values(x, cos, sin)
        mask = context.masks[kind.layer_type]
        is_own = kind.sharing is not Sharing.REUSE
        scores = shape.scores
        out = attend(context.backend, q, k, v, is_causal=True, mask=mask, scores=scores, is_cached=is_own)
        out = self.o_proj(out)
        return (out, k, v) if kind.sharing is Sharing.STORE else (out,)

    def _own_keys_and_values(self, width: int, key_width: int, *, bias: bool) -> None:
        self.k_norm = Gemma4Norm(self.kind.head_dim)
        self.v_norm = Gemma4Norm(None)
        self.k_proj = Linear(width, key_width, bias=bias)
        if self.has_values:
            self.v_proj = Linear(width, key_width, bias=bias)

    def _keys_and_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        batch, num_tokens, _ = x.shape
        heads = (batch, self.kind.num_kv_heads, num_tokens, self.kind.head_dim)
        k = self.k_proj(x).view(*heads)
        v = self.v_proj(x).view(*heads) if self.has_values else k
        k = self.k_norm(k)
        k = ops.rotate(k, cos, sin)
        v = self.v_norm(v)
        return k, v


class Gemma4Layer(Module):
    """``Gemma4TextDecoderLayer``."""

    def __init__(self, shape: Gemma4Shape, experts: Mixture | None, kind: LayerKind) -> None:
        self.kind, width = kind, shape.hidden_size
        self.self_attn = Gemma4Attention(shape, kind)
        self.mlp = GatedMlp(width, kind.intermediate_size, activation=shape.activation)
        self.input_layernorm = Gemma4Norm(width)
        self.post_attention_layernorm = Gemma4Norm(width)
        self.pre_feedforward_layernorm = Gemma4Norm(width)
        self.post_feedforward_layernorm = Gemma4Norm(width)
        if shape.per_layer_width:
            self.act_fn = ops.activation_module(shape.activation)
            self.per_layer_input_gate = Linear(width, shape.per_layer_width)
            self.per_layer_projection = Linear(shape.per_layer_width, width)
            self.post_per_layer_input_norm = Gemma4Norm(width)
        self.has_experts = experts is not None
        if experts is not None:
            self.router, self.experts = experts.router, experts.experts
            self.post_feedforward_layernorm_1 = Gemma4Norm(width)
            self.post_feedforward_layernorm_2 = Gemma4Norm(width)
            self.pre_feedforward_layernorm_2 = Gemma4Norm(width)

    def forward(
        self, x: Tensor, context: Gemma4Context, per_layer: Tensor | None = None, shared: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """The last operation, which saves its factor, is the layer's own: there backward runs the layer again, and what
        that gathers goes when the layer's backward is over."""
        x.tape.enter_block()
        residual = x
        x = self.input_layernorm(x)
        x, *stored = self.self_attn(x, context, shared)
        if stored:
            store(context, self.kind.layer_type, stored)
        x = self.post_attention_layernorm(x)
        x = ops.add(residual, x)
        residual = x
        x = self.pre_feedforward_layernorm(x)
        x = self.mlp(x)
        held = None
        if self.has_experts:
            x, held = self._with_experts(x, residual)
        x = self.post_feedforward_layernorm(x)
        x = ops.add(residual, x)
        if per_layer is not None:
            residual = x
            x = self.per_layer_input_gate(x)
            x = self.act_fn(x)
            x = ops.mul(x, per_layer)
            x = self.per_layer_projection(x)
            x = self.post_per_layer_input_norm(x)
            x = ops.add(residual, x)
        del held
        layer_scalar = Tensor(x.tape.tensor((0,), x.dtype).storage, (1,), x.dtype)  # a buffer of the model
        x = ops.scale_in_place(x, layer_scalar)
        x.tape.leave_block()
        return (x, *stored)

    def _with_experts(self, x: Tensor, residual: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The sum of the MLP's result x and the experts', and what the layer's local variables hold until it ends."""
        first = self.post_feedforward_layernorm_1(x)
        flat = residual.view(residual.numel // residual.shape[-1], residual.shape[-1])
        probabilities, scores, indices = self.router(flat)
        second = self.pre_feedforward_layernorm_2(flat)
        second = self.experts(second, indices, scores)
        second = self.post_feedforward_layernorm_2(second.view(*residual.shape))
        return ops.add(first, second), [first, second, probabilities, scores, indices]


def store(context: Gemma4Context, layer_type: str, stored: list[Tensor]) -> None:
    """Keys and values in ``shared_kv_states``, which every layer's frame holds.

    A checkpointed layer puts them there once more when it runs again. With their graph: what that has saved is held
    until the frames of the layers before are gone.
    """
    is_packing = stored[0].tape.is_packing
    graph = [] if is_packing else _saved_below([x.node for x in stored])
    context.shared[layer_type] = (*[x.detached() for x in stored], *graph)


def _saved_below(roots: Sequence[GraphNode | None]) -> list[Tensor]:
    """What the nodes below these have saved, up to the inputs of their layer."""
    pending = [node for node in roots if node is not None]
    section = pending[0].section if pending else ""
    seen: set[GraphNode] = set()
    saved: list[Tensor] = []
    while pending:
        node = pending.pop()
        if node in seen or node.section != section:
            continue
        seen.add(node)
        saved += [x.detached() for x in node.saved if isinstance(x, Tensor)]
        pending += [edge[0] for edge in node.inputs if isinstance(edge, tuple)]
    return saved


class Gemma4Decoder(Module):
    """``Gemma4TextModel``."""

    ROTARY_MODULES = ("rotary_emb",)

    def __init__(self, shape: Gemma4Shape, config: Config) -> None:
        self.shape = shape
        self.embed_tokens = ScaledEmbedding(shape.vocab_size, shape.hidden_size)
        self.layers = stack_of_kinds(shape.kinds, lambda kind: self._layer(config, kind))
        self.norm = Gemma4Norm(shape.hidden_size)
        if shape.per_layer_width:
            whole_width = shape.num_layers * shape.per_layer_width
            self.embed_tokens_per_layer: Embedding = ScaledEmbedding(shape.per_layer_vocab_size, whole_width)
            self.per_layer_model_projection = Linear(shape.hidden_size, whole_width)
            self.per_layer_projection_norm = Gemma4Norm(shape.per_layer_width)

    def _layer(self, config: Config, kind: LayerKind) -> Module:
        return Gemma4Layer(self.shape, mixture(config), kind)

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.embed_tokens(ids)

    def embed_per_layer(self, ids: Tensor) -> Tensor | None:
        """``get_per_layer_inputs``: (batch, tokens, layers * width); None where layers get none."""
        if not self.shape.per_layer_width:
            return None
        with ids.tape.section("embedding_per_layer"):
            return self.embed_tokens_per_layer(ids)

    def forward(
        self, x: Tensor, per_layer: list[Tensor], backend: AttentionBackend, masks: Masks | None = None
    ) -> Tensor:
        """``per_layer``: the second embedding, emptied, so that nothing else holds it. ``masks`` as of ``causal_masks``
        where the caller has made them."""
        tape = x.tape
        parts = self._project(x, per_layer) if per_layer else None
        with tape.section("positions"):
            by_type = self._masks(x, backend, masks)
            context = Gemma4Context(backend, self._positions(x), by_type)
        if parts is None and all(kind.sharing is Sharing.NONE for kind in self.shape.kinds):
            hidden = self.layers.run(x, Calls(context.of_layer, _run_plain_layer))
        else:
            hidden = self._run_layers(x, parts, context)
        with tape.section("norm"):
            return self.norm(hidden)

    def _masks(self, x: Tensor, backend: AttentionBackend, masks: Masks | None) -> dict[str, Tensor | None]:
        """The masks of layers by their type, made here where the caller has not."""
        if masks is None:
            masks = causal_masks(x, backend, (None, self.shape.window))
        return {FULL: masks.get(None), SLIDING: masks.get(self.shape.window)}

    def _project(self, x: Tensor, per_layer: list[Tensor]) -> Tensor:
        """``project_per_layer_inputs``: (batch, tokens, layers, width) of the embedding and of x itself."""
        with x.tape.section("per_layer_projection"):
            own = per_layer.pop()
            shape = (*x.shape[:-1], self.shape.num_layers, self.shape.per_layer_width)
            out = self._projected(x).view(*shape)
            out = self.per_layer_projection_norm(out)
            return ops.scale(ops.add(out, own.view(*shape)))

    def _projected(self, x: Tensor) -> Tensor:
        return ops.scale(self.per_layer_model_projection(x))

    def _run_layers(self, x: Tensor, parts: Tensor | None, context: Gemma4Context) -> Tensor:
        """x through layers that get parts of one embedding, and of which the last share keys and values."""
        layers, kinds = self.layers, self.shape.kinds
        stored = [at for at, kind in enumerate(kinds) if kind.sharing is Sharing.STORE]
        num_own = len(kinds) - self.shape.num_shared
        first_stored = min(stored, default=num_own)
        every_kind = range(len(layers.kinds))

        def part_of(index: int) -> tuple[Tensor, ...]:
            return () if parts is None else (ops.part(parts, *parts.shape[:-2], self.shape.per_layer_width),)

        run = Calls(context.of_layer, partial(_run_layer, has_part=parts is not None))
        later = range(first_stored, len(kinds))
        x = layers.run_each(x, run, sharing=every_kind, skipped=later, own_inputs=part_of)
        keys: dict[str, tuple[Tensor, ...]] = {}
        for index in range(first_stored, num_own):
            x, *own = layers.run_one(index, run, x, *part_of(index))
            if own:
                keys[kinds[index].layer_type] = tuple(own)

        def own_inputs(index: int) -> tuple[Tensor, ...]:
            return (*part_of(index), *keys[kinds[index].layer_type])

        return layers.run_each(x, run, sharing=every_kind, skipped=range(num_own), own_inputs=own_inputs)

    def _positions(self, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """cos and sin in the model's type, by the type of the layers."""
        widths = {kind.layer_type: kind.head_dim for kind in self.shape.kinds}
        shapes = {name: (1, 1, x.shape[1], widths[name]) for name in self.shape.layer_types}
        return {name: (x.tape.tensor(shape, x.dtype), x.tape.tensor(shape, x.dtype)) for name, shape in shapes.items()}


def _run_plain_layer(context: Gemma4Context, layer: Any, x: Tensor) -> Tensor:
    return layer(x, context)[0]


def _run_layer(context: Gemma4Context, layer: Any, x: Tensor, *others: Tensor, has_part: bool) -> Any:
    per_layer = others[0] if has_part else None
    result = layer(x, context, per_layer, others[1:] if has_part else others)
    return result if len(result) > 1 else result[0]


def decoder(config: Config) -> Gemma4Decoder:
    return Gemma4Decoder(gemma4_shape(config), config)


class Gemma4Text(CappedCausalLM):
    """``Gemma4ForCausalLM``."""

    def last_hidden_state(self, batch: Any, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        x = self.decoder.embed(ids)
        per_layer = self.decoder.embed_per_layer(ids)
        held = [] if per_layer is None else [per_layer]
        del per_layer
        return self.decoder.forward(x, held, backend)


causal_lm = Gemma4Text
