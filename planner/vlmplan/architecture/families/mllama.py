"""Llama 3.2 Vision (mllama): a Llama of which every fifth layer looks at the image through gated cross-attention.

Source: transformers 5.23 ``models/mllama/modeling_mllama.py``, ``MllamaForConditionalGeneration``. The token table has
eight rows more than the output head, so the two are never tied.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.llama import (
    Decoder,
    DecoderLayer,
    DecoderShape,
    GatedMlp,
    RotaryContext,
    causal_masks,
    decoder_shape,
)
from vlmplan.architecture.families.mllama_vision import MllamaVision, gated
from vlmplan.architecture.model import Batch, Model, Part
from vlmplan.architecture.modules import Linear, Module, RMSNorm, Stack
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

NUM_EXTRA_TOKENS = 8
"""Rows of the token table behind the vocabulary (``MllamaTextModel``): the image token."""
DEFAULT_CROSS_ATTENTION_LAYERS = (3, 8, 13, 18, 23, 28, 33, 38)
"""Where the file has null (``MllamaTextConfig.__post_init__``)."""


class CrossMask(NamedTuple):
    """Who looks at which tile: an additive mask (batch, 1, tokens, states), and 0 for tokens that look at none."""

    mask: Tensor
    rows: Tensor


class CrossAttention(Module):
    """``MllamaTextCrossAttention``: text looks at vision states; queries and keys are normed per head."""

    def __init__(self, shape: DecoderShape) -> None:
        self.shape = shape
        width = shape.hidden_size
        query_width, key_width = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = Linear(width, query_width)
        self.k_proj = Linear(width, key_width)
        self.v_proj = Linear(width, key_width)
        self.o_proj = Linear(query_width, width)
        self.q_norm = RMSNorm(shape.head_dim)
        self.k_norm = RMSNorm(shape.head_dim)

    def forward(self, x: Tensor, states: Tensor, mask: Tensor, backend: AttentionBackend) -> Tensor:
        batch, num_tokens, width = x.shape
        shape = self.shape
        q = self.q_proj(x).view(batch, shape.num_heads, num_tokens, shape.head_dim)
        q = self.q_norm(q)
        keys = (batch, shape.num_kv_heads, states.numel // width // batch, shape.head_dim)
        k = self.k_proj(states).view(*keys)
        v = self.v_proj(states).view(*keys)
        k = self.k_norm(k)
        return self.o_proj(attend(backend, q, k, v, is_causal=False, mask=mask, is_cached=True))


class CrossAttentionLayer(Module):
    """``MllamaCrossAttentionDecoderLayer``."""

    def __init__(self, shape: DecoderShape) -> None:
        self.cross_attn = CrossAttention(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size)
        self.cross_attn_attn_gate = Parameter(1)
        self.mlp = GatedMlp(shape.hidden_size, shape.intermediate_size, activation=shape.activation)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size)
        self.cross_attn_mlp_gate = Parameter(1)

    def forward(self, x: Tensor, states: Tensor, cross: CrossMask, backend: AttentionBackend) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.cross_attn(x, states, cross.mask, backend)
        x = ops.add(residual, gated(x, self.cross_attn_attn_gate))
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        x = ops.mul(x, cross.rows)
        return ops.add(residual, gated(x, self.cross_attn_mlp_gate))


class TextModel(Decoder):
    """``MllamaTextModel``; without an image its cross-attention layers are skipped."""

    def __init__(self, shape: DecoderShape, cross_layers: Sequence[int]) -> None:
        pattern = [int(index in cross_layers) for index in range(shape.num_layers)]
        layers = Stack([DecoderLayer(shape), CrossAttentionLayer(shape)], pattern, label="layers")
        super().__init__(replace(shape, vocab_size=shape.vocab_size + NUM_EXTRA_TOKENS), layers)

    def look(self, x: Tensor, states: Tensor | None, cross: CrossMask | None, backend: AttentionBackend) -> Tensor:
        """The hidden states of the text, with ``states`` of the image in sight."""
        tape = x.tape
        with tape.section("positions"):
            tape.prefetch()  # for the module of the positions
            masks = causal_masks(x, backend, (None,))  # before the positions
            context = RotaryContext(backend, *self.positions(x), masks)

        def call(layer: Any, hidden: Tensor, *seen: Tensor) -> Tensor:
            if isinstance(layer, CrossAttentionLayer):
                return layer(hidden, *seen, cross, backend)
            return layer(hidden, context)

        seen = () if states is None else (states,)
        skipped = () if seen else [index for index, kind in enumerate(self.layers.pattern) if kind]
        sharing = (1,) if seen else ()
        hidden = self.layers.run_each(x, call, *seen, sharing=sharing, skipped=skipped)
        with tape.section("norm"):
            return self.final_norm(hidden)


class MllamaModel(Module):
    """``MllamaModel``."""

    def __init__(self, config: Config) -> None:
        vision, text = config.section("vision_config"), config.section("text_config")
        self.vision_model: Any = MllamaVision(vision)
        cross_layers = text.integers("cross_attention_layers") or DEFAULT_CROSS_ATTENTION_LAYERS
        shape = decoder_shape(text)
        if not any(0 <= index < shape.num_layers for index in cross_layers):
            needed = f"a list of layers from 0 to {shape.num_layers - 1}"
            raise not_allowed(CONFIG, "text_config.cross_attention_layers", list(cross_layers), needed)
        self.language_model = TextModel(shape, cross_layers)
        self.multi_modal_projector = Linear(vision.integer("vision_output_dim"), shape.hidden_size, bias=True)

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        tape = ids.tape
        if pixels is None:
            return self.language_model.look(self.language_model.embed(ids), None, None, backend)
        encoded = tape.outputs.of_encoder()
        encoded.append(self.vision_model(pixels, backend))
        with tape.section("projector"):
            states: Any = self.multi_modal_projector(encoded[0])
        with tape.section("cross_attention_mask"):
            cross: Any = cross_mask(states, self.vision_model.class_embedding.dtype, batch)
        return self.language_model.look(self.language_model.embed(ids), states, cross, backend)


def cross_mask(states: Tensor, dtype: DType, batch: Batch) -> CrossMask:
    """``_prepare_cross_attention_mask``: the mask of tiles repeated for every token of a tile, then inverted.

    ``dtype`` is that of the weights, whatever autocast makes of the states.
    """
    tape = states.tape
    num_states = states.numel // states.shape[-1] // batch.micro_batch
    shape = (batch.micro_batch, 1, batch.num_tokens, num_states)
    repeated = tape.tensor(shape, DType.INT64)
    inverted = ops.to(tape.tensor(shape, DType.FLOAT32), dtype)
    is_masked = tape.tensor(shape, DType.BOOL)
    mask = tape.tensor(shape, dtype)
    del repeated, is_masked
    is_open = tape.tensor(shape, DType.BOOL)
    rows = tape.tensor((batch.micro_batch, batch.num_tokens, 1), dtype)
    del is_open, inverted
    tape.move(mask.numel * (8 + 4 + 2 * (4 + 2) + 1 + 2 + 2 * mask.dtype.num_bytes))
    return CrossMask(mask, rows)


class Mllama(Model):
    """``MllamaForConditionalGeneration``."""

    encodes_before_generating = False

    PARTS = {"model.vision_model": Part.VISION, "model.multi_modal_projector": Part.PROJECTOR}
    EMBEDDINGS = "model.language_model.embed_tokens"

    def __init__(self, config: Config) -> None:
        self.model: Any = MllamaModel(config)
        text = config.section("text_config")
        self.lm_head = Linear(text.integer("hidden_size"), text.integer("vocab_size"))

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        image = batch.image
        assert image is not None
        height, width = image.resized_height // image.num_tile_rows, image.resized_width // image.num_tile_columns
        return (batch.num_images, image.num_vision_sequences, self.model.vision_model.num_channels, height, width)

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``cross_attention_mask``, ``aspect_ratio_mask`` and ``aspect_ratio_ids``."""
        image = batch.image
        assert image is not None
        tiles = (batch.images_per_sample, image.num_vision_sequences)
        shapes = (
            (batch.micro_batch, batch.num_tokens, *tiles),
            (batch.micro_batch, *tiles),
            (batch.micro_batch, batch.images_per_sample),
        )
        return [(shape, DType.INT64) for shape in shapes]

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        if backend.implementation == "flash_attention_2":
            raise InputError("mllama builds its own attention masks; it has no flash_attention_2 in transformers 5.23")
        return self.model(ids, pixels, batch, backend)


def build(config: Config) -> Mllama:
    """``MllamaForConditionalGeneration``."""
    return Mllama(config)
