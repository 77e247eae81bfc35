"""The audio tower of Phi-4-multimodal: the weights of a part that no sample with text and images runs.

Source: transformers 5.23 ``models/phi4_multimodal/modeling_phi4_multimodal.py``, ``Phi4MultimodalAudioModel``. Samples
with sound are not planned; what the tower weighs, and what adapters add to its Linears, is.
"""

from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.omni_audio import Convolution
from vlmplan.architecture.families.packed_patches import Sequential
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, Stack
from vlmplan.architecture.parameter import Parameter
from vlmplan.json_reader import not_allowed


class FeedForward(Module):
    """``Phi4MultimodalAudioMLP``."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.layer_norm = LayerNorm(width)
        self.gate_up_proj = Linear(width, 2 * inner, bias=True)
        self.down_proj = Linear(inner, width, bias=True)


class AudioAttention(Module):
    """``Phi4MultimodalAudioAttention``."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        num_heads = config.integer("num_attention_heads")
        heads_width = num_heads * (width // num_heads)
        self.q_proj = Linear(width, heads_width, bias=True)
        self.k_proj = Linear(width, heads_width, bias=True)
        self.v_proj = Linear(width, heads_width, bias=True)
        self.o_proj = Linear(heads_width, width, bias=True)


class GatedConvolution(Module):
    """``Phi4MultimodalAudioGluPointWiseConv``."""

    def __init__(self, width: int, out_channels: int) -> None:
        super().__init__()
        self.ext_pw_conv_1d = Convolution(width, 2 * out_channels, num_axes=1, kernel=1)
        self.b1 = Parameter(1, out_channels, 1)
        self.b2 = Parameter(1, out_channels, 1)


class SeparableConvolution(Module):
    """``Phi4MultimodalAudioDepthWiseSeparableConv1d``."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        inner = width * config.integer("depthwise_multiplier")
        self.dw_conv = Convolution(1, inner, num_axes=1, kernel=config.integer("kernel_size"))
        self.pw_conv = Convolution(inner, config.integer("depthwise_separable_out_channel"), num_axes=1, kernel=1)


class ConvolutionModule(Module):
    """``Phi4MultimodalAudioConvModule``."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        out_channels = config.integer("ext_pw_out_channel")
        self.layer_norm = LayerNorm(width)
        self.glu = GatedConvolution(width, out_channels)
        self.dw_sep_conv_1d = SeparableConvolution(config, width)
        self.ext_pw_conv_1d = Convolution(width, out_channels, num_axes=1, kernel=1)


class ConformerLayer(Module):
    """``Phi4MultimodalAudioConformerEncoderLayer``."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        inner = config.integer("intermediate_size")
        self.feed_forward_in = FeedForward(width, inner)
        self.self_attn = AudioAttention(config, width)
        self.conv = ConvolutionModule(config, width)
        self.feed_forward_out = FeedForward(width, inner)
        self.layer_norm_att = LayerNorm(width)
        self.layer_norm = LayerNorm(width)


class Subsampling(Module):
    """``Phi4MultimodalAudioNemoConvSubsampling``: each halving of time and frequency is one convolution, the first, or
    one for each channel and one of them together; behind each an activation, which is the same object."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        channels, reduction = config.integer("nemo_conv_channels"), config.integer("time_reduction")
        if reduction % 2:
            raise not_allowed(CONFIG, "audio_config.time_reduction", reduction, "an even number")
        num_halvings, num_bins = reduction.bit_length() - 1, config.integer("input_size")
        for _ in range(num_halvings):
            num_bins = (num_bins + 1) // 2
        convolutions: dict[str, Module] = {"0": Convolution(1, channels, num_axes=2)}
        for index in range(2, 3 * num_halvings - 1, 3):
            convolutions[str(index)] = Convolution(1, channels, num_axes=2)
            convolutions[str(index + 1)] = Convolution(channels, channels, num_axes=2, kernel=1)
        self.conv = Sequential(convolutions)
        self.out = Linear(channels * num_bins, width, bias=True)


class RelativeBias(Module):
    """``Phi4MultimodalAudioRelativeAttentionBias``."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        num_buckets = config.integer("bias_max_distance") * (1 if config.boolean("bias_symmetric") else 2)
        self.bias_values = Embedding(num_buckets, config.integer("num_attention_heads"))


class Phi4Audio(Module):
    """``Phi4MultimodalAudioModel``."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.integer("hidden_size")
        self.embed = Subsampling(config, width)
        self.relative_attention_bias_layer = RelativeBias(config)
        self.encoders = Stack.of(ConformerLayer(config, width), config.integer("num_blocks"), label="audio")


class AudioEmbedding(Module):
    """``Phi4MultimodalAudioEmbedding``: projections of sound by itself, and of sound beside images."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        self.encoder = Phi4Audio(config)
        in_width = config.integer("hidden_size") * config.integer("downsample_rate")
        self.up_proj_for_speech = Linear(in_width, width, bias=True)
        self.down_proj_for_speech = Linear(width, width, bias=True)
        self.up_proj_for_vision_speech = Linear(in_width, width, bias=True)
        self.down_proj_for_vision_speech = Linear(width, width, bias=True)
