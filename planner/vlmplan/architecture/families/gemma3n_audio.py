"""The audio tower of Gemma 3n: spectrograms through two convolutions, and blocks that attend among few frames.

Source: transformers 5.23 ``models/gemma3n/modeling_gemma3n.py``, ``Gemma3nAudioEncoder``.
"""

from typing import TypeGuard, cast

from vlmplan.architecture import ops
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.gemma4_audio import BlockAttention, Weight, softplus
from vlmplan.architecture.families.gemma4_experts import Gemma4Norm
from vlmplan.architecture.modules import Linear, Module, Stack
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

NUM_CONVOLUTIONS = 2


class CumulativeNorm(Module):
    """``Gemma3nAudioCumulativeGroupNorm``: of each frame by all before it, in float32."""

    def __init__(self, num_channels: int) -> None:
        self.weight = Parameter(num_channels)

    def forward(self, x: Tensor) -> Tensor:
        """x (sounds, frames, bins, channels)."""
        tape, of_frames = x.tape, (*x.shape[:2], 1, 1)
        wide = ops.to(x, DType.FLOAT32)
        ones = tape.tensor(x.shape, DType.FLOAT32)
        counts = tape.tensor(of_frames, DType.FLOAT32)
        mean = ops.mul(chunks.cumulative_sum(ops.total(wide, of_frames)), counts)
        squared = ops.power(chunks.difference(wide, mean, x.shape))
        variance = ops.mul(chunks.cumulative_sum(ops.total(squared, of_frames)), counts)
        scale = ops.unary(ops.shift(variance), saves_output=True)
        normed = chunks.outer(chunks.difference(wide, mean, x.shape), scale, x.shape)
        normed = ops.mul(normed, ops.cast_weight(self.weight, DType.FLOAT32, tape))
        out = ops.to(ops.mul(normed, ones), x.dtype)
        del wide, ones, squared, normed
        return out


class ConvBlock(Module):
    """``Gemma3nAudioSSCPConvBlock``: padded by one on both sides of frequencies, and behind in time."""

    def __init__(self, in_channels: int, out_channels: int, kernel: tuple[int, int], stride: tuple[int, int]) -> None:
        self.channels, self.kernel, self.stride = out_channels, kernel, stride
        self.conv = Weight(out_channels, in_channels, *kernel)
        self.norm = CumulativeNorm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """x (sounds, channels, frames, bins)."""
        batch_size, channels, num_frames, num_bins = x.shape
        sides = (num_frames + self.kernel[0] - 1, num_bins + 2)
        padded = ops.to(chunks.pad(x, batch_size, channels, *sides), self.conv.weight.dtype)
        left = [
            (side - kernel) // stride + 1 for side, kernel, stride in zip(sides, self.kernel, self.stride, strict=True)
        ]
        convolved = self.conv(padded, (batch_size, self.channels, *left))
        last = ops.copy(convolved, batch_size, *left, self.channels)
        normed = self.norm(last)
        first = ops.copy(normed, *convolved.shape)
        out = ops.relu(first)
        del padded, convolved, last, normed, first
        return out


class Subsampling(Module):
    """``Gemma3nAudioSubSampleConvProjection``."""

    def __init__(self, config: Config, width: int) -> None:
        channels = config.integers("sscp_conv_channel_size")
        kernels, strides = _pairs(config, "sscp_conv_kernel_size"), _pairs(config, "sscp_conv_stride_size")
        if len(channels) != NUM_CONVOLUTIONS:
            raise not_allowed(CONFIG, "audio_config.sscp_conv_channel_size", list(channels), "two integers")
        num_bins = config.integer("input_feat_size")
        for (_, kernel), (_, stride) in zip(kernels, strides, strict=True):
            num_bins = (num_bins + 2 - kernel) // stride + 1
        if num_bins < 1:
            raise InputError("config.json: audio_config.sscp_conv_kernel_size is wider than input_feat_size, padded")
        self.conv_0 = ConvBlock(1, channels[0], kernels[0], strides[0])
        self.conv_1 = ConvBlock(channels[0], channels[1], kernels[1], strides[1])
        self.input_proj_linear = Linear(channels[1] * num_bins, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_0(x.view(x.shape[0], 1, *x.shape[1:]))
        x = self.conv_1(x)
        batch_size, channels, num_positions, num_bins = x.shape
        permuted = ops.copy(x, batch_size, num_positions, num_bins * channels)
        out = self.input_proj_linear(permuted)
        del permuted
        return out


def _pairs(config: Config, key: str) -> list[tuple[int, int]]:
    """(time, frequency) of both convolutions."""
    value: object = config.get(key)
    pairs = cast(list[object], value) if isinstance(value, list) else []
    found = [(pair[0], pair[1]) for pair in pairs if _is_pair(pair)]
    if len(found) != NUM_CONVOLUTIONS or len(pairs) != NUM_CONVOLUTIONS:
        raise not_allowed(CONFIG, f"audio_config.{key}", pairs, "two lists of two positive integers")
    return found


def _is_pair(value: object) -> TypeGuard[list[int]]:
    """A list of two positive integers."""
    numbers = cast(list[object], value) if isinstance(value, list) else []
    return [isinstance(number, int) and number > 0 for number in numbers] == [True, True]


class FeedForward(Module):
    """``Gemma3nAudioConformerFeedForward``."""

    def __init__(self, width: int) -> None:
        self.pre_layer_norm = Gemma4Norm(width)
        self.ffw_layer_1 = Linear(width, 4 * width)
        self.ffw_layer_2 = Linear(4 * width, width)
        self.post_layer_norm = Gemma4Norm(width)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = self.pre_layer_norm(ops.clamp(x, num_limits=2))
        x = self.ffw_layer_1(x)
        x = ops.silu(x)
        x = self.ffw_layer_2(x)
        x = self.post_layer_norm(ops.clamp(x, num_limits=2))
        return ops.add(residual, ops.scale(x))


class PositionEmbedding(Module):
    """``Gemma3nAudioRelativePositionEmbedding``."""

    def __init__(self, width: int, key_width: int) -> None:
        self.width = width
        self.pos_proj = Linear(width, key_width)
        self.pos_proj.weight.reads_constants = True

    def forward(self, queries: Tensor, keys: Tensor, inner: BlockAttention) -> Tensor:
        """Attention's logits of blocks of queries and the keys that they see."""
        positions = queries.tape.tensor((inner.left + inner.right + 1, self.width), queries.dtype)
        return inner.logits(queries, keys, self.pos_proj(positions))


class SelfAttention(Module):
    """``Gemma3nAudioAttention``."""

    KEYS = ("conf_attention_chunk_size", "conf_attention_context_left", "conf_attention_context_right")

    def __init__(self, config: Config, width: int, num_heads: int) -> None:
        key_width = width // num_heads * num_heads
        self.inner = BlockAttention(config, num_heads, width // num_heads, self.KEYS)
        self.per_dim_scale = Parameter(width // num_heads)
        self.relative_position_embedding = PositionEmbedding(width, key_width)
        self.q_proj = Linear(width, key_width)
        self.k_proj = Linear(width, key_width)
        self.v_proj = Linear(width, key_width)

    def forward(self, x: Tensor) -> Tensor:
        """(sounds, frames, width of all heads). Everything that the original names lives until it returns."""
        tape, inner, (batch_size, num_frames, _) = x.tape, self.inner, x.shape
        head = (batch_size, num_frames, inner.num_heads, inner.head_dim)
        q, k, v = (one(x).view(*head) for one in (self.q_proj, self.k_proj, self.v_proj))
        q = ops.mul(ops.scale(q), softplus(self.per_dim_scale, x))
        num_blocks = inner.num_blocks(num_frames)
        whole = num_blocks * inner.block
        padded = q if whole == num_frames else _joined(q, 0, whole - num_frames)
        queries = inner.blocks(q, padded)
        del padded
        around = (inner.left, inner.right + inner.block - 1)
        keys = inner.contexts(k, _joined(k, *around))
        values = inner.contexts(v, _joined(v, *around))
        logits = self.relative_position_embedding(queries, keys, inner)
        logits = ops.scale(ops.tanh(ops.scale(logits)))
        mask = tape.tensor((batch_size, 1, num_blocks, inner.block, inner.context), DType.BOOL)
        logits = chunks.masked_fill(logits, mask)
        weights = ops.to(ops.softmax(logits, DType.FLOAT32), values.dtype)
        of_blocks = (batch_size * num_blocks * inner.num_heads, inner.block, inner.context)
        by_block = ops.copy(weights, *of_blocks)
        shape = (of_blocks[0], inner.context, inner.head_dim)
        seen = ops.copy(values, *shape)
        result = chunks.product(by_block, seen, (*of_blocks[:2], inner.head_dim), inner.context)
        out = ops.copy(result, batch_size, whole, inner.num_heads * inner.head_dim)
        if whole > num_frames:
            out = ops.part(out, batch_size, num_frames, out.shape[-1])
        del q, k, v, queries, keys, logits, weights, by_block, seen, result
        return out


def _joined(x: Tensor, before: int, behind: int) -> Tensor:
    """x (sounds, frames, ...) with zeros before and behind it."""
    sides = [x.tape.tensor((x.shape[0], count, *x.shape[2:]), x.dtype) for count in (before, behind)]
    return ops.concatenate([sides[0], x, sides[1]], (x.shape[0], before + x.shape[1] + behind, *x.shape[2:]))


class ConformerAttention(Module):
    """``Gemma3nAudioConformerAttention``."""

    def __init__(self, config: Config, width: int, num_heads: int) -> None:
        self.pre_attn_norm = Gemma4Norm(width)
        self.attn = SelfAttention(config, width, num_heads)
        self.post = Linear(width, width)
        self.post_norm = Gemma4Norm(width)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = ops.clamp(x, num_limits=2)
        normed = self.pre_attn_norm(x)
        attended = self.attn(normed)
        is_apart = attended.shape[0] > 1 and attended.shape[1] % self.attn.inner.block
        x = self.post(ops.copy(attended) if is_apart else attended)
        x = ops.clamp(x, num_limits=2)
        out = ops.add(residual, self.post_norm(x))
        del normed, attended
        return out


class LightConvolution(Module):
    """``Gemma3nAudioConformerLightConv1d``."""

    def __init__(self, width: int, kernel: int) -> None:
        self.kernel = kernel
        self.pre_layer_norm = Gemma4Norm(width)
        self.linear_start = Linear(width, 2 * width)
        self.depthwise_conv1d = Weight(width, 1, kernel)
        self.conv_norm = Gemma4Norm(width)
        self.linear_end = Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        residual, (batch_size, num_frames, width) = x, x.shape
        x = self.linear_start(self.pre_layer_norm(x))
        permuted = ops.resample(x, batch_size, width, num_frames, saves_input=True)  # glu
        padded = chunks.pad(permuted, batch_size, width, num_frames + self.kernel - 1)
        x = self.depthwise_conv1d(padded, permuted.shape).view(batch_size, num_frames, width)
        x = self.conv_norm(ops.clamp(x, num_limits=2))
        x = ops.silu(x)
        x = self.linear_end(ops.copy(x) if batch_size > 1 else x)
        x = ops.add(x, residual)
        del permuted, padded
        return x


class ConformerBlock(Module):
    """``Gemma3nAudioConformerBlock``."""

    def __init__(self, config: Config, width: int) -> None:
        self.ffw_layer_start = FeedForward(width)
        self.attention = ConformerAttention(config, width, config.integer("conf_num_attention_heads"))
        self.lconv1d = LightConvolution(width, config.integer("conf_conv_kernel_size"))
        self.ffw_layer_end = FeedForward(width)
        self.norm = Gemma4Norm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.ffw_layer_start(x)
        x = self.attention(x)
        masked = ops.mul(x, x.tape.tensor((*x.shape[:2], 1), x.dtype))
        x = self.lconv1d(masked)
        x = self.ffw_layer_end(x)
        x = self.norm(ops.clamp(x, num_limits=2))
        del masked
        return x


class Gemma3nAudio(Module):
    """``Gemma3nAudioEncoder``."""

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.num_bins, self.reduction = config.integer("input_feat_size"), config.integer("conf_reduction_factor")
        self.subsample_conv_projection = Subsampling(config, width)
        pattern = [0] * config.integer("conf_num_hidden_layers")
        block = ConformerBlock(config, width)
        self.conformer = Stack([block], pattern, label="audio", can_checkpoint=False)  # no GradientCheckpointingLayers

    def forward(self, spectrograms: Tensor) -> Tensor:
        """(sounds, positions, width)."""
        with spectrograms.tape.section("audio.embedding"):
            embedded = [self.subsample_conv_projection(spectrograms)]
        x = self.conformer.run(embedded.pop(), lambda block, x: block(x))
        with spectrograms.tape.section("audio.reduction"):
            batch_size, num_positions, width = x.shape
            if self.reduction > 1:
                x = chunks.select(x, batch_size, -(-num_positions // self.reduction), width)
            return chunks.masked_fill(x, x.tape.tensor((*x.shape[:2], 1), DType.BOOL))
