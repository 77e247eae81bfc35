"""The vision tower of Gemma 4: patches of an image with their places, filled up to one number for all images.

Source: transformers 5.23 ``models/gemma4/modeling_gemma4.py``, ``Gemma4VisionModel``.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gemma4_experts import Gemma4Norm
from vlmplan.architecture.families.residual_layers import SandwichNormLayer
from vlmplan.architecture.indexing import take_rows
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Linear, Module, Stack
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.units import DType


class ClippableLinear(Module):
    """``Gemma4ClippableLinear``: where ``use_clipped_linears``, input and result are clamped between stored limits."""

    def __init__(self, config: Config, in_features: int, out_features: int) -> None:
        self.clips = config.boolean("use_clipped_linears")
        self.linear = Linear(in_features, out_features)

    def forward(self, x: Tensor) -> Tensor:
        if self.clips:
            x = ops.clamp(x, num_limits=2)
        x = self.linear(x)
        return ops.clamp(x, num_limits=2) if self.clips else x


class VisionContext:
    """What every layer is called with besides the hidden states."""

    __slots__ = ("backend", "cos", "mask", "sin")

    def __init__(self, backend: AttentionBackend, cos: Tensor, sin: Tensor, mask: Tensor | None) -> None:
        self.backend, self.cos, self.sin, self.mask = backend, cos, sin, mask


class VisionAttention(Module):
    """``Gemma4VisionAttention``: queries, keys and values are normed; halves of a head turn with column and row."""

    def __init__(self, config: Config) -> None:
        width, self.head_dim = config.integer("hidden_size"), config.integer("head_dim")
        self.num_heads = config.integer("num_attention_heads")
        self.num_kv_heads = config.integer("num_key_value_heads")
        self.scores = Scores(dropout=config.number("attention_dropout"))
        query_width, key_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.q_proj = ClippableLinear(config, width, query_width)
        self.k_proj = ClippableLinear(config, width, key_width)
        self.v_proj = ClippableLinear(config, width, key_width)
        self.o_proj = ClippableLinear(config, query_width, width)
        self.q_norm = Gemma4Norm(self.head_dim)
        self.k_norm = Gemma4Norm(self.head_dim)
        self.v_norm = Gemma4Norm(None)

    def forward(self, x: Tensor, context: VisionContext) -> Tensor:
        batch, num_patches, _ = x.shape
        q = self.q_proj(x).view(batch, self.num_heads, num_patches, self.head_dim)
        q = self.q_norm(q)
        q = _rotated(q, context)
        k = self.k_proj(x).view(batch, self.num_kv_heads, num_patches, self.head_dim)
        k = self.k_norm(k)
        k = _rotated(k, context)
        v = self.v_proj(x).view(batch, self.num_kv_heads, num_patches, self.head_dim)
        v = self.v_norm(v)
        return self.o_proj(attend(context.backend, q, k, v, is_causal=False, mask=context.mask, scores=self.scores))


def _rotated(x: Tensor, context: VisionContext) -> Tensor:
    """``apply_multidimensional_rope``: both halves of a head rotated apart and put together."""
    half = (*x.shape[:-1], x.shape[-1] // 2)
    parts = ops.split(x, half, half)
    return ops.concatenate([ops.rotate(part, context.cos, context.sin) for part in parts], x.shape)


class VisionMlp(Module):
    """``Gemma4VisionMLP``."""

    def __init__(self, config: Config) -> None:
        width, inner = config.integer("hidden_size"), config.integer("intermediate_size")
        self.gate_proj = ClippableLinear(config, width, inner)
        self.up_proj = ClippableLinear(config, width, inner)
        self.down_proj = ClippableLinear(config, inner, width)
        self.act_fn = ops.activation_module(config.text("hidden_activation"))

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(ops.mul(self.act_fn(self.gate_proj(x)), self.up_proj(x)))


class VisionLayer(SandwichNormLayer):
    """``Gemma4VisionEncoderLayer``."""

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.self_attn = VisionAttention(config)
        self.mlp = VisionMlp(config)
        self.input_layernorm = Gemma4Norm(width)
        self.post_attention_layernorm = Gemma4Norm(width)
        self.pre_feedforward_layernorm = Gemma4Norm(width)
        self.post_feedforward_layernorm = Gemma4Norm(width)


class PatchEmbedder(Module):
    """``Gemma4VisionPatchEmbedder``: a Linear, and the sum of a row and a column of a learned table."""

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.position_embedding_table = Parameter(2, config.integer("position_embedding_size"), width)
        self.input_proj = Linear(3 * config.integer("patch_size") ** 2, width)

    def forward(self, pixels: Tensor) -> Tensor:
        pixels = ops.scale(ops.shift(pixels))
        pixels = ops.to(pixels, self.input_proj.weight.dtype)
        return ops.add(self.input_proj(pixels), self._positions(pixels))

    def _positions(self, pixels: Tensor) -> Tensor:
        tape = pixels.tape
        places = tape.tensor((*pixels.shape[:-1], 2), DType.INT64)
        columns = ops.embedding(places.view(*pixels.shape[:-1]), _table(self.position_embedding_table, tape))
        rows = ops.embedding(places.view(*pixels.shape[:-1]), _table(self.position_embedding_table, tape))
        positions = ops.add(columns, rows)
        return ops.scale(positions)  # zeros where a patch only fills up


def _table(weight: Parameter, tape: ForwardTape) -> Tensor:
    """``weight[0]``: a view; its gradient is written into one of the whole weight's size."""
    node = tape.node((weight,), _table_backward, meta=(weight.shape, weight.dtype))
    return Tensor(tape.tensor((0,), weight.dtype).storage, weight.shape[1:], weight.dtype, node)


def _table_backward(node: GraphNode, grads: Grads) -> Grads:
    g = ops.only(grads)
    out = g.tape.gradient(*node.meta)
    g.tape.move(2 * out.num_bytes)
    return [out]


class Encoder(Module):
    """``Gemma4VisionEncoder``."""

    def __init__(self, config: Config) -> None:
        num_layers, self.head_dim = config.integer("num_hidden_layers"), config.integer("head_dim")
        self.layers = Stack.of(VisionLayer(config), num_layers, label="vision")

    def forward(self, x: Tensor, backend: AttentionBackend, *, is_padded: bool) -> Tensor:
        with x.tape.section("vision.positions"):
            context = self._context(x, backend, is_padded=is_padded)
        return self.layers.run(x, lambda layer, hidden: layer(hidden, context))

    def _context(self, x: Tensor, backend: AttentionBackend, *, is_padded: bool) -> VisionContext:
        """cos and sin of each patch, and the mask (batch, 1, patches, patches) where patches only fill up.

        Boolean for sdpa, in x's type for eager; flash_attention_2 leaves out what is padded.
        """
        tape = x.tape
        batch, num_patches, _ = x.shape
        mask: Tensor | None = None
        if is_padded and backend.implementation != "flash_attention_2":
            dtype = x.dtype if backend.implementation == "eager" else DType.BOOL
            mask = tape.tensor((batch, 1, num_patches, num_patches), dtype)
        # What the halves of a head share is half as wide; views of one tensor.
        shape = (batch, 1, num_patches, self.head_dim)
        half = (*shape[:-1], self.head_dim // 2)
        return VisionContext(
            backend, tape.tensor(shape, x.dtype).view(*half), tape.tensor(shape, x.dtype).view(*half), mask
        )


class Gemma4Vision(Module):
    """``Gemma4VisionModel``."""

    def __init__(self, config: Config) -> None:
        self.patch_embedder = PatchEmbedder(config)
        self.encoder = Encoder(config)
        self.patch_numel = 3 * config.integer("patch_size") ** 2
        self.pooled_patches = config.integer("pooling_kernel_size") ** 2
        self.standardizes = config.boolean("standardize")

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> Tensor:
        """pixels (images, patches, values) to features (tokens of all images, width)."""
        assert batch.image is not None
        tape = pixels.tape
        with tape.section("vision.embedding"):
            is_padding = tape.tensor(pixels.shape[:-1], DType.BOOL)
            embedded = self.patch_embedder(pixels)
        encoded = self.encoder(embedded, backend, is_padded=batch.image.num_padding_patches > 0)
        with tape.section("vision.pooling"):
            num_tokens = batch.image.num_patches // self.pooled_patches
            features = self._pooled(encoded, is_padding, batch.num_images * num_tokens)
            if self.standardizes:
                features = ops.scale(ops.shift(features))
            return ops.to(features, embedded.dtype)

    def _pooled(self, x: Tensor, is_padding: Tensor, num_features: int) -> Tensor:
        """``Gemma4VisionPooler`` by a product with a matrix of weights, then what is no padding: (features, width)."""
        tape = x.tape
        _, num_patches, width = x.shape
        num_tokens = num_patches // self.pooled_patches
        x = ops.scale(x)  # masked_fill
        pooled, is_valid = x, is_padding
        if num_tokens != num_patches:
            pooled, is_valid = self._averaged(x, num_tokens)
        del x
        pooled = ops.scale(ops.to(pooled, DType.FLOAT32))
        places = tape.tensor((num_features, 2), DType.INT64)
        del is_valid
        return take_rows(pooled, places, (num_features, width))

    def _averaged(self, x: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """``_avg_pool_by_positions``."""
        tape = x.tape
        num_images, num_patches, width = x.shape
        shape = (num_images, num_patches, num_tokens)
        one_hot = tape.tensor(shape, DType.INT64)
        weights = ops.to(one_hot, DType.FLOAT32)
        del one_hot
        weights = ops.scale(weights)
        dtype = tape.autocast or DType.FLOAT32
        values = ops.to(ops.to(x, DType.FLOAT32), dtype)
        out = ops.matmul(ops.to(weights, dtype), values, (num_images, num_tokens, width), num_patches)
        del values
        is_zero = tape.tensor(shape, DType.BOOL)
        is_valid = tape.tensor((num_images, num_tokens), DType.BOOL)
        del is_zero
        return ops.to(out, x.dtype), is_valid
