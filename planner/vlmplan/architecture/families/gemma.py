"""Gemma, Gemma 2, VaultGemma and Gemma 3 text decoders, alone and as the language models of PaliGemma and Gemma 3.

Source: transformers 5.23 ``models/{gemma,gemma2,gemma3,vaultgemma}/modeling_*.py``. Against Llama: norms in float32
with a factor ``1 + weight``, embeddings scaled by the root of the width; Gemma 2 and 3 also norm what attention and MLP
return and let layers with and without a window alternate; Gemma 2 caps scores and logits, Gemma 3 norms queries and
keys and has one set of rotary positions per kind of layer. VaultGemma is a Gemma 2 without norms behind attention and
MLP.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, rotary_tables, values_by_head
from vlmplan.architecture.attention_backend import PLAIN_SCORES, AttentionBackend, Scores
from vlmplan.architecture.causal_lm import CappedCausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import Attention, DecoderLayer, DecoderShape, GatedMlp, causal_masks
from vlmplan.architecture.families.residual_layers import PreNormLayer, SandwichNormLayer
from vlmplan.architecture.layer_calls import Calls
from vlmplan.architecture.modules import Embedding, GemmaRMSNorm, Module, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError

CAPPING_TYPES = ("gemma2", "vaultgemma")
"""Those that cap scores of attention, to which transformers refuses sdpa."""
Masks = Mapping[int | None, Tensor]
"""Attention masks by the window of the layers that use them; None is full attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaShape(DecoderShape):
    """The dimensions of a Gemma decoder; the defaults are Gemma's."""

    has_post_norms: bool = False
    """Norms behind attention and MLP too (Gemma 2 and 3)."""
    scores: Scores = PLAIN_SCORES
    supports_sdpa: bool = True
    is_causal: bool = True
    """False where what calls the decoder masks a prefix (PaliGemma)."""
    has_local_positions: bool = False
    """Rotary positions of their own for layers with a window (Gemma 3)."""


class GemmaContext:
    """What every layer is called with besides the hidden states."""

    __slots__ = ("backend", "masks", "positions")

    def __init__(
        self, backend: AttentionBackend, positions: Mapping[int | None, tuple[Tensor, Tensor]], masks: Masks
    ) -> None:
        self.backend, self.positions, self.masks = backend, positions, masks

    def of_layer(self, layer: Any) -> "GemmaContext":
        """The same with the positions and the mask that a layer has a use for, which are all that it keeps where it
        runs again (``position_embeddings[self.config.layer_types[i]]``)."""
        window = layer.self_attn.window
        at = window if window in self.positions else None
        masks = {window: self.masks[window]} if window in self.masks else {}
        return GemmaContext(self.backend, {at: self.positions[at]}, masks)


class ScaledEmbedding(Embedding):
    """``GemmaTextScaledWordEmbedding``: the embedding times a number."""

    def forward(self, ids: Tensor) -> Tensor:
        return ops.scale(super().forward(ids))


class GemmaAttention(Attention):
    """Grouped-query attention with rotary positions, a window, and normed (Gemma 3) or capped (Gemma 2) scores."""

    head_norm = GemmaRMSNorm
    shape: GemmaShape

    def forward(self, x: Tensor, context: Any) -> Tensor:
        """``context``: a ``GemmaContext``."""
        batch, num_tokens, _ = x.shape
        shape = self.shape
        q = self.by_head(self.q_proj(x), shape.num_heads)
        k = self.by_head(self.k_proj(x), shape.num_kv_heads)
        v = self.v_proj(x).view(batch, shape.num_kv_heads, num_tokens, shape.head_dim)
        v = values_by_head(context.backend, q, k, v, has_mask=self.window in context.masks)
        if shape.qk_norm:
            q = self.q_norm(q)
            k = self.k_norm(k)
        cos, sin = context.positions[self.window if shape.has_local_positions else None]
        q, k = ops.rotate(q, cos, sin), ops.rotate(k, cos, sin)
        mask = context.masks.get(self.window)
        return self.o_proj(
            attend(context.backend, q, k, v, is_causal=shape.is_causal, mask=mask, scores=shape.scores, is_cached=True)
        )


class GemmaLayer(DecoderLayer):
    """``GemmaDecoderLayer``."""

    attention = GemmaAttention
    norm = GemmaRMSNorm


class VaultLayer(PreNormLayer):
    """``VaultGemmaDecoderLayer``."""

    MODULES = ("input_layernorm", "self_attn", "pre_feedforward_layernorm", "mlp")

    def __init__(self, shape: GemmaShape, window: int | None = None) -> None:
        self.self_attn = GemmaAttention(shape, window)
        self.mlp = GatedMlp(shape.hidden_size, shape.intermediate_size, activation=shape.activation)
        self.input_layernorm = GemmaRMSNorm(shape.hidden_size)
        self.pre_feedforward_layernorm = GemmaRMSNorm(shape.hidden_size)


class PostNormLayer(SandwichNormLayer, GemmaLayer):
    """``Gemma2DecoderLayer``."""

    def __init__(self, shape: GemmaShape, window: int | None = None) -> None:
        super().__init__(shape, window)
        self.pre_feedforward_layernorm = GemmaRMSNorm(shape.hidden_size)
        self.post_feedforward_layernorm = GemmaRMSNorm(shape.hidden_size)


class GemmaDecoder(Module):
    """``GemmaModel``, ``Gemma2Model`` and ``Gemma3TextModel``: scaled embedding, layers, final norm."""

    ROTARY_MODULES = ("rotary_emb",)

    def __init__(self, shape: GemmaShape, layer: Callable[[GemmaShape, int | None], Module] | None = None) -> None:
        self.shape = shape
        self.embed_tokens = ScaledEmbedding(shape.vocab_size, shape.hidden_size)
        windows = shape.windows or (None,) * shape.num_layers
        kinds = list(dict.fromkeys(windows))
        layer = layer or (PostNormLayer if shape.has_post_norms else GemmaLayer)
        self.layers = Stack(
            [layer(shape, window) for window in kinds], [kinds.index(window) for window in windows], label="layers"
        )
        self.norm = GemmaRMSNorm(shape.hidden_size)
        self.mask_windows = (None, *(window for window in kinds if window is not None))

    def backend(self, requested: AttentionBackend) -> AttentionBackend:
        """The attention that this decoder runs: Gemma 2 refuses sdpa, transformers' default then is eager."""
        if requested.implementation == "sdpa" and not self.shape.supports_sdpa:
            return replace(requested, implementation="eager")
        return requested

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.embed_tokens(ids)

    def forward(self, x: Tensor, backend: AttentionBackend, masks: Masks | None = None) -> Tensor:
        """x through the layers. ``masks`` replace the causal ones: a prefix or image blocks that see each other."""
        backend = self.backend(backend)
        tape = x.tape
        with tape.section("positions"):
            if masks is None:
                masks = causal_masks(x, backend, self.mask_windows)
            positions = self.positions(x)
            tape.prefetch(len(positions))  # for the module of the positions
            context = GemmaContext(backend, positions, masks)
            del positions
        hidden = self.layers.run(x, Calls(context.of_layer))
        with tape.section("norm"):
            return self.norm(hidden)

    def positions(self, x: Tensor) -> dict[int | None, tuple[Tensor, Tensor]]:
        """cos and sin in the model's type, by window where layers with a window have their own, of the windows that
        some layer has (``Gemma3RotaryEmbedding.layer_types``)."""
        shape = (1, 1, x.shape[1], self.shape.head_dim)
        windows = dict.fromkeys(self.shape.windows) if self.shape.has_local_positions else (None,)
        return {window: rotary_tables(x.tape, shape, x.dtype) for window in windows}


def gemma_shape(config: Config, *, is_causal: bool = True) -> GemmaShape:
    """The shape of a Gemma decoder from its Hugging Face text config; not causal where the caller masks a prefix.

    Raises InputError where ``use_bidirectional_attention`` makes an encoder of a causal one.
    """
    model_type = config.model_type
    if is_causal and config.get("use_bidirectional_attention"):
        raise InputError("config.json: use_bidirectional_attention is set; only causal Gemma models can be planned")
    has_bias = config.boolean("attention_bias")
    caps = model_type in CAPPING_TYPES and config.get("attn_logit_softcapping") is not None
    return GemmaShape(
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=config.integer("num_attention_heads"),
        num_kv_heads=config.integer("num_key_value_heads"),
        head_dim=config.integer("head_dim"),
        vocab_size=config.integer("vocab_size"),
        qkv_bias=has_bias,
        output_bias=has_bias,
        qk_norm=model_type == "gemma3_text",
        # Gemma 1 reads hidden_act alone, Gemma 2 and 3 hidden_activation alone; published files carry both.
        activation=config.text("hidden_act" if model_type == "gemma" else "hidden_activation"),
        windows=layer_windows(config),
        has_post_norms=model_type not in ("gemma", "vaultgemma"),
        scores=Scores(caps=caps, dropout=config.number("attention_dropout")),
        supports_sdpa=model_type not in CAPPING_TYPES,
        is_causal=is_causal,
        has_local_positions=model_type == "gemma3_text",
    )


def layer_windows(config: Config) -> tuple[int | None, ...]:
    """The window of each layer: none in Gemma, in every second layer of Gemma 2, in five of six of Gemma 3.

    Source: ``Gemma2Config.__post_init__`` and ``Gemma3TextConfig.__post_init__``; ``layer_types`` decides where given.
    """
    num_layers = config.integer("num_hidden_layers")
    if config.model_type == "gemma":
        return (None,) * num_layers
    window = config.integer("sliding_window")
    layer_types = config.layer_types()
    if layer_types is not None:
        return tuple(window if kind == "sliding_attention" else None for kind in layer_types)
    period = 2 if config.model_type in CAPPING_TYPES else config.integer("sliding_window_pattern", 6)
    return tuple(window if (index + 1) % period else None for index in range(num_layers))


def decoder(config: Config, *, is_causal: bool = True) -> GemmaDecoder:
    """``is_causal`` as in ``gemma_shape``."""
    layer = VaultLayer if config.model_type == "vaultgemma" else None
    return GemmaDecoder(gemma_shape(config, is_causal=is_causal), layer)


causal_lm = CappedCausalLM
