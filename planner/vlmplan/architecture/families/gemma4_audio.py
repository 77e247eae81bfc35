"""The audio tower of Gemma 4: the weights of a part that no sample with text and images runs.

Source: transformers 5.23 ``models/gemma4/modeling_gemma4.py``, ``Gemma4AudioModel``. Samples with sound are not
planned; what the tower weighs, and what adapters add to its Linears, is.
"""

from collections.abc import Sequence

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gemma4_vision import ClippableLinear
from vlmplan.architecture.modules import Linear, Module, Stack
from vlmplan.architecture.parameter import Parameter


class Weight(Module):
    """A module that has a weight and does nothing here."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = Parameter(*shape)


class Convolution(Module):
    """``Gemma4AudioSubSampleConvProjectionLayer``: 3 x 3 convolution and norm."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = Weight(out_channels, in_channels, 3, 3)
        self.norm = Weight(out_channels)


class Subsampling(Module):
    """``Gemma4AudioSubSampleConvProjection``."""

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__()
        first, second = channels
        self.layer0 = Convolution(1, first)
        self.layer1 = Convolution(first, second)
        self.input_proj_linear = Linear(first // 4 * second, width)


class FeedForward(Module):
    """``Gemma4AudioFeedForward``."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        self.ffw_layer_1 = ClippableLinear(config, width, 4 * width)
        self.ffw_layer_2 = ClippableLinear(config, 4 * width, width)
        self.pre_layer_norm = Weight(width)
        self.post_layer_norm = Weight(width)


class AudioAttention(Module):
    """``Gemma4AudioAttention``."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        self.per_dim_scale = Parameter(width // config.integer("num_attention_heads"))
        self.q_proj = ClippableLinear(config, width, width)
        self.k_proj = ClippableLinear(config, width, width)
        self.v_proj = ClippableLinear(config, width, width)
        self.post = ClippableLinear(config, width, width)
        self.relative_k_proj = Linear(width, width)


class LightConvolution(Module):
    """``Gemma4AudioLightConv1d``."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        self.linear_start = ClippableLinear(config, width, 2 * width)
        self.linear_end = ClippableLinear(config, width, width)
        self.depthwise_conv1d = Weight(width, 1, config.integer("conv_kernel_size"))
        self.pre_layer_norm = Weight(width)
        self.conv_norm = Weight(width)


class AudioLayer(Module):
    """``Gemma4AudioLayer``."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        self.feed_forward1 = FeedForward(config, width)
        self.feed_forward2 = FeedForward(config, width)
        self.self_attn = AudioAttention(config, width)
        self.lconv1d = LightConvolution(config, width)
        self.norm_pre_attn = Weight(width)
        self.norm_post_attn = Weight(width)
        self.norm_out = Weight(width)


class Gemma4Audio(Module):
    """``Gemma4AudioModel``."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.integer("hidden_size")
        self.subsample_conv_projection = Subsampling(config.integers("subsampling_conv_channels"), width)
        self.layers = Stack.of(AudioLayer(config, width), config.integer("num_hidden_layers"), label="audio")
        self.output_width = config.integer("output_proj_dims")
        self.output_proj = Linear(width, self.output_width, bias=True)
