"""Qwen2.5-VL: Qwen2-VL with RMSNorm and a gated MLP in the vision blocks, most of which attend within windows.

Source: transformers 5.23 ``models/qwen2_5_vl/modeling_qwen2_5_vl.py`` and ``vision_utils.py``
(``get_vision_window_index``).
"""

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.image_text import ties_either
from vlmplan.architecture.families.llama import GatedMlp, decoder_shape, stack_of_kinds
from vlmplan.architecture.families.packed_patches import (
    MultimodalDecoder,
    PatchAttention,
    PatchBlock,
    PatchContext,
    PatchEmbed,
    patch_lengths,
    patch_positions,
)
from vlmplan.architecture.families.qwen2_vl import PatchMerger, Qwen2VL, VisionLanguageModel
from vlmplan.architecture.images import ImageShape
from vlmplan.architecture.indexing import take_rows
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Module, RMSNorm
from vlmplan.architecture.packed_lengths import PackedLengths
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


def window_lengths(image: ImageShape, *, merge_size: int, merged_per_side: int) -> tuple[tuple[int, int], ...]:
    """(patches, windows) of attention windows of one image, row by row.

    The grid of merged tokens is cut into squares of ``merged_per_side``; those at the right and lower edge are smaller.
    """
    rows, columns = image.num_patch_rows // merge_size, image.num_patch_columns // merge_size
    heights = [min(merged_per_side, rows - top) for top in range(0, rows, merged_per_side)]
    num_whole, rest = divmod(columns, merged_per_side)
    widths = [(width, count) for width, count in ((merged_per_side, num_whole), (rest, 1)) if width and count]
    return tuple((height * width * merge_size**2, count) for height in heights for width, count in widths)


class VisionBlock(PatchBlock):
    """Pre-norm attention, within windows or the whole image, and a gated MLP."""

    ATTENTION = PatchAttention

    def __init__(self, config: Config, *, sees_windows: bool) -> None:
        self.sees_windows = sees_windows
        width = config.integer("hidden_size")
        self.norm1 = RMSNorm(width)
        self.norm2 = RMSNorm(width)
        self.attn = self.ATTENTION(width, config.integer("num_heads"))
        self.mlp = GatedMlp(width, config.integer("intermediate_size"), activation=config.text("hidden_act"), bias=True)


class VisionTransformer(Module):
    """``Qwen2_5_VisionTransformerPretrainedModel``."""

    ROTARY_MODULES = ("rotary_pos_emb",)
    INPUT_EMBEDDING = "patch_embed"

    BLOCK = VisionBlock

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.head_dim = width // config.integer("num_heads")
        self.merge_size = config.integer("spatial_merge_size")
        self.merged_per_side = config.integer("window_size") // self.merge_size // config.integer("patch_size")
        self.patch_embed = PatchEmbed(config, width)
        full = config.integers("fullatt_block_indexes")
        kinds = [index not in full for index in range(config.integer("depth"))]
        self.blocks = stack_of_kinds(kinds, lambda kind: self.BLOCK(config, sees_windows=kind), label="vision")
        self.merger = PatchMerger(RMSNorm(width), width, config.integer("out_hidden_size"), self.merge_size)

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        """(last hidden state of the patches, merged features); both stay alive in the encoder's output object."""
        tape = pixels.tape
        assert batch.image is not None
        windows = window_lengths(batch.image, merge_size=self.merge_size, merged_per_side=self.merged_per_side)
        with tape.section("vision.embedding"):
            x = self.patch_embed(pixels)
            tape.prefetch()  # for the module of the positions
            order = tape.tensor((x.shape[0] // self.merge_size**2,), DType.INT64)
            x = take_rows(x, order, x.shape)
            # cos and sin are put into the order of the windows like the patches, one by one.
            positions = patch_positions(x, self.head_dim)
            positions = patch_positions(x, self.head_dim)
            context = PatchContext(backend, positions, patch_lengths(batch), PackedLengths(windows, batch.num_images))
        embedded = [x]
        del x  # the first block's input does not outlive the block
        x = self.blocks.run(embedded.pop(), lambda block, hidden: block(hidden, context))
        with tape.section("vision.merger"):
            merged = self.merger(x)
            return x, take_rows(merged, order, merged.shape)


def build(config: Config) -> Qwen2VL:
    """``Qwen2_5_VLForConditionalGeneration``; older files keep the text configuration at the top level."""
    text = config.section("text_config", is_flat=True)
    shape = decoder_shape(text)
    model = VisionLanguageModel(VisionTransformer(config.section("vision_config")), MultimodalDecoder(shape))
    return Qwen2VL(model, ties_weights=ties_either(config, text))
