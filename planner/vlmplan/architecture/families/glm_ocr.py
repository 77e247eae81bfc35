"""GLM-OCR: GLM-4.1V's tower without learned positions and with normed queries and keys, before a GLM-4 without biases.

Source: transformers 5.23 ``models/glm_ocr/modeling_glm_ocr.py``. In its vision config ``intermediate_size`` is the
inner width of the blocks' MLP, and the merger is ``in_channels`` times as wide inside as the decoder. The layer of
published checkpoints that predicts more than one token is left out by transformers
(``_keys_to_ignore_on_load_unexpected``).
"""

from collections.abc import Sequence
from dataclasses import replace

from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.glm4v import (
    DecoderLayer,
    Downsampling,
    Glm4v,
    MergingTower,
    PatchMerger,
)
from vlmplan.architecture.families.image_text import ties_either
from vlmplan.architecture.families.llama import GatedMlp, decoder_shape
from vlmplan.architecture.families.packed_patches import (
    MultimodalDecoder,
    PatchAttention,
    PatchBlock,
    PatchContext,
    PatchEmbed,
    patch_lengths,
    patch_positions,
)
from vlmplan.architecture.families.partial_rotary import rotary_fraction
from vlmplan.architecture.families.qwen2_vl import VisionLanguageModel
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import RMSNorm, Stack
from vlmplan.architecture.tensor import Tensor


class NormedPatchAttention(PatchAttention):
    """``GlmOcrVisionAttention``."""

    def __init__(self, width: int, num_heads: int, *, bias: bool) -> None:
        super().__init__(width, num_heads, qkv_bias=bias, output_bias=bias)
        self.q_norm = RMSNorm(width // num_heads)
        self.k_norm = RMSNorm(width // num_heads)

    def projected(self, x: Tensor, head: tuple[int, int, int]) -> Sequence[Tensor]:
        q, k, v = super().projected(x, head)
        return self.q_norm(q), self.k_norm(k), v


class VisionBlock(PatchBlock):
    """``GlmOcrVisionBlock``: pre-norm attention and gated MLP."""

    def __init__(self, config: Config, width: int) -> None:
        bias, inner = config.boolean("attention_bias"), config.integer("intermediate_size")
        self.norm1 = RMSNorm(width)
        self.norm2 = RMSNorm(width)
        self.attn = NormedPatchAttention(width, config.integer("num_heads"), bias=bias)
        self.attn.scores = Scores(dropout=config.number("attention_dropout"))
        self.mlp = GatedMlp(width, inner, activation=config.text("hidden_act"), bias=bias)


class VisionTransformer(MergingTower):
    """``GlmOcrVisionModel``."""

    def __init__(self, config: Config) -> None:
        width, self.out_width = config.integer("hidden_size"), config.integer("out_hidden_size")
        inner = self.out_width * config.integer("in_channels")
        self.head_dim = width // config.integer("num_heads")
        self.merged_width = width * config.integer("spatial_merge_size") ** 2
        self.patch_embed = PatchEmbed(config, width, bias=True)
        self.blocks = Stack.of(VisionBlock(config, width), config.integer("depth"), label="vision")
        self.merger = PatchMerger(self.out_width, inner, config.text("hidden_act"))
        self.downsample = Downsampling(self.merged_width, self.out_width, bias=True)
        self.post_layernorm = RMSNorm(width)

    def embedded(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, PatchContext]:
        x = self.patch_embed(pixels)
        x.tape.prefetch()  # for the module of the positions
        return x, PatchContext(backend, patch_positions(x, self.head_dim), patch_lengths(batch))


def decoder(text: Config) -> MultimodalDecoder:
    """``GlmOcrTextModel``."""
    shape = replace(decoder_shape(text), qkv_bias=False, output_bias=False)
    rotary_width = int(shape.head_dim * rotary_fraction(text))
    layers = Stack.of(DecoderLayer(shape), shape.num_layers, label="layers")
    return MultimodalDecoder(shape, layers, rotary_width=rotary_width)


def build(config: Config) -> Glm4v:
    """``GlmOcrForConditionalGeneration``."""
    text = config.section("text_config")
    model = VisionLanguageModel(VisionTransformer(config.section("vision_config")), decoder(text))
    return Glm4v(model, ties_weights=ties_either(config, text))
