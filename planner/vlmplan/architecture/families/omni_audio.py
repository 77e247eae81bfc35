"""The audio towers of Qwen's Omni thinkers: the weights of a part that no sample with text and images runs.

Sources: transformers 5.23 ``models/qwen3_omni_moe/modeling_qwen3_omni_moe.py`` (``Qwen3OmniMoeAudioEncoder``) and
``models/qwen2_5_omni/modeling_qwen2_5_omni.py`` (``Qwen2_5OmniAudioEncoder``). Samples with sound are not planned; what
the towers weigh, and what adapters add to their Linears, is.
"""

from vlmplan.architecture.config import Config
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, Stack
from vlmplan.architecture.parameter import Parameter

KERNEL = 3
"""Side of the convolutions, where nothing else is said."""
NUM_HALVINGS = 3
"""Convolutions with a stride of 2 that Qwen3-Omni's spectrograms pass."""


class Convolution(Module):
    """``nn.Conv1d`` (``num_axes`` 1) or ``nn.Conv2d`` (2): weights that do nothing here. ``in_channels`` of a group."""

    def __init__(self, in_channels: int, out_channels: int, *, num_axes: int, kernel: int = KERNEL) -> None:
        super().__init__()
        self.weight = Parameter(out_channels, in_channels, *(kernel,) * num_axes)
        self.bias = Parameter(out_channels)


class AudioAttention(Module):
    """``Qwen3OmniMoeAudioAttention``. Qwen2.5-Omni's has no bias on k, as Whisper's."""

    def __init__(self, width: int, *, key_bias: bool) -> None:
        super().__init__()
        self.k_proj = Linear(width, width, bias=key_bias)
        self.v_proj = Linear(width, width, bias=True)
        self.q_proj = Linear(width, width, bias=True)
        self.out_proj = Linear(width, width, bias=True)


class AudioLayer(Module):
    """``Qwen3OmniMoeAudioEncoderLayer``."""

    def __init__(self, config: Config, *, key_bias: bool) -> None:
        super().__init__()
        width, inner = config.integer("d_model"), config.integer("encoder_ffn_dim")
        self.self_attn = AudioAttention(width, key_bias=key_bias)
        self.self_attn_layer_norm = LayerNorm(width)
        self.fc1 = Linear(width, inner, bias=True)
        self.fc2 = Linear(inner, width, bias=True)
        self.final_layer_norm = LayerNorm(width)


def _layers(config: Config, *, key_bias: bool) -> Stack:
    return Stack.of(AudioLayer(config, key_bias=key_bias), config.integer("encoder_layers"), label="audio")


class Qwen3OmniAudio(Module):
    """``Qwen3OmniMoeAudioEncoder``."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, channels = config.integer("d_model"), config.integer("downsample_hidden_size")
        num_bins = config.integer("num_mel_bins")
        for _ in range(NUM_HALVINGS):
            num_bins = (num_bins + 1) // 2
        self.layers = _layers(config, key_bias=True)
        self.ln_post = LayerNorm(width)
        self.conv2d1 = Convolution(1, channels, num_axes=2)
        self.conv2d2 = Convolution(channels, channels, num_axes=2)
        self.conv2d3 = Convolution(channels, channels, num_axes=2)
        self.conv_out = Linear(channels * num_bins, width)
        self.proj1 = Linear(width, width, bias=True)
        self.proj2 = Linear(width, config.integer("output_dim"), bias=True)


class Qwen25OmniAudio(Module):
    """``Qwen2_5OmniAudioEncoder``."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, out_width = config.integer("d_model"), config.integer("output_dim")
        self.conv1 = Convolution(config.integer("num_mel_bins"), width, num_axes=1)
        self.conv2 = Convolution(width, width, num_axes=1)
        self.audio_bos_eos_token = Embedding(2, out_width)
        self.layers = _layers(config, key_bias=False)
        self.ln_post = LayerNorm(width)
        self.proj = Linear(width, out_width, bias=True)
