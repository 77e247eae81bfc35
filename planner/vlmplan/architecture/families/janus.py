"""Janus: a tower like SigLIP's, an aligner, and a Llama; what draws images stands beside them and takes no part.

Source: transformers 5.23 ``models/janus/modeling_janus.py``. Its ``forward`` reads images and text alone: the encoder
and decoder of images in words, their embeddings, aligner and head are for ``generate(generation_mode="image")``.
"""

from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.clip_vision import VisionEmbeddings
from vlmplan.architecture.families.deepseek_vl import DeepseekVl, DeepseekVlModel
from vlmplan.architecture.families.janus_words import words_of_images
from vlmplan.architecture.families.packed_patches import Sequential
from vlmplan.architecture.families.residual_layers import PreNormLayer
from vlmplan.architecture.families.text import text_decoder, ties_word_embeddings
from vlmplan.architecture.families.vision_tower import EqualLayers, VisionOutput
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed


class Attention(Module):
    """``JanusVisionAttention``."""

    def __init__(self, config: Config) -> None:
        width, has_bias = config.integer("hidden_size"), config.boolean("attention_bias")
        self.num_heads = config.integer("num_attention_heads")
        if config.boolean("use_qk_norm") and self.num_heads > 1:
            # Norms as wide as all heads, of one head's values: transformers' own forward ends.
            raise not_allowed(CONFIG, "vision_config.use_qk_norm", True, "false")
        self.dropout = config.number("projection_dropout")
        self.scores = Scores(dropout=config.number("attention_dropout"))
        self.q_proj = Linear(width, width, bias=has_bias)
        self.k_proj = Linear(width, width, bias=has_bias)
        self.v_proj = Linear(width, width, bias=has_bias)
        self.projection_layer = Linear(width, width, bias=True)
        if config.boolean("use_qk_norm"):
            self.q_norm = LayerNorm(width)
            self.k_norm = LayerNorm(width)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        batch, num_tokens, width = x.shape
        heads = (batch, self.num_heads, num_tokens, width // self.num_heads)
        q = self.q_proj(x)
        k = self.k_proj(x)
        v = self.v_proj(x)
        if self.modules_by_name.get("q_norm") is not None:
            q = self.q_norm(q)
            k = self.k_norm(k)
        parts = q.view(*heads), k.view(*heads), v.view(*heads)
        out = attend(backend, *parts, is_causal=False, scores=self.scores)
        out = self.projection_layer(out)
        return ops.dropout(out, self.dropout) if self.dropout else out


class Mlp(Module):
    """``JanusVisionMLP``."""

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        inner = int(width * config.number("mlp_ratio"))
        self.dropout = config.number("hidden_dropout_rate")
        self.activation_fn = ops.activation_module(config.text("hidden_act"))
        self.fc1 = Linear(width, inner, bias=True)
        self.fc2 = Linear(inner, width, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = self.activation_fn(x)
        x = ops.dropout(x, self.dropout)
        x = self.fc2(x)
        return ops.dropout(x, self.dropout)


class VisionLayer(PreNormLayer):
    """``JanusVisionEncoderLayer``."""

    MODULES = ("layer_norm1", "self_attn", "layer_norm2", "mlp")

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.layer_norm1 = LayerNorm(width)
        self.self_attn = Attention(config)
        self.layer_norm2 = LayerNorm(width)
        self.mlp = Mlp(config)


class JanusVision(Module):
    """``JanusVisionModel``: its last norm runs once more on the first patch, which nothing reads."""

    INPUT_EMBEDDING = "embeddings"

    def __init__(self, config: Config) -> None:
        self.embeddings = VisionEmbeddings(config, has_class_token=False)
        self.encoder = EqualLayers(VisionLayer(config), config)
        self.post_layernorm = LayerNorm(config.integer("hidden_size"))

    @property
    def patch_numel(self) -> int:
        return self.embeddings.patch_numel

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> VisionOutput:
        with pixels.tape.section("vision.embedding"):
            embeddings = self.embeddings(pixels, batch)
        # The embeddings and the last layer's result keep their names until this function returns.
        encoded = self.encoder.layers.run(embeddings, lambda layer, x: layer(x, backend))
        with pixels.tape.section("vision.pooling"):
            last = self.post_layernorm(encoded)
            num_pictures, _, width = last.shape
            pooled = self.post_layernorm(ops.part(last, num_pictures, width))
        return VisionOutput(last, pooled=pooled)


class Aligner(Module):
    """``JanusVisionAlignerMLP`` and ``JanusVQVAEAlignerMLP``: ``num_layers`` Linears with activations between them."""

    def __init__(self, in_width: int, width: int, num_layers: int, activation: str) -> None:
        self.fc1 = Linear(in_width, width, bias=True)
        self.hidden_layers = Sequential({
            str(index): Linear(width, width, bias=True) for index in range(num_layers - 1)
        })  # fmt: skip
        self.activation_fn = ops.activation_module(activation)

    def forward(self, features: Tensor) -> Tensor:
        x = self.fc1(features)
        for _, layer in self.hidden_layers.children():
            x = self.activation_fn(x)
            x = layer(x)
        return x


class JanusModel(DeepseekVlModel):
    """``JanusModel``."""

    def __init__(self, config: Config) -> None:
        vision, words = config.section("vision_config"), config.section("vq_config")
        activation, width = words.text("hidden_act"), words.integer("projection_dim")
        self.vision_model: Any = JanusVision(vision)
        out_width, depth = vision.integer("projection_dim"), vision.integer("depth")
        self.aligner = Aligner(vision.integer("hidden_size"), out_width, depth, vision.text("hidden_act"))
        self.vqmodel = words_of_images(words)
        self.generation_embeddings = Embedding(words.integer("num_embeddings"), words.integer("embed_dim"))
        self.generation_aligner = Aligner(
            words.integer("embed_dim"), width, words.integer("num_hidden_layers"), activation
        )
        self.generation_head = Sequential({
            "proj_out": Linear(words.integer("image_token_embed_dim"), width, bias=True),
            "vision_head": Linear(width, words.integer("num_embeddings"), bias=True),
        })  # fmt: skip
        self.language_model: Any = text_decoder(config.section("text_config"))


class Janus(DeepseekVl):
    """``JanusForConditionalGeneration``."""

    PARTS = {
        "model.vision_model": Part.VISION,
        "model.vqmodel": Part.VISION,
        "model.generation_embeddings": Part.PROJECTOR,
        "model.generation_aligner": Part.PROJECTOR,
        "model.generation_head": Part.PROJECTOR,
        "model.aligner": Part.PROJECTOR,
    }


def build(config: Config) -> Janus:
    """``JanusForConditionalGeneration``."""
    ties_weights = ties_word_embeddings(config, config.section("text_config"))
    return Janus(JanusModel(config), ties_weights=ties_weights)
