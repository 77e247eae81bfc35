"""InternViT, the vision tower of InternVL: a class token, learned positions, and a learned scale behind each block.

Source: transformers 5.23 ``models/internvl/modeling_internvl.py``, ``InternVLVisionModel``.
"""

from collections.abc import Sequence
from math import prod

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.clip_vision import Mlp
from vlmplan.architecture.families.vision_tower import Encoder, VisionOutput
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import LayerNorm, Linear, Module, PatchEmbedding, RMSNorm
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed

NORMS = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}


class Attention(Module):
    """All tokens of one tile see each other; queries and keys may be normed over all heads."""

    def __init__(self, config: Config, width: int) -> None:
        self.num_heads = config.integer("num_attention_heads")
        # The eager softmax stays in the model's type.
        self.scores = Scores(dropout=config.number("attention_dropout"), upcasts=False, casts_back=False)
        self.dropout = config.number("projection_dropout")
        bias = config.boolean("attention_bias")
        self.q_proj = Linear(width, width, bias=bias)
        self.k_proj = Linear(width, width, bias=bias)
        self.v_proj = Linear(width, width, bias=bias)
        self.projection_layer = Linear(width, width, bias=True)
        self.norms_queries = config.boolean("use_qk_norm")
        if self.norms_queries:
            self.q_norm = RMSNorm(width)
            self.k_norm = RMSNorm(width)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        batch, num_tokens, width = x.shape
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.norms_queries:
            q = self.q_norm(q)
            k = self.k_norm(k)
        heads = (batch, self.num_heads, num_tokens, width // self.num_heads)
        q, k, v = q.view(*heads), k.view(*heads), v.view(*heads)
        out = attend(backend, q, k, v, is_causal=False, scores=self.scores)
        return ops.dropout(self.projection_layer(out), self.dropout)


class VisionLayer(Module):
    """Pre-norm attention and MLP, each times a learned scale."""

    def __init__(self, config: Config) -> None:
        width, norm_type = config.integer("hidden_size"), config.text("norm_type")
        if norm_type not in NORMS:
            raise not_allowed(CONFIG, "norm_type", norm_type, f"one of {', '.join(NORMS)}")
        norm = NORMS[norm_type]
        self.dropout = config.number("hidden_dropout_prob")
        self.lambda_1 = Parameter(width)
        self.lambda_2 = Parameter(width)
        self.attention = Attention(config, width)
        self.mlp = Mlp(width, config.integer("intermediate_size"), config.text("hidden_act"))
        self.layernorm_before = norm(width)
        self.layernorm_after = norm(width)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        attended = self.attention(self.layernorm_before(x), backend)
        attended = ops.mul(attended, self.lambda_1)
        x = ops.add(attended, x)
        out = self.layernorm_after(x)
        out = self.mlp(out)
        out = ops.dropout(out, self.dropout)
        out = ops.mul(out, self.lambda_2)
        return ops.add(out, x)


class PatchEmbeddings(Module):
    def __init__(self, patch_numel: int, width: int) -> None:
        self.projection = PatchEmbedding(patch_numel, width, bias=True)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.projection(ops.to(pixels, self.projection.weight.dtype))


class VisionEmbeddings(Module):
    """Patches, a class token before them, and positions, interpolated where a tile is not of the learned size."""

    INPUT_EMBEDDING = "patch_embeddings"

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        patch_size, image_size = _pair(config, "patch_size"), _pair(config, "image_size")
        self.num_positions = prod([image // patch for image, patch in zip(image_size, patch_size, strict=True)])
        self.patch_numel = config.integer("num_channels") * prod(patch_size)
        self.dropout = config.number("hidden_dropout_prob")
        self.cls_token = Parameter(1, 1, width)
        if config.boolean("use_mask_token"):
            self.mask_token = Parameter(1, 1, width)
        self.has_positions = config.boolean("use_absolute_position_embeddings")
        if self.has_positions:
            self.position_embeddings = Parameter(1, self.num_positions + 1, width)
        self.patch_embeddings = PatchEmbeddings(self.patch_numel, width)

    def forward(self, pixels: Tensor, batch: Batch) -> Tensor:
        tape = pixels.tape
        patches = self.patch_embeddings(pixels)
        num_tiles, width = batch.num_vision_sequences, patches.shape[-1]
        num_patches = patches.shape[0] // num_tiles
        class_tokens = ops.expand_weight(self.cls_token, (num_tiles, 1, width), tape)
        x = ops.concatenate([class_tokens, patches], (num_tiles, num_patches + 1, width))
        if self.has_positions:
            x = ops.add(x, self.positions(x, num_patches))
        return ops.dropout(x, self.dropout)

    def positions(self, x: Tensor, num_patches: int) -> Parameter | Tensor:
        """``interpolate_pos_encoding``: the table as it is, or a copy whose patches are interpolated."""
        if num_patches == self.num_positions:
            return self.position_embeddings
        width = x.shape[-1]
        of_class = ops.expand_weight(self.position_embeddings, (1, 1, width), x.tape)
        of_patches = ops.expand_weight(self.position_embeddings, (1, self.num_positions, width), x.tape)
        of_patches = ops.resample(of_patches, 1, num_patches, width)
        return ops.concatenate([of_class, of_patches], (1, num_patches + 1, width))


def _pair(config: Config, key: str) -> tuple[int, ...]:
    """Two sides, or one twice."""
    sides = config.integers(key)
    if len(sides) not in (1, 2) or min(sides) <= 0:
        raise not_allowed(CONFIG, f"vision_config.{key}", config.get(key), "a list of one or two sides")
    return sides * 2 if len(sides) == 1 else sides


class VisionEncoder(Encoder):
    """``InternVLVisionEncoder``: its list of layers is called ``layer``."""

    def __init__(self, config: Config, feature_layers: Sequence[int]) -> None:
        super().__init__(lambda: VisionLayer(config), config.integer("num_hidden_layers"), feature_layers)
        self.layer = self.modules_by_name.pop("layers")


class InternVision(Module):
    """``InternVLVisionModel``; its last norm is there only where features are not mean-pooled."""

    def __init__(self, config: Config, feature_layers: Sequence[int]) -> None:
        self.embeddings = VisionEmbeddings(config)
        self.encoder = VisionEncoder(config, feature_layers)
        self.layernorm = None if config.boolean("use_mean_pooling") else LayerNorm(config.integer("hidden_size"))

    @property
    def patch_numel(self) -> int:
        return self.embeddings.patch_numel

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> VisionOutput:
        with pixels.tape.section("vision.embedding"):
            embeddings = self.embeddings(pixels, batch)
        last, held = self.encoder.run(embeddings, lambda layer, x: layer(x, backend))
        if self.layernorm is not None:
            with pixels.tape.section("vision.norm"):
                last = self.layernorm(last)
        return VisionOutput(last, held)
