"""The vision tower of Llama 3.2 Vision: all padded tiles of an image in one sequence, 32 layers and 8 gated ones.

Source: transformers 5.23 ``models/mllama/modeling_mllama.py``, ``MllamaVisionModel``. Three things make it heavy: an
additive mask over all tiles that every layer gets, a tuple of all layers' results that lives until the tower returns,
and layers that are no ``GradientCheckpointingLayer``.
"""

from collections.abc import Container, Sequence
from typing import cast

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.clip_vision import Mlp
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, PatchEmbedding, Stack
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

PADDING_MULTIPLE = 8
"""Tokens per tile are padded to a multiple of this (``num_padding_patches``)."""
DEFAULT_INTERMEDIATE_LAYERS = (3, 7, 15, 23, 30)
DEFAULT_NUM_ASPECT_RATIOS = 8
"""Where the file has null (``MllamaVisionConfig.__post_init__``)."""


def gated(x: Tensor, gate: Parameter) -> Tensor:
    """``gate.tanh() * x``: the gate needs x for its gradient."""
    return ops.mul(x, ops.tanh(ops.expand_weight(gate, gate.shape, x.tape)))


class VisionAttention(Module):
    """``MllamaVisionAttention``: all tiles see each other; the mask is additive and in the model's type."""

    def __init__(self, width: int, num_heads: int) -> None:
        self.num_heads = num_heads
        self.q_proj = Linear(width, width)
        self.k_proj = Linear(width, width)
        self.v_proj = Linear(width, width)
        self.o_proj = Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor, backend: AttentionBackend) -> Tensor:
        batch, num_tokens, width = x.shape
        heads = (batch, self.num_heads, num_tokens, width // self.num_heads)
        q, k, v = self.q_proj(x).view(*heads), self.k_proj(x).view(*heads), self.v_proj(x).view(*heads)
        return self.o_proj(attend(backend, q, k, v, is_causal=False, mask=mask))


class VisionLayer(Module):
    """``MllamaVisionEncoderLayer``; in the global transformer attention and MLP pass a gate."""

    def __init__(self, config: Config, *, is_gated: bool) -> None:
        width = config.integer("hidden_size")
        self.is_gated = is_gated
        self.self_attn = VisionAttention(width, config.integer("attention_heads"))
        self.mlp = Mlp(width, config.integer("intermediate_size"), config.text("hidden_act"))
        self.input_layernorm = LayerNorm(width)
        self.post_attention_layernorm = LayerNorm(width)
        if is_gated:
            self.gate_attn = Parameter(1)
            self.gate_ffn = Parameter(1)

    def forward(self, x: Tensor, mask: Tensor, backend: AttentionBackend) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, mask, backend)
        if self.is_gated:
            x = gated(x, self.gate_attn)
        x = ops.add(residual, x)
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        if self.is_gated:
            x = gated(x, self.gate_ffn)
        return ops.add(residual, x)


class VisionEncoder(Module):
    """``MllamaVisionEncoder``."""

    def __init__(self, config: Config, num_layers: int, *, is_gated: bool, label: str) -> None:
        layer = VisionLayer(config, is_gated=is_gated)
        self.layers = Stack([layer], [0] * num_layers, label=label, can_checkpoint=False)

    def forward(
        self, x: Tensor, mask: Tensor, backend: AttentionBackend, used: Container[int] = ()
    ) -> dict[int, Tensor]:
        """The results of all layers, of which those ``used`` go somewhere else too."""

        def call(layer: VisionLayer, hidden: Tensor) -> Tensor:
            return layer(hidden, mask, backend)

        states: dict[int, Tensor] = {}
        self.layers.run_each(x, call, results=states, used_apart=used)
        return states


class AspectRatioEmbedding(Module):
    """``MllamaPrecomputedAspectRatioEmbedding``: one gated vector per tile."""

    def __init__(self, num_ratios: int, num_tiles: int, width: int) -> None:
        self.embedding = Embedding(num_ratios + 1, num_tiles * width)
        self.gate = Parameter(1)

    def forward(self, x: Tensor) -> Tensor:
        num_images, num_tiles, _, width = x.shape
        embeddings = self.embedding(aspect_ratio_ids(x)).view(num_images, num_tiles, 1, width)
        return ops.add(x, gated(embeddings, self.gate))


class PositionEmbedding(Module):
    """``MllamaPrecomputedPositionEmbedding``: a table of positions, and one of positions in every tile."""

    def __init__(self, num_ratios: int, num_tiles: int, num_tokens: int, width: int) -> None:
        self.gate = Parameter(1)
        self.embedding = Parameter(num_tokens, width)
        self.tile_embedding = Embedding(num_ratios + 1, num_tiles * num_tokens * width)

    def forward(self, x: Tensor) -> Tensor:
        tape = x.tape
        table = ops.expand_weight(self.embedding, self.embedding.shape, tape)
        open_gate = ops.scale(ops.tanh(ops.expand_weight(self.gate, self.gate.shape, tape)))
        hidden = ops.add(x, ops.mul(table, open_gate))
        tile_embedding = self.tile_embedding(aspect_ratio_ids(x)).view(*x.shape)
        gated_tile_embedding = gated(tile_embedding, self.gate)
        return ops.add(hidden, gated_tile_embedding)


def aspect_ratio_ids(x: Tensor) -> Tensor:
    """(images, 1), on bytes of the batch."""
    empty = x.tape.tensor((0,), DType.INT64)
    return Tensor(empty.storage, (x.shape[0], 1), empty.dtype)


def _num_aspect_ratios(ratios: Sequence[object] | object) -> int:
    if ratios is None:
        return DEFAULT_NUM_ASPECT_RATIOS
    if not isinstance(ratios, Sequence) or isinstance(ratios, str):
        raise not_allowed(CONFIG, "vision_config.supported_aspect_ratios", ratios, "a list")
    return len(cast(Sequence[object], ratios))


class MllamaVision(Module):
    """``MllamaVisionModel``."""

    INPUT_EMBEDDING = "patch_embedding"

    def __init__(self, config: Config) -> None:
        width, self.patch_size = config.integer("hidden_size"), config.integer("patch_size")
        self.num_channels, self.num_tiles = config.integer("num_channels"), config.integer("max_num_tiles")
        self.num_tokens = (config.integer("image_size") // self.patch_size) ** 2 + 1
        num_ratios = _num_aspect_ratios(config.get("supported_aspect_ratios"))
        num_layers, num_global_layers = config.integer("num_hidden_layers"), config.integer("num_global_layers")
        self.intermediate_layers = config.integers("intermediate_layers_indices") or DEFAULT_INTERMEDIATE_LAYERS
        if not all(-num_layers <= index < num_layers for index in self.intermediate_layers):
            raise InputError(
                f"config.json: intermediate_layers_indices is {list(self.intermediate_layers)}; "
                f"the vision tower has {num_layers} layers"
            )
        self.class_embedding = Parameter(width)
        self.patch_embedding = PatchEmbedding(self.num_channels * self.patch_size**2, width, bias=False)
        self.gated_positional_embedding = PositionEmbedding(num_ratios, self.num_tiles, self.num_tokens, width)
        self.pre_tile_positional_embedding = AspectRatioEmbedding(num_ratios, self.num_tiles, width)
        self.post_tile_positional_embedding = AspectRatioEmbedding(num_ratios, self.num_tiles, width)
        self.layernorm_pre = LayerNorm(width)
        self.layernorm_post = LayerNorm(width)
        self.transformer = VisionEncoder(config, num_layers, is_gated=False, label="vision")
        self.global_transformer = VisionEncoder(config, num_global_layers, is_gated=True, label="vision.global")

    def forward(self, pixels: Tensor, backend: AttentionBackend) -> Tensor:
        """(images * tiles, tokens, width * (1 + intermediate layers)): the last state and the intermediate ones."""
        tape = pixels.tape
        with tape.section("vision.embedding"):
            patches = self.patches(pixels)
            padded = self.embeddings(patches)
            num_images, num_tiles, num_padded, width = padded.shape
            mask = tile_mask(padded)
        sequence, tiles = (num_images, num_tiles * num_padded, width), padded.shape
        num_layers = len(self.transformer.layers.pattern)
        used = [index % num_layers for index in self.intermediate_layers]
        states = self.transformer(padded.view(*sequence), mask, backend, used)
        del padded
        with tape.section("vision.tiles"):
            hidden = self.layernorm_post(states[num_layers - 1])
            hidden = self.post_tile_positional_embedding(hidden.view(*tiles))
        global_states = self.global_transformer(hidden.view(*sequence), mask, backend)
        del hidden
        with tape.section("vision.join"):
            return self.joined(global_states[max(global_states)], [states[index] for index in used], tiles)

    def patches(self, pixels: Tensor) -> Tensor:
        """The convolution's result, (images, tiles, patches, width), which lives as long as the tower runs."""
        num_images, num_tiles, _, height, width = pixels.shape
        num_patches = (height // self.patch_size) * (width // self.patch_size)
        if (num_tiles, num_patches + 1) != (self.num_tiles, self.num_tokens):
            raise InputError(
                f"the vision tower takes {self.num_tiles} tiles of {self.num_tokens - 1} patches, "
                f"not {num_tiles} of {num_patches}"
            )
        numel = self.num_channels * self.patch_size**2
        pixels = ops.to(pixels, self.class_embedding.dtype)
        return self.patch_embedding(pixels.view(num_images, num_tiles, num_patches, numel))

    def embeddings(self, patches: Tensor) -> Tensor:
        """Patches with a class token, positions and padding, (images, tiles, padded tokens, width)."""
        num_images, num_tiles, _, width = patches.shape
        hidden = self.pre_tile_positional_embedding(patches)
        class_tokens = ops.expand_weight(self.class_embedding, (num_images, num_tiles, 1, width), patches.tape)
        hidden = ops.concatenate([class_tokens, hidden], (num_images, num_tiles, self.num_tokens, width))
        hidden = self.gated_positional_embedding(hidden)
        hidden = self.layernorm_pre(hidden)
        num_padded = -(-self.num_tokens // PADDING_MULTIPLE) * PADDING_MULTIPLE
        return ops.resample(hidden, num_images, num_tiles, num_padded, width)

    def joined(self, last: Tensor, intermediate: Sequence[Tensor], tiles: tuple[int, ...]) -> Tensor:
        """The states side by side, without padding."""
        num_images, num_tiles, num_padded, width = tiles
        last = ops.part(last, num_images, num_tiles, self.num_tokens, width)
        stacked_width = width * len(intermediate)
        stacked = ops.concatenate(intermediate, (num_images, num_tiles * num_padded, stacked_width))
        stacked = ops.part(stacked, num_images, num_tiles, self.num_tokens, stacked_width)
        return ops.concatenate([last, stacked], (num_images * num_tiles, self.num_tokens, width + stacked_width))


def tile_mask(x: Tensor) -> Tensor:
    """``_prepare_aspect_ratio_attention_mask``: a product of the padding with itself, times the smallest number."""
    num_images, num_tiles, num_tokens, _ = x.shape
    shape = (num_images, 1, num_tiles * num_tokens, num_tiles * num_tokens)
    outer = x.tape.tensor(shape, x.tape.autocast or x.dtype)
    x.tape.matmul(2 * outer.numel, outer.num_bytes, outer.dtype)
    return ops.scale(outer)
