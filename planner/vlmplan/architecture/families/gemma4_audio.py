"""The audio tower of Gemma 4: spectrograms through two convolutions, and layers that attend in blocks of few frames.

Source: transformers 5.23 ``models/gemma4/modeling_gemma4.py``, ``Gemma4AudioModel``.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.audio import halved
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gemma4_experts import Gemma4Norm
from vlmplan.architecture.families.gemma4_vision import ClippableLinear
from vlmplan.architecture.modules import LayerNorm, Linear, Module, Stack
from vlmplan.architecture.ops import Grads, chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.units import DType

NUM_BINS = 128
"""Of the spectrograms: what the extractor makes, and ``input_proj_linear`` is made for."""


class Weight(Module):
    """A convolution without a bias."""

    def __init__(self, *shape: int) -> None:
        self.weight = Parameter(*shape)

    def forward(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        return ops.convolution(x, self.weight, None, shape)


class Convolution(Module):
    """``Gemma4AudioSubSampleConvProjectionLayer``: 3 x 3 convolution and norm, of frames that are no padding."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        self.channels = out_channels
        self.conv = Weight(out_channels, in_channels, 3, 3)
        self.norm = LayerNorm(out_channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (sounds, channels, frames, bins)."""
        batch_size, _, num_frames, num_bins = x.shape
        x = ops.mul(x, x.tape.tensor((batch_size, 1, num_frames, 1), DType.BOOL))
        x = self.conv(
            ops.to(x, self.conv.weight.dtype), (batch_size, self.channels, halved(num_frames), halved(num_bins))
        )
        return ops.relu(ops.copy(self.norm(x.view(batch_size, *x.shape[2:], self.channels)), *x.shape))


class Subsampling(Module):
    """``Gemma4AudioSubSampleConvProjection``."""

    def __init__(self, channels: Sequence[int], width: int) -> None:
        first, second = channels
        self.layer0 = Convolution(1, first)
        self.layer1 = Convolution(first, second)
        self.input_proj_linear = Linear(first // 4 * second, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(self.layer0(x.view(x.shape[0], 1, *x.shape[1:])))
        batch_size, channels, num_positions, num_bins = x.shape
        return self.input_proj_linear(ops.copy(x, batch_size, num_positions, channels * num_bins))


class FeedForward(Module):
    """``Gemma4AudioFeedForward``."""

    def __init__(self, config: Config, width: int) -> None:
        self.ffw_layer_1 = ClippableLinear(config, width, 4 * width)
        self.ffw_layer_2 = ClippableLinear(config, 4 * width, width)
        self.pre_layer_norm = Gemma4Norm(width)
        self.post_layer_norm = Gemma4Norm(width)
        self.activation = ops.ACTIVATIONS[config.text("hidden_act")]

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = self.pre_layer_norm(ops.clamp(x, num_limits=2))
        x = self.ffw_layer_1(x)
        x = self.activation(x)
        x = self.ffw_layer_2(x)
        x = self.post_layer_norm(ops.clamp(x, num_limits=2))
        return ops.add_in_place(ops.scale_in_place(x), residual)


class BlockAttention:
    """The sizes of attention among frames in blocks that see a few frames before them too."""

    def __init__(self, config: Config, num_heads: int, head_dim: int, names: Sequence[str]) -> None:
        """``names``: keys of the frames of a block, of those before it that it sees and itself, and of those behind."""
        self.num_heads, self.head_dim = num_heads, head_dim
        block, left, right = names
        self.block = config.integer(block)
        self.left, self.right = max(0, config.integer(left) - 1), config.count(right)
        self.context = self.block + self.left + self.right

    def num_blocks(self, num_frames: int) -> int:
        return -(-num_frames // self.block)

    def blocks(self, x: Tensor, padded: Tensor) -> Tensor:
        """x (sounds, frames, heads, head_dim), ``padded`` to whole blocks, as (sounds, blocks, frames of one, ...)."""
        return padded.view(x.shape[0], self.num_blocks(x.shape[1]), self.block, *x.shape[2:])

    def contexts(self, x: Tensor, padded: Tensor) -> Tensor:
        """The frames that each block sees: ``unfold`` and a copy."""
        return ops.resample(padded, x.shape[0], self.num_blocks(x.shape[1]), self.context, *x.shape[2:])

    def num_context_frames(self, num_frames: int) -> int:
        """Frames of a sound that is padded for ``contexts``."""
        return num_frames + self.left + self.right + self.block - 1

    def logits(self, queries: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
        """Products with the keys of a block's context, and with positions, shifted; all of these lie with heads behind
        frames, out of which the products of blocks copy them."""
        batch_size, num_blocks, block, heads, width = queries.shape
        scores = (batch_size, heads, num_blocks, block, self.context)
        of_keys = chunks.product(
            ops.copy(queries, batch_size, heads, num_blocks, block, width),
            ops.copy(keys, batch_size, heads, num_blocks, width, self.context),
            scores,
            width,
        )
        flat = (batch_size, heads, num_blocks * block)
        num_positions = positions.shape[0]
        if batch_size > 1:
            queries = ops.copy(queries, *flat, width)
            positions = chunks.repeat_heads(positions, batch_size, heads, width, num_positions)
        of_positions = chunks.product(
            queries.view(*flat, width),
            positions.view(batch_size, heads, width, num_positions),
            (*flat, num_positions),
            width,
        )
        shifted = chunks.pad(of_positions, *scores[:-1], self.context + 1)
        return ops.add(of_keys, ops.part(shifted, *scores))

    def attended(self, weights: Tensor, values: Tensor) -> Tensor:
        """(sounds, frames of whole blocks, width)."""
        batch_size, num_blocks, _, heads, width = values.shape
        shape = (batch_size, heads, num_blocks, self.block, width)
        values = ops.copy(values, batch_size, heads, num_blocks, self.context, width)
        out = chunks.product(weights, values, shape, self.context)
        return ops.copy(out, batch_size, num_blocks * self.block, heads * width)


class AudioAttention(Module):
    """``Gemma4AudioAttention``: in float32."""

    KEYS = ("attention_chunk_size", "attention_context_left", "attention_context_right")

    def __init__(self, config: Config, width: int) -> None:
        num_heads = config.integer("num_attention_heads")
        self.inner = BlockAttention(config, num_heads, width // num_heads, self.KEYS)
        self.per_dim_scale = Parameter(width // num_heads)
        self.q_proj = ClippableLinear(config, width, width)
        self.k_proj = ClippableLinear(config, width, width)
        self.v_proj = ClippableLinear(config, width, width)
        self.post = ClippableLinear(config, width, width)
        self.relative_k_proj = Linear(width, width)
        self.relative_k_proj.weight.reads_constants = True

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        inner, (batch_size, num_frames, width) = self.inner, x.shape
        head = (batch_size, num_frames, inner.num_heads, inner.head_dim)
        q, k, v = (ops.to(one(x), DType.FLOAT32).view(*head) for one in (self.q_proj, self.k_proj, self.v_proj))
        q = ops.mul(ops.scale(q), softplus(self.per_dim_scale, x))
        k = ops.scale(k)
        q = inner.blocks(q, chunks.pad(q, batch_size, inner.num_blocks(num_frames) * inner.block, *head[2:]))
        context = (batch_size, inner.num_context_frames(num_frames), *head[2:])
        k = inner.contexts(k, chunks.pad(k, *context))
        v = inner.contexts(v, chunks.pad(v, *context))
        relative = ops.to(self.relative_k_proj(positions), DType.FLOAT32)
        weights = inner.logits(q, k, relative)
        weights = ops.scale(ops.tanh(ops.scale(weights)))
        weights = chunks.masked_fill(weights, x.tape.tensor(mask.shape, DType.BOOL))
        weights = ops.softmax(weights, DType.FLOAT32)
        x.tape.layer_locals.append(weights.detached())
        out = inner.attended(weights, v)
        if out.shape[1] > num_frames:
            out = ops.part(out, batch_size, num_frames, width)
            out = ops.copy(out) if batch_size > 1 else out
        out = self.post(ops.to(out, x.dtype))
        del q, k, v, relative
        return out


def softplus(weight: Parameter, x: Tensor) -> Tensor:
    """``softplus`` of a weight, which it saves."""
    node = x.tape.node((weight,), _softplus_backward, (weight,), (weight.shape, weight.dtype))
    return x.tape.tensor(weight.shape, weight.dtype, node)


def _softplus_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    shape, dtype = node.meta
    return (g.tape.gradient(shape, dtype),)


class LightConvolution(Module):
    """``Gemma4AudioLightConv1d``."""

    def __init__(self, config: Config, width: int) -> None:
        self.kernel = config.integer("conv_kernel_size")
        self.linear_start = ClippableLinear(config, width, 2 * width)
        self.linear_end = ClippableLinear(config, width, width)
        self.depthwise_conv1d = Weight(width, 1, self.kernel)
        self.pre_layer_norm = Gemma4Norm(width)
        self.conv_norm = Gemma4Norm(width)
        self.activation = ops.ACTIVATIONS[config.text("hidden_act")]

    def forward(self, x: Tensor) -> Tensor:
        residual, (batch_size, num_frames, width) = x, x.shape
        x = self.linear_start(self.pre_layer_norm(x))
        x = ops.resample(x, batch_size, width, num_frames, saves_input=True)  # glu
        padded = chunks.pad(x, batch_size, width, num_frames + self.kernel - 1)
        x = self.depthwise_conv1d(padded, (batch_size, width, num_frames)).view(batch_size, num_frames, width)
        del padded
        x = self.conv_norm(ops.clamp(x, num_limits=2))
        x = self.linear_end(self.activation(x))
        return ops.add_in_place(x, residual)


class AudioLayer(Module):
    """``Gemma4AudioLayer``."""

    def __init__(self, config: Config, width: int) -> None:
        self.feed_forward1 = FeedForward(config, width)
        self.feed_forward2 = FeedForward(config, width)
        self.self_attn = AudioAttention(config, width)
        self.lconv1d = LightConvolution(config, width)
        self.norm_pre_attn = Gemma4Norm(width)
        self.norm_post_attn = Gemma4Norm(width)
        self.norm_out = Gemma4Norm(width)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        residual = x = self.feed_forward1(x)
        x = self.norm_pre_attn(ops.clamp(x, num_limits=2))
        x = self.self_attn(x, positions, mask)
        x = self.norm_post_attn(ops.clamp(x, num_limits=2))
        x = ops.add_in_place(x, residual)
        x = self.lconv1d(x)
        x = self.feed_forward2(x)
        x = self.norm_out(ops.clamp(x, num_limits=2))
        del residual
        return x


class Gemma4Audio(Module):
    """``Gemma4AudioModel``."""

    def __init__(self, config: Config) -> None:
        self.width = width = config.integer("hidden_size")
        self.subsample_conv_projection = Subsampling(config.integers("subsampling_conv_channels"), width)
        layer = AudioLayer(config, width)
        self.inner = layer.self_attn.inner
        pattern = [0] * config.integer("num_hidden_layers")
        self.layers = Stack([layer], pattern, label="audio", can_checkpoint=False)  # no GradientCheckpointingLayers
        self.output_width = config.integer("output_proj_dims")
        self.output_proj = Linear(width, self.output_width, bias=True)

    def forward(self, spectrograms: Tensor) -> Tensor:
        """(sounds, positions, width of the result)."""
        tape = spectrograms.tape
        with tape.section("audio.embedding"):
            embedded = [self.subsample_conv_projection(spectrograms)]
            batch_size, num_positions, _ = embedded[0].shape
            inner, dtype = self.inner, embedded[0].dtype
            positions = tape.tensor((inner.context // 2 + 1, self.width), dtype)
            mask = tape.tensor((batch_size, 1, inner.num_blocks(num_positions), inner.block, inner.context), dtype)
        x = self.layers.run(embedded.pop(), lambda layer, x: layer(x, positions, mask))
        with tape.section("audio.projection"):
            return self.output_proj(x)
