"""The visual part of Qwen-VL: a ViT-bigG of OpenCLIP, and a resampler of 256 learned queries behind it.

Source: ``visual.py`` in the files of Qwen/Qwen-VL-Chat (remote code, not in transformers). Attention is written out in
the model's type, under autocast with probabilities in float32. The published file has no activation checkpointing for
these layers.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.modules import LayerNorm, Linear, Module, PatchEmbedding, Stack
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.units import DType

NUM_POSITIONS = 256
"""Rows of the position tables, whatever the number of patches (they are interpolated)."""
NUM_QUERIES = 256
"""``n_queries`` of the vision transformer, a default that the published configuration does not override."""
RESAMPLER_HEAD_DIM = 128


class VisualAttention(Module):
    """Self-attention over (patches, images, width) with one projection for q, k and v."""

    def __init__(self, width: int, num_heads: int) -> None:
        self.num_heads = num_heads
        self.in_proj = Linear(width, 3 * width, bias=True)
        self.out_proj = Linear(width, width, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        num_patches, num_images, width = x.shape
        num_heads = num_images * self.num_heads
        head = (num_heads, num_patches, width // self.num_heads)
        q, k, v = ops.split(self.in_proj(x), head, head, head)
        q = ops.scale(q)
        weights = ops.matmul(q, k, (num_heads, num_patches, num_patches), head[-1])
        weights = ops.softmax(weights)
        out = ops.matmul(ops.to(weights, v.dtype), v, head, num_patches)  # autocast casts for the product
        out = ops.copy(out, *x.shape)
        return self.out_proj(out)


class VisualMlp(Module):
    """``c_proj(gelu(c_fc(x)))``."""

    def __init__(self, width: int, inner: int) -> None:
        self.c_fc = Linear(width, inner, bias=True)
        self.c_proj = Linear(inner, width, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(ops.gelu(self.c_fc(x)))


class VisualBlock(Module):
    """``VisualAttentionBlock``: pre-norm attention and MLP."""

    def __init__(self, width: int, num_heads: int, inner: int) -> None:
        self.ln_1 = LayerNorm(width)
        self.ln_2 = LayerNorm(width)
        self.attn = VisualAttention(width, num_heads)
        self.mlp = VisualMlp(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        x = ops.add(x, self.attn(self.ln_1(x)))
        return ops.add(x, self.mlp(self.ln_2(x)))


class VisualLayers(Module):
    """``TransformerBlock``: the list of blocks."""

    def __init__(self, block: VisualBlock, num_layers: int) -> None:
        self.resblocks = Stack([block], [0] * num_layers, label="vision", can_checkpoint=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.resblocks.run(x, lambda block, hidden: block(hidden))


class CrossAttention(Module):
    """``nn.MultiheadAttention`` with its weights returned: three products out of one parameter."""

    def __init__(self, width: int) -> None:
        self.num_heads = width // RESAMPLER_HEAD_DIM
        self.in_proj_weight = Parameter(3 * width, width)
        self.in_proj_bias = Parameter(3 * width)
        self.out_proj = Linear(width, width, bias=True)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query (queries, images, width), key and value (patches, images, width)."""
        num_queries, num_images, width = query.shape
        tape = query.tape
        weights = thirds(self.in_proj_weight, (width, width), tape)
        biases = thirds(self.in_proj_bias, (width,), tape)
        q, k, v = (ops.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
        num_heads, num_keys = num_images * self.num_heads, key.shape[0]
        head = (num_heads, num_queries, RESAMPLER_HEAD_DIM)
        q = ops.scale(q.view(*head))
        k, v = (x.view(num_heads, num_keys, RESAMPLER_HEAD_DIM) for x in (k, v))
        scores = ops.softmax(ops.matmul(q, k, (num_heads, num_queries, num_keys), RESAMPLER_HEAD_DIM))
        out = ops.matmul(ops.to(scores, v.dtype), v, head, num_keys)
        out = self.out_proj(ops.copy(out, num_queries * num_images, width))
        # need_weights: their mean over the heads is returned beside the result.
        average = tape.tensor((num_images, num_queries, num_keys), scores.dtype)
        del average
        return out.view(*query.shape)


def thirds(weight: Parameter, shape: tuple[int, ...], tape: ForwardTape) -> list[Tensor]:
    """``weight.chunk(3)``: views of a weight; their gradients are put together into one."""
    node = tape.node((weight,), _thirds_backward, meta=(weight.shape, weight.dtype))
    storage = tape.tensor((0,), weight.dtype).storage
    parts = [Tensor(storage, shape, weight.dtype, node) for _ in range(3)]
    for index, part in enumerate(parts):
        part.output_index = index
    return parts


def _thirds_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    shape, dtype = node.meta
    tape = next(grad for grad in grads if grad is not None).tape
    out = tape.gradient(shape, dtype)
    tape.move(2 * out.num_bytes)
    return (out,)


class Resampler(Module):
    """Cross-attention of learned queries over the patches of an image, with fixed two-dimensional positions.

    The published code keeps ``pos_embed`` out of training; here it is a parameter like the others (0.01%).
    """

    def __init__(self, width: int, key_width: int) -> None:
        self.pos_embed = Parameter(NUM_POSITIONS, width)
        self.query = Parameter(NUM_QUERIES, width)
        self.kv_proj = Linear(key_width, width)
        self.attn = CrossAttention(width)
        self.ln_q = LayerNorm(width)
        self.ln_kv = LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """x (images, patches, key width); the result (images, queries, width)."""
        tape = x.tape
        num_images, num_patches, _ = x.shape
        positions = interpolated(self.pos_embed, num_patches, tape)
        x = self.ln_kv(self.kv_proj(x))
        width = x.shape[-1]
        x = x.view(num_patches, num_images, width)
        q = self.ln_q(ops.expand_weight(self.query, self.query.shape, tape))
        repeated = _repeated(q, num_images)
        query_positions = ops.expand_weight(self.pos_embed, (NUM_QUERIES, 1, width), tape)
        out = self.attn(ops.add(repeated, query_positions), ops.add(x, positions.view(num_patches, 1, width)), x)
        return out.view(num_images, NUM_QUERIES, width)


def _repeated(x: Tensor, count: int) -> Tensor:
    """``x.unsqueeze(1).repeat(1, count, 1)``: a copy for each image; its gradient is summed over them."""
    rows, width = x.shape
    node = x.tape.node((x,), ops.summed_backward, meta=x.shape)
    out = x.tape.tensor((rows, count, width), x.dtype, node)
    x.tape.move(2 * out.num_bytes)
    return out


def interpolated(table: Parameter, num_patches: int, tape: ForwardTape) -> Tensor:
    """``get_abs_pos``: the table itself, or resampled in float32 to the grid of the patches and cast back."""
    rows, width = table.shape
    positions = ops.expand_weight(table, (rows, width), tape)
    if num_patches == rows:
        return positions
    return ops.to(ops.resample(ops.to(positions, DType.FLOAT32), num_patches, width), table.dtype)


class VisionTransformer(Module):
    """``VisionTransformer``: patches, blocks, resampler, norm and a square projection."""

    def __init__(self, config: Config) -> None:
        width, out_width = config.integer("width"), config.integer("output_dim")
        self.patch_numel = 3 * config.integer("patch_size") ** 2
        self.positional_embedding = Parameter(NUM_POSITIONS, width)
        self.proj = Parameter(out_width, out_width)
        self.conv1 = PatchEmbedding(self.patch_numel, width, bias=False)
        self.ln_pre = LayerNorm(width)
        block = VisualBlock(width, config.integer("heads"), int(width * config.positive_number("mlp_ratio")))
        self.transformer = VisualLayers(block, config.integer("layers"))
        self.attn_pool = Resampler(out_width, width)
        self.ln_post = LayerNorm(out_width)

    def forward(self, pixels: Tensor, num_images: int) -> Tensor:
        """pixels (patches of all images, values of a patch); the result (images, queries, width of the decoder)."""
        tape = pixels.tape
        with tape.section("vision.embedding"):
            num_patches = pixels.shape[0] // num_images
            x = self.conv1(pixels)
            width = x.shape[-1]
            x = x.view(num_images, num_patches, width)
            x = ops.add(x, interpolated(self.positional_embedding, num_patches, tape).view(1, num_patches, width))
            x = self.ln_pre(x).view(num_patches, num_images, width)
        x = self.transformer(x)
        with tape.section("vision.resampler"):
            x = self.attn_pool(x.view(num_images, num_patches, width))
            return ops.linear(self.ln_post(x), self.proj)
