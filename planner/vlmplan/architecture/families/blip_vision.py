"""The vision tower of BLIP-2 and InstructBLIP: EVA's ViT-g with a class token and one Linear for q, k and v.

Source: transformers 5.23 ``models/blip_2/modeling_blip_2.py``, ``Blip2VisionModel``, and its copy in ``instructblip``.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.clip_vision import Mlp
from vlmplan.architecture.families.vision_tower import EqualLayers
from vlmplan.architecture.modules import LayerNorm, Linear, Module, PatchEmbedding
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError

NUM_CHANNELS = 3
"""Fixed in ``Blip2VisionEmbeddings``."""


class VisionAttention(Module):
    """``Blip2Attention``: q, k and v are selected one by one, so each has a gradient of the whole product's size."""

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.num_heads = config.integer("num_attention_heads")
        self.scores = Scores(dropout=config.number("attention_dropout"), upcasts=False, casts_back=False)
        self.qkv = Linear(width, 3 * width, bias=config.boolean("qkv_bias"))
        self.projection = Linear(width, width, bias=True)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        batch, num_tokens, width = x.shape
        heads = (batch, self.num_heads, num_tokens, width // self.num_heads)
        mixed = self.qkv(x)
        q, k, v = ops.part(mixed, *heads), ops.part(mixed, *heads), ops.part(mixed, *heads)
        return self.projection(attend(backend, q, k, v, is_causal=False, scores=self.scores))


class VisionLayer(Module):
    """``Blip2EncoderLayer``: pre-norm attention and MLP."""

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.self_attn = VisionAttention(config)
        self.layer_norm1 = LayerNorm(width)
        self.mlp = Mlp(width, config.integer("intermediate_size"), config.text("hidden_act"))
        self.layer_norm2 = LayerNorm(width)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        residual = x
        x = self.layer_norm1(x)
        x = self.self_attn(x, backend)
        x = ops.add(x, residual)
        residual = x
        x = self.layer_norm2(x)
        x = self.mlp(x)
        return ops.add(x, residual)


class VisionEmbeddings(Module):
    """``Blip2VisionEmbeddings``: class token and patches, learned positions."""

    def __init__(self, config: Config) -> None:
        width, self.patch_size = config.integer("hidden_size"), config.integer("patch_size")
        self.num_positions = (config.integer("image_size") // self.patch_size) ** 2 + 1
        self.class_embedding = Parameter(1, 1, width)
        self.position_embedding = Parameter(1, self.num_positions, width)
        self.patch_embedding = PatchEmbedding(NUM_CHANNELS * self.patch_size**2, width, bias=True)

    def forward(self, pixels: Tensor) -> Tensor:
        num_images, _, height, width_pixels = pixels.shape
        num_patches = (height // self.patch_size) * (width_pixels // self.patch_size)
        if num_patches + 1 != self.num_positions:
            raise InputError(
                f"the vision tower takes {self.num_positions - 1} patches of {self.patch_size} pixels a side; "
                f"images of {width_pixels}x{height} have {num_patches}"
            )
        pixels = ops.to(pixels, self.class_embedding.dtype)
        patches = self.patch_embedding(pixels.view(num_images, num_patches, NUM_CHANNELS * self.patch_size**2))
        width = patches.shape[-1]
        class_tokens = ops.expand_weight(self.class_embedding, (num_images, 1, width), pixels.tape)
        embeddings = ops.concatenate([class_tokens, patches], (num_images, self.num_positions, width))
        return ops.add(embeddings, self.position_embedding)


class BlipVision(Module):
    """``Blip2VisionModel``."""

    INPUT_EMBEDDING = "embeddings"

    def __init__(self, config: Config) -> None:
        self.embeddings = VisionEmbeddings(config)
        self.encoder = EqualLayers(VisionLayer(config), config)
        self.post_layernorm = LayerNorm(config.integer("hidden_size"))

    def forward(self, pixels: Tensor, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        """(last hidden state, its class token normed once more); the second is not used but handed out."""
        tape = pixels.tape
        with tape.section("vision.embedding"):
            embeddings = self.embeddings(pixels)
        # The embeddings stay in a local variable of the original until it returns.
        last = self.encoder.layers.run(embeddings, lambda layer, x: layer(x, backend))
        with tape.section("vision.norm"):
            last = self.post_layernorm(last)
            return last, self.post_layernorm(ops.part(last, last.shape[0], last.shape[2]))
