"""Molmo 2: a SigLIP 2 tower over overlapping crops, attention that pools the patches of each token, and a Qwen3 or
OLMo 2 decoder in which the tokens of images see each other.

Source: transformers 5.23 ``models/molmo2/modeling_molmo2.py`` and ``configuration_molmo2.py``. Videos are not
described. The processor says of every token what it is of (``mm_token_type_ids``), of text alone too, and the class is
not trained without: it always makes a mask of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, by_kernel
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.clip_vision import Mlp
from vlmplan.architecture.families.gemma3 import seen_in_blocks
from vlmplan.architecture.families.image_text import ImageTextModel
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderLayer,
    DecoderShape,
    GatedMlp,
    RotaryContext,
    decoder_shape,
    stack_of_kinds,
)
from vlmplan.architecture.families.packed_patches import by_image
from vlmplan.architecture.families.residual_layers import PreNormLayer
from vlmplan.architecture.families.vision_tower import Encoder
from vlmplan.architecture.images.molmo2 import POOL_SIDE
from vlmplan.architecture.indexing import put_rows, take_rows
from vlmplan.architecture.layer_calls import Calls
from vlmplan.architecture.model import Batch, Input, Part
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, RMSNorm
from vlmplan.architecture.packed_lengths import PackedLengths
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

OLD_VISION = "vit_config"
"""The tower's section in published files, whose layers behind the last one used are not built (``Molmo2Config``)."""
DEFAULT_SIDES, DEFAULT_LAYERS = (378, 378), (24, 18)
"""``image_size`` and ``vision_feature_layer`` where the file has none."""
NORMS_EACH_HEAD, NORMS_WHOLE = "qwen3", "olmo"
"""``qk_norm_type``: whether queries and keys are normed head by head, or before they are cut into heads."""


class VisionAttention(Module):
    """``Molmo2VisionAttention``: of patches among themselves, or of one query for each token to the patches that it
    pools, which have ``in_width`` values."""

    def __init__(self, config: Config, in_width: int | None = None) -> None:
        width, self.head_dim = config.integer("hidden_size"), config.integer("head_dim")
        self.num_heads = config.integer("num_attention_heads")
        self.num_kv_heads = config.integer("num_key_value_heads")
        self.scores = Scores(dropout=config.number("attention_dropout"))
        bias, in_width = config.boolean("attention_bias"), in_width or width
        self.q_proj = Linear(in_width, self.num_heads * self.head_dim, bias=bias)
        self.k_proj, self.v_proj = (Linear(in_width, self.num_kv_heads * self.head_dim, bias=bias) for _ in range(2))
        self.o_proj = Linear(self.num_heads * self.head_dim, width, bias=bias)

    def forward(
        self, x: Tensor, backend: AttentionBackend, keys: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        keys = x if keys is None else keys
        heads = (self.num_heads, x.shape[1], self.head_dim)
        kv_heads = (self.num_kv_heads, keys.shape[1], self.head_dim)
        q = self.q_proj(x).view(x.shape[0], *heads)
        k = self.k_proj(keys).view(keys.shape[0], *kv_heads)
        v = self.v_proj(keys).view(keys.shape[0], *kv_heads)
        if x.shape[1] == 1 and mask is not None and backend.implementation == "sdpa":
            # The queries of one token are those of the heads that share keys (``pack_gqa``).
            q = q.view(x.shape[0], self.num_kv_heads, self.num_heads // self.num_kv_heads, self.head_dim)
        q, k, v = by_kernel(backend, q, k, v, has_mask=mask is not None)
        if mask is not None and backend.implementation == "flash_attention_2":
            out = attended_unpadded(backend, q, k, v, scores=self.scores)
        else:
            out = attend(backend, q, k, v, is_causal=False, mask=mask, scores=self.scores)
        return self.o_proj(out.view(*x.shape[:2], self.num_heads * self.head_dim))


def attended_unpadded(backend: AttentionBackend, q: Tensor, k: Tensor, v: Tensor, *, scores: Scores) -> Tensor:
    """One query each to keys that are copied without the padding, of which there is little: all are counted
    (``_upad_input`` and ``_pad_input`` in ``modeling_flash_attention_utils.py``)."""
    tape = q.tape
    places = tape.tensor((k.shape[0] * k.shape[2],), DType.INT64)
    k, v = (take_rows(x, places, (1, x.shape[1], places.numel, x.shape[3])) for x in (k, v))
    queries = (1, q.shape[1], q.shape[0], q.shape[3])
    lengths = PackedLengths(((1, q.shape[0]),))
    out = attend(backend, q.view(*queries), k, v, is_causal=False, scores=scores, lengths=lengths)
    zeros = tape.tensor(out.shape, out.dtype)
    return put_rows(zeros, tape.tensor((q.shape[0],), DType.INT32), out, out.shape)


class VisionLayer(PreNormLayer):
    """``Molmo2VisionEncoderLayer``."""

    MODULES = ("layer_norm1", "self_attn", "layer_norm2", "mlp")

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.layer_norm1 = LayerNorm(width)
        self.self_attn = VisionAttention(config)
        self.layer_norm2 = LayerNorm(width)
        self.mlp = Mlp(width, config.integer("intermediate_size"), config.text("hidden_act"))


class VisionModel(Encoder):
    """``Molmo2VisionModel``, which has the layers itself, and collects the hidden states of all."""

    def __init__(self, config: Config, feature_layers: Sequence[int]) -> None:
        width = config.integer("hidden_size")
        self.patch_numel = config.integer("num_channels") * config.integer("patch_size") ** 2
        self.num_patches = num_positions(config)
        self.positional_embedding = Parameter(self.num_patches, width)
        self.positional_embedding.meets_autocast = False
        self.patch_embedding = Linear(self.patch_numel, width, bias=True)
        num_layers = config.integer("num_hidden_layers")
        super().__init__(lambda: VisionLayer(config), num_layers, feature_layers, holds_all=True)

    def forward(self, *inputs: Any, **_: Any) -> Any:
        pixels, backend = inputs
        return self.of_pixels(pixels, backend)

    def of_pixels(self, pixels: Tensor, backend: AttentionBackend) -> tuple[Tensor, list[Tensor]]:
        """(last hidden state, those that are asked for and all others)."""
        tape = pixels.tape
        with tape.section("vision.embedding"):
            patches = self.patch_embedding(ops.to(pixels, self.patch_embedding.weight.dtype))
            positions = ops.cast_weight(self.positional_embedding, patches.dtype, tape)
            embedded = [ops.add(patches, positions)]
            del patches, positions
        return super().forward(embedded.pop(), lambda layer, x: layer(x, backend))


class Adapter(Module):
    """``Molmo2Adapter``: the patches of each token are attended to by their mean."""

    def __init__(self, config: Config, num_states: int) -> None:
        width = config.integer("hidden_size")
        self.image_pooling_2d = VisionAttention(config, width * num_states)
        self.image_projector = ProjectorMlp(config)

    def forward(self, features: Tensor, batch: Batch, backend: AttentionBackend) -> Tensor:
        """Features (rows, width) of patches as (tokens, width of the decoder)."""
        tape, num_tokens, width = features.tape, *pooled_shape(batch, features.shape[-1])
        num_pooled = POOL_SIDE**2
        held = [tape.tensor((num_tokens, num_pooled), DType.BOOL), tape.tensor((num_tokens,), DType.BOOL)]
        places = tape.tensor((num_tokens, num_pooled), DType.INT32)
        patches = take_rows(features, places, (num_tokens, num_pooled, width))
        patches = ops.mul(patches, tape.tensor((num_tokens, num_pooled, 1), patches.dtype))
        del places
        counts = tape.tensor((num_tokens, 1, 1), patches.dtype)
        query = ops.mul(ops.total(patches, (num_tokens, 1, width)), counts)
        mask = self.mask(query, num_pooled, batch, backend)
        pooled = self.image_pooling_2d(query, backend, patches, mask)
        pooled = pooled.view(num_tokens, pooled.shape[-1])
        pooled = self.image_projector(pooled)
        return take_rows(pooled, held[1], pooled.shape)

    def mask(self, query: Tensor, num_keys: int, batch: Batch, backend: AttentionBackend) -> Tensor | None:
        """``create_bidirectional_mask``: eager attention alone has one where no token pools less than the others."""
        assert batch.image is not None
        if not batch.image.has_padded_sequences and backend.implementation != "eager":
            return None
        shape = (query.shape[0], 1, 1, num_keys)
        mask = query.tape.tensor(shape, DType.BOOL)
        return query.tape.tensor(shape, query.dtype) if backend.implementation == "eager" else mask


class ProjectorMlp(GatedMlp):
    """``Molmo2ImageProjectorMLP``."""

    def __init__(self, config: Config) -> None:
        width, inner = config.integer("hidden_size"), config.integer("intermediate_size")
        super().__init__(width, inner, activation=config.text("hidden_act"), bias=config.boolean("mlp_bias"))
        self.down_proj = Linear(inner, config.integer("text_hidden_size"))


class TextAttention(Attention):
    """``Molmo2Attention``, whose queries and keys are normed when the values are there too."""

    def __init__(self, shape: DecoderShape, *, norms_whole: bool) -> None:
        super().__init__(shape, None)
        self.norms_whole = norms_whole
        share = (shape.num_heads, shape.num_kv_heads) if norms_whole else (1, 1)
        self.q_norm, self.k_norm = (RMSNorm(num_heads * shape.head_dim) for num_heads in share)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.shape
        q, k = self.q_proj(x), self.k_proj(x)
        v = self.v_proj(x).view(x.shape[0], shape.num_kv_heads, x.shape[1], shape.head_dim)
        if self.norms_whole:
            q = self.q_norm(q)
            k = self.k_norm(k)
        q, k = self.by_head(q, shape.num_heads), self.by_head(k, shape.num_kv_heads)
        if not self.norms_whole:
            q = self.q_norm(q)
            k = self.k_norm(k)
        return q, k, v


class TextLayer(DecoderLayer):
    """``Molmo2DecoderLayer``; ``is_scaled``: whether its rotary positions are the scaled ones."""

    def __init__(self, shape: DecoderShape, attention: TextAttention, *, is_scaled: bool, norms_behind: bool) -> None:
        super().__init__(shape, attention=attention)
        self.is_scaled, self.norms_behind = is_scaled, norms_behind

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        if not self.norms_behind:
            return super().forward(x, context)
        residual = x
        x = self.self_attn(x, context)
        x = self.input_layernorm(x)
        x = ops.add(residual, x)
        residual = x
        x = self.mlp(x)
        x = self.post_attention_layernorm(x)
        return ops.add(residual, x)


class TextModel(Decoder):
    """``Molmo2TextModel``, called with the mask that ``Molmo2Model`` has made."""

    ROTARY_MODULES = ("rotary_emb", "rotary_emb_unscaled")

    def __init__(self, config: Config) -> None:
        shape = replace(decoder_shape(config), output_bias=False)
        kind, norms_behind = config.text("qk_norm_type"), config.boolean("norm_after")
        if kind not in (NORMS_EACH_HEAD, NORMS_WHOLE):
            raise not_allowed(CONFIG, "text_config.qk_norm_type", kind, f"{NORMS_EACH_HEAD} or {NORMS_WHOLE}")

        def layer(is_scaled: bool) -> TextLayer:
            attention = TextAttention(shape, norms_whole=kind == NORMS_WHOLE)
            return TextLayer(shape, attention, is_scaled=is_scaled, norms_behind=norms_behind)

        scaled = config.get("rope_scaling_layers")
        named = range(shape.num_layers) if scaled is None else config.integers("rope_scaling_layers")
        super().__init__(shape, stack_of_kinds([index in named for index in range(shape.num_layers)], layer))
        num_words = shape.vocab_size + config.count("additional_vocab_size")
        self.embed_tokens = Embedding(num_words, shape.hidden_size)

    def forward(self, x: Tensor, backend: AttentionBackend, masks: Mapping[int | None, Tensor] | None = None) -> Tensor:
        tape = x.tape
        with tape.section("positions"):
            tape.prefetch()  # for both modules of the positions
            tape.prefetch()
            scaled, plain = (RotaryContext(backend, *self.positions(x), masks) for _ in range(2))
        hidden = self.layers.run(x, Calls(lambda layer: scaled if layer.is_scaled else plain))
        with tape.section("norm"):
            return self.final_norm(hidden)


class Molmo2Model(Module):
    """``Molmo2Model``."""

    def __init__(self, config: Config) -> None:
        adapter = config.section("adapter_config")
        states = adapter.integers("vision_feature_layer")
        # Behind a layer by its number from the first, or a hidden state by its number from the last.
        self.vision_tower = VisionModel(config.section("vision_config"), [at + 1 if at >= 0 else at for at in states])
        self.num_states = len(states)
        self.multi_modal_projector = Adapter(adapter, self.num_states)
        self.language_model = TextModel(config.section("text_config"))

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        tape = ids.tape
        embeddings = self.language_model.embed(ids)
        encoded = tape.outputs.of_encoder()
        joined: list[Tensor] = []
        if pixels is not None:
            encoded += self.image_features(pixels, batch, backend)
            with tape.section("scatter"):
                joined.append(ops.concatenate(encoded[1:], (pooled_shape(batch, 0)[0], embeddings.shape[-1])))
                tape.outputs.keep_features(joined[0])
                embeddings = added_features(ids, embeddings, joined[0])
        with tape.section("masks"):
            masks = self.masks(embeddings, backend)
        return self.language_model(embeddings, backend, masks)

    def image_features(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> list[Tensor]:
        """``get_image_features``: the tower's last hidden state, and the features of each image. All hidden states of
        the tower are there until it returns."""
        last, states = self.vision_tower(pixels, backend)
        mean = ops.mean(last, (last.shape[0], last.shape[2]))
        with pixels.tape.section("projector"):
            chosen = states[: self.num_states]
            width = sum(state.shape[-1] for state in chosen)
            side_by_side = ops.concatenate(chosen, (*last.shape[:2], width))
            del chosen
            rows = side_by_side.view(last.shape[0] * last.shape[1], width)
            features = self.multi_modal_projector(rows, batch, backend)
            del mean
            return [last, *by_image(features, batch.num_images)]

    def masks(self, x: Tensor, backend: AttentionBackend) -> dict[int | None, Tensor]:
        """Each token sees those before it, and those of images all others of images (``block_sequence_ids``)."""
        if backend.implementation == "flash_attention_2":
            return {}
        shape = (x.shape[0], 1, x.shape[1], x.shape[1])
        seen = seen_in_blocks(x.tape, shape)
        return {None: x.tape.tensor(shape, x.dtype) if backend.implementation == "eager" else seen}


def added_features(ids: Tensor, embeddings: Tensor, features: Tensor) -> Tensor:
    """Features added to the embeddings of their tokens: those are picked out, element by element, and put back. Of each
    element there are three numbers that tell its place."""
    tape = ids.tape
    mask = tape.tensor(ids.shape, DType.BOOL)
    with tape.charged_to(Kind.TEMPORARY):
        places = tape.tensor((features.numel, 3), DType.INT64)
    picked = take_rows(embeddings, mask, (features.numel,))
    del places
    picked = ops.add(picked, features.view(features.numel))
    return ops.masked_scatter(embeddings, mask, picked)


def pooled_shape(batch: Batch, width: int) -> tuple[int, int]:
    """(tokens of all images that have features, ``width``)."""
    assert batch.image is not None
    return batch.num_images * batch.image.num_placeholder_tokens, width


class Molmo2(ImageTextModel):
    """``Molmo2ForConditionalGeneration``, which knows no tied weights."""

    PARTS = {"model.vision_tower": Part.VISION, "model.multi_modal_projector": Part.PROJECTOR}

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        tower = self.model.vision_tower
        return (batch.num_vision_sequences, tower.num_patches, tower.patch_numel)

    def id_inputs(self, batch: Batch) -> Sequence[Input]:
        """``mm_token_type_ids`` too, with images or without."""
        return [*super().id_inputs(batch), (batch.token_shape, DType.INT64)]

    def more_inputs(self, batch: Batch) -> Sequence[Input]:
        """``image_token_pooling``, ``image_grids`` and ``image_num_crops``."""
        return [
            ((pooled_shape(batch, 0)[0], POOL_SIDE**2), DType.INT32),
            ((batch.num_images, 4), DType.INT64),
            ((batch.num_images,), DType.INT64),
        ]


def num_positions(vision: Config) -> int:
    """Learned positions of the tower, one for each patch of a crop."""
    if vision.get("num_position_embeddings") is not None:
        return vision.integer("num_position_embeddings")
    sides = vision.integers("image_default_input_size") or vision.integers("image_size") or DEFAULT_SIDES
    return prod(side // vision.integer("patch_size") for side in sides)


def with_present_names(config: Config) -> Config:
    """The file with the sections that transformers makes of it: of the tower of published files no layer is built
    behind the last one that is used (``Molmo2Config.__post_init__``)."""
    adapter = config.section("adapter_config")
    named = adapter.integers("vit_layers") or adapter.integers("vision_feature_layer") or DEFAULT_LAYERS
    old = config.own(OLD_VISION) if config.own("vision_config") is None else None
    vision = config.changed({} if old is None else {"vision_config": old}).section("vision_config")
    num_layers = vision.integer("num_hidden_layers")
    if not all(-num_layers <= layer < num_layers for layer in named):
        allowed = f"numbers of the {num_layers} layers of the tower"
        raise not_allowed(CONFIG, "adapter_config.vision_feature_layer", list(named), allowed)
    adapter_config: dict[str, Any] = config.own("adapter_config") or {}
    if old is None:
        return config.changed({"adapter_config": {**adapter_config, "vision_feature_layer": named}})
    places = [layer % num_layers for layer in named]
    return config.changed(
        {
            "adapter_config": {**adapter_config, "vision_feature_layer": places},
            "vision_config": {**old, "num_hidden_layers": max(places) + 1},
        }
    )


def build(config: Config) -> Molmo2:
    """``Molmo2ForConditionalGeneration``."""
    return Molmo2(Molmo2Model(with_present_names(config)), ties_weights=False)
