"""The audio tower of Gemma 3n: the weights of a part that no sample with text and images runs.

Source: transformers 5.23 ``models/gemma3n/modeling_gemma3n.py``, ``Gemma3nAudioEncoder``. Samples with sound are not
planned; what the tower weighs, and what adapters add to its Linears, is.
"""

from typing import TypeGuard, cast

from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.gemma4_audio import Weight
from vlmplan.architecture.modules import Linear, Module, Stack
from vlmplan.architecture.parameter import Parameter
from vlmplan.errors import InputError
from vlmplan.json_reader import not_allowed

NUM_CONVOLUTIONS = 2


class ConvBlock(Module):
    """``Gemma3nAudioSSCPConvBlock``."""

    def __init__(self, in_channels: int, out_channels: int, kernel: tuple[int, int]) -> None:
        super().__init__()
        self.conv = Weight(out_channels, in_channels, *kernel)
        self.norm = Weight(out_channels)


class Subsampling(Module):
    """``Gemma3nAudioSubSampleConvProjection``: time and frequency, padded by one on both sides, get fewer."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        channels = config.integers("sscp_conv_channel_size")
        kernels, strides = _pairs(config, "sscp_conv_kernel_size"), _pairs(config, "sscp_conv_stride_size")
        if len(channels) != NUM_CONVOLUTIONS:
            raise not_allowed(CONFIG, "audio_config.sscp_conv_channel_size", list(channels), "two integers")
        num_bins = config.integer("input_feat_size")
        for (_, kernel), (_, stride) in zip(kernels, strides, strict=True):
            num_bins = (num_bins + 2 - kernel) // stride + 1
        if num_bins < 1:
            raise InputError("config.json: audio_config.sscp_conv_kernel_size is wider than input_feat_size, padded")
        self.conv_0 = ConvBlock(1, channels[0], kernels[0])
        self.conv_1 = ConvBlock(channels[0], channels[1], kernels[1])
        self.input_proj_linear = Linear(channels[1] * num_bins, width)


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
        super().__init__()
        self.pre_layer_norm = Weight(width)
        self.ffw_layer_1 = Linear(width, 4 * width)
        self.ffw_layer_2 = Linear(4 * width, width)
        self.post_layer_norm = Weight(width)


class PositionEmbedding(Module):
    """``Gemma3nAudioRelativePositionEmbedding``."""

    def __init__(self, width: int, key_width: int) -> None:
        super().__init__()
        self.pos_proj = Linear(width, key_width)


class SelfAttention(Module):
    """``Gemma3nAudioAttention``."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        key_width = width // num_heads * num_heads
        self.per_dim_scale = Parameter(width // num_heads)
        self.relative_position_embedding = PositionEmbedding(width, key_width)
        self.q_proj = Linear(width, key_width)
        self.k_proj = Linear(width, key_width)
        self.v_proj = Linear(width, key_width)


class ConformerAttention(Module):
    """``Gemma3nAudioConformerAttention``."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.pre_attn_norm = Weight(width)
        self.attn = SelfAttention(width, num_heads)
        self.post = Linear(width, width)
        self.post_norm = Weight(width)


class LightConvolution(Module):
    """``Gemma3nAudioConformerLightConv1d``."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.pre_layer_norm = Weight(width)
        self.linear_start = Linear(width, 2 * width)
        self.depthwise_conv1d = Weight(width, 1, kernel)
        self.conv_norm = Weight(width)
        self.linear_end = Linear(width, width)


class ConformerBlock(Module):
    """``Gemma3nAudioConformerBlock``."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        self.ffw_layer_start = FeedForward(width)
        self.attention = ConformerAttention(width, config.integer("conf_num_attention_heads"))
        self.lconv1d = LightConvolution(width, config.integer("conf_conv_kernel_size"))
        self.ffw_layer_end = FeedForward(width)
        self.norm = Weight(width)


class Gemma3nAudio(Module):
    """``Gemma3nAudioEncoder``."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.integer("hidden_size")
        self.subsample_conv_projection = Subsampling(config, width)
        num_layers = config.integer("conf_num_hidden_layers")
        self.conformer = Stack.of(ConformerBlock(config, width), num_layers, label="audio")
