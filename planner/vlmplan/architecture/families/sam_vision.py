"""The vision tower of SAM: attention in windows and in a few layers over the whole picture, with learned biases by
distance, and two convolutions behind the layers.

Source: transformers 5.23 ``models/sam/modeling_sam.py`` and its copies in GOT-OCR 2 and others, which say where
their towers differ. Shapes are (pictures, rows, columns, channels), though channels lie before rows in memory as the
first convolution leaves them, up to the neck's first norm.
"""

from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, heads_together
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.indexing import take_rows
from vlmplan.architecture.modules import LayerNorm, Linear, Module, PatchEmbedding, Stack
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.ops.contractions import Groups, einsum, with_copied_gradient
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class Convolution(Module):
    """``nn.Conv2d`` without a bias, padded so that ``stride`` alone makes the result smaller; x and the result are
    (pictures, rows, columns, channels)."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, *, stride: int = 1) -> None:
        self.stride = stride
        self.weight = Parameter(out_channels, in_channels * kernel**2)
        self.weight.num_axes = 4

    def forward(self, x: Tensor) -> Tensor:
        num_pictures, rows, columns, _ = x.shape
        sides = (-(-rows // self.stride), -(-columns // self.stride))
        return ops.convolution(x, self.weight, None, (num_pictures, *sides, self.weight.shape[0]))


class PatchEmbeddings(Module):
    """``SamPatchEmbeddings``: (pictures, channels, height, width) to (pictures, rows, columns, width)."""

    def __init__(self, config: Config) -> None:
        self.side, self.num_channels = config.integer("patch_size"), config.integer("num_channels")
        self.projection = PatchEmbedding(self.num_channels * self.side**2, config.integer("hidden_size"), bias=True)

    def forward(self, pixels: Tensor) -> Tensor:
        num_pictures, _, height, width = pixels.shape
        rows, columns = height // self.side, width // self.side
        return self.projection(pixels.view(num_pictures, rows, columns, self.num_channels * self.side**2))


class Mlp(Module):
    """``SamMLPBlock``."""

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        inner = config.optional_integer("mlp_dim") or int(width * config.number("mlp_ratio"))
        self.lin1 = Linear(width, inner, bias=True)
        self.lin2 = Linear(inner, width, bias=True)
        self.lin2.copies_gradient = True
        self.act = ops.activation_module(config.text("hidden_act"))

    def forward(self, x: Tensor) -> Tensor:
        x = self.lin1(x)
        x = self.act(x)
        return self.lin2(x)


class Attention(Module):
    """``SamVisionAttention``: among the ``side`` squared patches of each window, which are all that there are where
    ``side`` is the picture's. Its scores are written out for eager attention, and without a ``backend``; else it is
    ``SamVisionSdpaAttention``, whose kernel takes the distances for a bias."""

    takes_keywords = True

    def __init__(self, config: Config, side: int) -> None:
        width, self.num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        head_dim = width // self.num_heads
        self.dropout = config.number("attention_dropout")
        self.qkv = Linear(width, 3 * width, bias=config.boolean("qkv_bias"))
        self.qkv.copies_gradient = True
        self.proj = Linear(width, width, bias=True)
        self.proj.copies_gradient = True
        self.has_distances = config.boolean("use_rel_pos")
        if self.has_distances:
            self.rel_pos_h = Parameter(2 * side - 1, head_dim)
            self.rel_pos_w = Parameter(2 * side - 1, head_dim)

    def forward(self, x: Tensor, backend: AttentionBackend | None) -> Tensor:
        if backend is not None and backend.implementation != "eager":
            return self.fused(x, backend)
        num_windows, rows, columns, width = x.shape
        # ``qkv`` keeps its name until the end, where its parts are copies too.
        qkv = self.qkv(x)
        query, key, value = self.by_head(qkv, rows * columns)
        scores = (num_windows * self.num_heads, rows * columns, rows * columns)
        weights = chunks.product(ops.scale(query), key, scores, query.shape[-1])
        bias = None
        if self.has_distances:
            bias = ops.copy(self.bias_of_distances(query, (rows, columns), is_whole=num_windows == 1), *scores)
            weights = ops.add(weights, bias)
        weights = ops.to(ops.softmax(weights, DType.FLOAT32), query.dtype)
        dropped = ops.dropout(weights, self.dropout, is_module=False)
        x.tape.layer_locals.append(weights.detached())
        out = chunks.product(dropped, value, query.shape, rows * columns)
        out = ops.copy(out, num_windows, rows, columns, width)
        del bias, qkv
        return self.proj(out)

    def fused(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        """``SamVisionSdpaAttention.forward``."""
        num_windows, rows, columns, width = x.shape
        num_patches = rows * columns
        qkv = self.qkv(x)
        query, key, value = self.by_head(qkv, num_patches)
        bias = None
        if self.has_distances:
            bias = self.bias_of_distances(query, (rows, columns), is_whole=num_windows == 1)
            bias = ops.copy(bias, num_windows, self.num_heads, num_patches, num_patches)
        heads = (num_windows, self.num_heads, num_patches, width // self.num_heads)
        query, key, value = query.view(*heads), key.view(*heads), value.view(*heads)
        out = attend(backend, query, key, value, is_causal=False, mask=bias)
        if num_windows > 1:  # queries of several windows lie head after head
            out = heads_together(backend, query, key, out, has_mask=bias is not None)
        out = out.view(num_windows, rows, columns, width)
        del bias, qkv
        return self.proj(out)

    def by_head(self, qkv: Tensor, num_patches: int) -> list[Tensor]:
        """Query, key and value (windows * heads, patches, head): views of one copy, or of ``qkv`` itself where it is
        of one window."""
        num_windows, width = qkv.shape[0], qkv.shape[-1] // 3
        shape = (num_windows * self.num_heads, num_patches, width // self.num_heads)
        if num_windows > 1:
            qkv = ops.copy(qkv, 3, *shape)
        return ops.split(qkv, shape, shape, shape)

    def bias_of_distances(self, query: Tensor, sides: tuple[int, int], *, is_whole: bool) -> Tensor:
        """``get_decomposed_rel_pos``: products of each query with learned vectors by row and by column, and for every
        pair of patches their sum, whose rows come before heads in memory."""
        num_sequences, _, head_dim = query.shape
        rows, columns = sides
        by_row = vectors_by_distance(self.rel_pos_h, rows, query)
        by_column = vectors_by_distance(self.rel_pos_w, columns, query)
        sizes = {"b": num_sequences, "h": rows, "w": columns, "c": head_dim}
        query = with_copied_gradient(query)
        # Queries of one window are views of the projection, (patches, 3, heads, head).
        order = "hw|bc" if is_whole else "bhwc"
        of_rows = einsum(
            query,
            by_row,
            Groups("h", "bw", "c", "k"),
            {**sizes, "k": rows},
            orders=(order, "hkc"),
            gradient_order="bhwk",
        )
        of_columns = einsum(
            query,
            by_column,
            Groups("w", "bh", "c", "k"),
            {**sizes, "k": columns},
            orders=(order, "wkc"),
            gradient_order="bhwk",
        )
        shape = (num_sequences, rows, columns, rows, columns)
        return chunks.outer_sum(
            of_rows.view(num_sequences, rows, columns, rows, 1),
            of_columns.view(num_sequences, rows, columns, 1, columns),
            shape,
        )


def vectors_by_distance(weight: Parameter, side: int, like: Tensor) -> Tensor:
    """``get_rel_pos``: (side, side, head), the vector for each pair of places, of as many as there are distances. The
    distances are found on the host."""
    tape, num_distances, head_dim = like.tape, 2 * side - 1, weight.shape[1]
    resized = ops.interpolate(ops.expand_weight(weight, weight.shape, tape), num_distances, head_dim)
    distances = tape.tensor((0,), DType.INT64)
    return take_rows(resized, distances, (side, side, head_dim))


class Layer(Module):
    """``SamVisionLayer``: attention within windows of ``window`` patches a side, or 0: over all."""

    attention: Any = Attention

    def __init__(self, config: Config, window: int) -> None:
        width, self.window = config.integer("hidden_size"), window
        self.layer_norm1 = LayerNorm(width)
        self.attn = self.attention(config, window or patches_a_side(config))
        self.layer_norm2 = LayerNorm(width)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, backend: AttentionBackend | None = None) -> Tensor:
        residual = x
        x = self.layer_norm1(x)
        if self.window:
            x = self.in_windows(x)
        x = self.attn(x, backend)
        if self.window:
            x = self.out_of_windows(x, residual.shape)
        x = ops.add(residual, x)
        normed = self.layer_norm2(x)
        return ops.add(x, self.mlp(normed))

    def in_windows(self, x: Tensor) -> Tensor:
        """``window_partition``: filled up to whole windows, a copy, and put in their order, another one."""
        num_pictures, rows, columns, width = x.shape
        down, across = -(-rows // self.window), -(-columns // self.window)
        x = chunks.pad(x, num_pictures, down * self.window, across * self.window, width)
        shape = (num_pictures * down * across, self.window, self.window, width)
        return ops.resample(x, *shape) if across > 1 else x.view(*shape)

    def out_of_windows(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """``window_unpartition``: in the order of the picture, a copy, and without what filled it up, another one."""
        num_pictures, rows, columns, width = shape
        down, across = -(-rows // self.window), -(-columns // self.window)
        whole = (num_pictures, down * self.window, across * self.window, width)
        x = ops.resample(x, *whole) if across > 1 else x.view(*whole)
        return x if whole == shape else ops.copy(ops.part(x, *shape))


class Neck(Module):
    """``SamVisionNeck``."""

    def __init__(self, config: Config) -> None:
        width = config.integer("output_channels")
        self.conv1 = Convolution(config.integer("hidden_size"), width, 1)
        self.layer_norm1 = LayerNorm(width)
        self.conv2 = Convolution(width, width, 3)
        self.layer_norm2 = LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        x = self.layer_norm1(x)
        x = self.conv2(x)
        return self.layer_norm2(x)


class SamTower(Module):
    """The modules of ``SamVisionEncoder``."""

    INPUT_EMBEDDING = "patch_embed"

    def __init__(self, config: Config) -> None:
        side = patches_a_side(config)
        has_positions = config.boolean("use_abs_pos")
        self.pos_embed = Parameter(1, side, side, config.integer("hidden_size")) if has_positions else None
        self.patch_embed = PatchEmbeddings(config)
        self.layers = self.stack(config)
        self.neck = Neck(config)

    def stack(self, config: Config) -> Stack:
        num_layers, whole = config.integer("num_hidden_layers"), config.integers("global_attn_indexes")
        pattern = [int(index in whole) for index in range(num_layers)]
        kinds = [Layer(config, window) for window in (config.count("window_size"), 0)]
        return Stack(kinds, pattern, label="vision")

    def embedded(self, pixels: Tensor) -> Tensor:
        x = self.patch_embed(pixels)
        return x if self.pos_embed is None else ops.add(x, self.pos_embed)


class SamVision(SamTower):
    """``SamVisionEncoder``: pixels to features (pictures, rows, columns, ``output_channels``). Its scores are written
    out whatever attention is asked for."""

    def forward(self, pixels: Tensor) -> Tensor:
        with pixels.tape.section("vision.embedding"):
            embedded = [self.embedded(pixels)]
        # What the layers begin with has no other name.
        x = self.layers.run(embedded.pop(), lambda layer, x: layer(x))
        with pixels.tape.section("vision.neck"):
            return self.neck(x)


def patches_a_side(config: Config) -> int:
    return config.integer("image_size") // config.integer("patch_size")
