"""The audio tower of Phi-4-multimodal: spectrograms through convolutions, conformer layers, and a projection.

Source: transformers 5.23 ``models/phi4_multimodal/modeling_phi4_multimodal.py``, ``Phi4MultimodalAudioModel`` and
``Phi4MultimodalAudioEmbedding``.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.attention_kernels import math_attention
from vlmplan.architecture.audio import halved
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.omni_audio import Convolution
from vlmplan.architecture.families.packed_patches import Sequential
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, Stack
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

MAX_POSITIONS = 500
"""Of one sequence: longer sounds are cut into as many as it takes (``max_seq_len``)."""


class FeedForward(Module):
    """``Phi4MultimodalAudioMLP``."""

    def __init__(self, config: Config, width: int) -> None:
        self.inner = config.integer("intermediate_size")
        self.layer_norm = LayerNorm(width)
        self.gate_up_proj = Linear(width, 2 * self.inner, bias=True)
        self.down_proj = Linear(self.inner, width, bias=True)
        self.activation = ops.ACTIVATIONS[config.text("activation")]
        self.dropout = config.number("dropout_rate")

    def forward(self, x: Tensor) -> Tensor:
        x = self.gate_up_proj(self.layer_norm(x))
        half = (*x.shape[:-1], self.inner)
        up, gate = ops.split(x, half, half)
        x = ops.dropout(ops.mul(up, self.activation(gate)), self.dropout)
        return ops.dropout(self.down_proj(x), self.dropout)


class AudioAttention(Module):
    """``Phi4MultimodalAudioAttention``."""

    def __init__(self, config: Config, width: int) -> None:
        self.num_heads = num_heads = config.integer("num_attention_heads")
        self.head_dim = width // num_heads
        self.dropout = config.number("dropout_rate")
        heads_width = num_heads * self.head_dim
        self.q_proj = Linear(width, heads_width, bias=True)
        self.k_proj = Linear(width, heads_width, bias=True)
        self.v_proj = Linear(width, heads_width, bias=True)
        self.o_proj = Linear(heads_width, width, bias=True)

    def forward(self, x: Tensor, mask: Tensor, backend: AttentionBackend) -> Tensor:
        """The bias lies with heads innermost, which no fused kernel takes on a GPU (``check_last_dim_stride_equals_1``
        in torch 2.13 ``sdp_utils_cpp.h``)."""
        batch_size, num_positions, _ = x.shape
        head = (batch_size, self.num_heads, num_positions, self.head_dim)
        q, k, v = self.q_proj(x).view(*head), self.k_proj(x).view(*head), self.v_proj(x).view(*head)
        if backend.implementation == "flash_attention_2":
            raise InputError(
                "--attention flash_attention_2 takes the bias of phi4_multimodal's audio tower for a mask of padding "
                "and fails (transformers 5.23); give --attention sdpa"
            )
        if backend.implementation == "eager":
            out = attend(backend, q, k, v, is_causal=False, mask=mask, scores=Scores(dropout=self.dropout))
        else:
            out = math_attention(q, k, v, is_causal=False, dropout=self.dropout, mask=mask)
        return self.o_proj(out)


class GatedConvolution(Module):
    """``Phi4MultimodalAudioGluPointWiseConv``."""

    def __init__(self, width: int, out_channels: int, activation: str) -> None:
        self.ext_pw_conv_1d = Convolution(width, 2 * out_channels, num_axes=1, kernel=1)
        self.b1 = Parameter(1, out_channels, 1)
        self.b2 = Parameter(1, out_channels, 1)
        self.out_channels, self.activation = out_channels, ops.ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        """x (sounds, channels, positions)."""
        batch_size, _, num_positions = x.shape
        both = self.ext_pw_conv_1d(x, (batch_size, 2 * self.out_channels, num_positions))
        half = (batch_size, self.out_channels, num_positions)
        out = ops.add(ops.part(both, *half), self.b1)
        return ops.mul(out, self.activation(ops.add(ops.part(both, *half), self.b2)))


class SeparableConvolution(Module):
    """``Phi4MultimodalAudioDepthWiseSeparableConv1d``."""

    def __init__(self, config: Config, width: int) -> None:
        self.inner = width * config.integer("depthwise_multiplier")
        self.out_channels = config.integer("depthwise_separable_out_channel")
        self.dw_conv = Convolution(1, self.inner, num_axes=1, kernel=config.integer("kernel_size"))
        self.pw_conv = Convolution(self.inner, self.out_channels, num_axes=1, kernel=1)

    def forward(self, x: Tensor, num_positions: int) -> Tensor:
        """x (sounds, channels, positions), padded to ``num_positions``."""
        x = self.dw_conv(x, (x.shape[0], self.inner, num_positions))
        return self.pw_conv(x, (x.shape[0], self.out_channels, num_positions))


class ConvolutionModule(Module):
    """``Phi4MultimodalAudioConvModule``."""

    def __init__(self, config: Config, width: int) -> None:
        self.out_channels, self.kernel = config.integer("ext_pw_out_channel"), config.integer("kernel_size")
        self.layer_norm = LayerNorm(width)
        self.glu = GatedConvolution(width, self.out_channels, config.text("conv_glu_type"))
        self.dw_sep_conv_1d = SeparableConvolution(config, width)
        self.ext_pw_conv_1d = Convolution(width, self.out_channels, num_axes=1, kernel=1)
        self.activation = ops.ACTIVATIONS[config.text("conv_activation")]
        self.dropout = config.number("dropout_rate")

    def forward(self, x: Tensor) -> Tensor:
        batch_size, num_positions, width = x.shape
        x = self.glu(self.layer_norm(x).view(batch_size, width, num_positions))
        x = self.dw_sep_conv_1d(x, num_positions + self.kernel - 1)
        if self.kernel > 1:
            x = ops.part(x, *x.shape[:-1], num_positions)
        x = self.ext_pw_conv_1d(self.activation(x), (batch_size, self.out_channels, num_positions))
        return ops.dropout(x.view(batch_size, num_positions, self.out_channels), self.dropout)


class ConformerLayer(Module):
    """``Phi4MultimodalAudioConformerEncoderLayer``."""

    def __init__(self, config: Config, width: int) -> None:
        self.feed_forward_in = FeedForward(config, width)
        self.self_attn = AudioAttention(config, width)
        self.conv = ConvolutionModule(config, width)
        self.feed_forward_out = FeedForward(config, width)
        self.layer_norm_att = LayerNorm(width)
        self.layer_norm = LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor, backend: AttentionBackend) -> Tensor:
        residual = ops.add(x, ops.scale(self.feed_forward_in(x)))
        x = self.layer_norm_att(residual)
        x = ops.add(residual, self.self_attn(x, mask, backend))
        x = ops.add(x, self.conv(x))
        x = ops.add(x, ops.scale(self.feed_forward_out(x)))
        x = self.layer_norm(x)
        del residual
        return x


class Subsampling(Module):
    """``Phi4MultimodalAudioNemoConvSubsampling``: each halving of time and frequency is one convolution, the first, or
    one for each channel and one of them together; behind each an activation, which is the same object."""

    def __init__(self, config: Config, width: int) -> None:
        channels, reduction = config.integer("nemo_conv_channels"), config.integer("time_reduction")
        if reduction % 2:
            raise not_allowed(CONFIG, "audio_config.time_reduction", reduction, "an even number")
        self.channels, self.num_halvings = channels, reduction.bit_length() - 1
        num_halvings, num_bins = self.num_halvings, halved(config.integer("input_size"), times=self.num_halvings)
        self.activation = ops.ACTIVATIONS[config.text("nemo_activation")]
        convolutions: dict[str, Module] = {"0": Convolution(1, channels, num_axes=2)}
        for index in range(2, 3 * num_halvings - 1, 3):
            convolutions[str(index)] = Convolution(1, channels, num_axes=2)
            convolutions[str(index + 1)] = Convolution(channels, channels, num_axes=2, kernel=1)
        self.conv = Sequential(convolutions)
        self.out = Linear(channels * num_bins, width, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """x (sounds, frames, mel bins) as (sounds, positions, width)."""
        x = x.view(x.shape[0], 1, *x.shape[1:])
        for index in range(self.num_halvings):
            shape = (x.shape[0], self.channels, halved(x.shape[2]), halved(x.shape[3]))
            x = self.conv[str(max(0, 3 * index - 1))](x, shape)
            if index:
                x = self.conv[str(3 * index)](x, shape)
            x = self.activation(x)
        batch_size, channels, num_positions, num_bins = x.shape
        return self.out(ops.copy(x, batch_size, num_positions, channels * num_bins))


class RelativeBias(Module):
    """``Phi4MultimodalAudioRelativeAttentionBias``."""

    def __init__(self, config: Config) -> None:
        num_buckets = config.integer("bias_max_distance") * (1 if config.boolean("bias_symmetric") else 2)
        self.num_heads = config.integer("num_attention_heads")
        self.bias_values = Embedding(num_buckets, self.num_heads)

    def forward(self, x: Tensor) -> Tensor:
        """(1, heads, positions, positions), heads innermost."""
        num_positions = x.shape[1]
        places = x.tape.tensor((num_positions, num_positions), DType.INT64)
        bucket = x.tape.tensor(places.shape, DType.INT64)
        return self.bias_values(bucket).view(1, self.num_heads, num_positions, num_positions)


class Phi4Audio(Module):
    """``Phi4MultimodalAudioModel``."""

    def __init__(self, config: Config) -> None:
        self.width = width = config.integer("hidden_size")
        self.num_bins, self.num_heads = config.integer("input_size"), config.integer("num_attention_heads")
        self.embed = Subsampling(config, width)
        self.relative_attention_bias_layer = RelativeBias(config)
        # No GradientCheckpointingLayers.
        pattern = [0] * config.integer("num_blocks")
        self.encoders = Stack([ConformerLayer(config, width)], pattern, label="audio", can_checkpoint=False)

    def forward(self, spectrograms: Tensor, backend: AttentionBackend) -> Tensor:
        """(sounds, positions, width). What is cut into several sequences is padded for that, and joined again."""
        tape, num_sounds = spectrograms.tape, spectrograms.shape[0]
        with tape.section("audio.embedding"):
            normed = ops.scale(ops.scale(spectrograms))  # less a mean, by a deviation
            x = self.embed(normed)
            del normed
            _, num_positions, width = x.shape
            num_sequences = -(-num_positions // MAX_POSITIONS)
            padding = num_sequences * MAX_POSITIONS - num_positions if num_sequences > 1 else 0
            held: list[Tensor] = []
            if num_sequences > 1:
                if num_sounds > 1:
                    raise InputError(
                        f"--audio-seconds becomes {num_positions} positions of the audio tower, and transformers 5.23 "
                        f"runs more than {MAX_POSITIONS} of one sound at a time alone; give shorter sounds, or one in "
                        f"a micro batch (--micro-batch 1)"
                    )
                if padding:
                    x = chunks.pad(x, num_sounds, num_sequences * MAX_POSITIONS, width)
                    held.append(x)
                x = ops.resample(x, num_sequences, MAX_POSITIONS, width)
                x = ops.resample(x, *x.shape)
            seen = tape.tensor((x.shape[0], x.shape[1], x.shape[1]), DType.BOOL)
            bias = self.relative_attention_bias_layer(x)
            mask = ops.add(seen.view(x.shape[0], *bias.shape[1:]), bias)
            embedded = [x]
            del x

        def call(layer: ConformerLayer, x: Tensor, mask: Tensor) -> Tensor:
            return layer(x, mask, backend)

        x = self.encoders.run_each(embedded.pop(), call, mask, sharing={0})
        if num_sequences > 1:
            with tape.section("audio.joined"):
                x = x.view(num_sounds, num_sequences * MAX_POSITIONS, width)
                if padding:
                    x = ops.part(x, num_sounds, num_positions, width)
        return x


class AudioEmbedding(Module):
    """``Phi4MultimodalAudioEmbedding``: projections of sound by itself, and of sound beside images."""

    def __init__(self, config: Config, width: int, dropout: float) -> None:
        self.dropout = dropout
        self.encoder = Phi4Audio(config)
        in_width = config.integer("hidden_size") * config.integer("downsample_rate")
        self.up_proj_for_speech = Linear(in_width, width, bias=True)
        self.down_proj_for_speech = Linear(width, width, bias=True)
        self.up_proj_for_vision_speech = Linear(in_width, width, bias=True)
        self.down_proj_for_vision_speech = Linear(width, width, bias=True)

    def forward(
        self, ids: Tensor, embeddings: Tensor, spectrograms: Tensor, batch: Batch, backend: AttentionBackend
    ) -> Tensor:
        """``embeddings`` with features of the sounds in the place of their tokens."""
        tape = ids.tape
        up, down = self.up_proj_for_speech, self.down_proj_for_speech
        if batch.num_images:
            up, down = self.up_proj_for_vision_speech, self.down_proj_for_vision_speech
        with tape.section("audio.input"):
            num_tokens = batch.num_audios * (batch.audio.num_tokens if batch.audio else 0)
            places = tape.tensor((num_tokens, len(ids.shape)), DType.INT64)
            spectrograms = ops.to(spectrograms, up.weight.dtype)
        hidden = self.encoder(spectrograms, backend)
        with tape.section("audio.projection"):
            hidden = up(hidden)
            hidden = ops.gelu(hidden)
            features = down(hidden)
            _, length, width = features.shape
            apart = [chunks.select(features, length, width) for _ in range(batch.num_audios)]
            merged = ops.concatenate(apart, (num_tokens, width))
            merged = ops.to(merged, embeddings.dtype)
            del apart
            out = ops.dropout(ops.index_put(embeddings, places, merged), self.dropout)
            del hidden, features, merged
            return out
