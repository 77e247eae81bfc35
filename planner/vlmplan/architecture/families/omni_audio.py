"""The audio towers of Qwen's Omni thinkers: spectrograms in chunks through convolutions, and layers over the frames of
each chunk or window of them.

Sources: transformers 5.23 ``models/qwen3_omni_moe/modeling_qwen3_omni_moe.py`` (``Qwen3OmniMoeAudioEncoder``) and
``models/qwen2_5_omni/modeling_qwen2_5_omni.py`` (``Qwen2_5OmniAudioEncoder``).
"""

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.audio import halved
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.packed_patches import attended_apart
from vlmplan.architecture.indexing import take_rows
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, Stack
from vlmplan.architecture.packed_lengths import MAX_CALLS, PackedLengths, shares
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType

KERNEL = 3
"""Side of the convolutions, where nothing else is said."""
NUM_HALVINGS = 3
"""Convolutions with a stride of 2 that Qwen3-Omni's spectrograms pass."""


class Convolution(Module):
    """``nn.Conv1d`` (``num_axes`` 1) or ``nn.Conv2d`` (2). ``in_channels`` of a group."""

    def __init__(self, in_channels: int, out_channels: int, *, num_axes: int, kernel: int = KERNEL) -> None:
        self.weight = Parameter(out_channels, in_channels, *(kernel,) * num_axes)
        self.bias = Parameter(out_channels)

    def forward(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """x (batch, channels, ...) as a result of ``shape``, which stride and padding decide."""
        return ops.convolution(x, self.weight, self.bias, shape)


class AudioAttention(Module):
    """``Qwen3OmniMoeAudioAttention``. Qwen2.5-Omni's has no bias on k, as Whisper's."""

    def __init__(self, width: int, num_heads: int, *, key_bias: bool) -> None:
        self.num_heads = num_heads
        self.k_proj = Linear(width, width, bias=key_bias)
        self.v_proj = Linear(width, width, bias=True)
        self.q_proj = Linear(width, width, bias=True)
        self.out_proj = Linear(width, width, bias=True)

    def forward(self, x: Tensor, backend: AttentionBackend, lengths: PackedLengths) -> Tensor:
        """Attention among the frames of each of the ``lengths``; x (frames, width)."""
        num_frames, width = x.shape
        head = (self.num_heads, num_frames, width // self.num_heads)
        parts = self.q_proj(x).view(*head), self.k_proj(x).view(*head), self.v_proj(x).view(*head)
        return attended_apart(parts, backend, lengths, self.out_proj)


class AudioLayer(Module):
    """``Qwen3OmniMoeAudioEncoderLayer``."""

    def __init__(self, config: Config, *, key_bias: bool) -> None:
        width, inner = config.integer("d_model"), config.integer("encoder_ffn_dim")
        self.self_attn = AudioAttention(width, config.integer("encoder_attention_heads"), key_bias=key_bias)
        self.self_attn_layer_norm = LayerNorm(width)
        self.fc1 = Linear(width, inner, bias=True)
        self.fc2 = Linear(inner, width, bias=True)
        self.final_layer_norm = LayerNorm(width)
        self.activation = ops.ACTIVATIONS[config.text("activation_function")]

    def forward(self, x: Tensor, backend: AttentionBackend, lengths: PackedLengths) -> Tensor:
        x = ops.add(x, self.self_attn(self.self_attn_layer_norm(x), backend, lengths))
        hidden = self.fc2(self.activation(self.fc1(self.final_layer_norm(x))))
        x = ops.add(x, hidden)
        return ops.clamp(x, num_limits=2) if x.dtype is DType.FLOAT16 else x


class OmniAudio(Module):
    """What both towers have: chunks of spectrograms, convolutions over each, and layers over what those leave."""

    KEY_BIAS = True
    layers: Stack

    def __init__(self, config: Config) -> None:
        self.num_bins, self.width = config.integer("num_mel_bins"), config.integer("d_model")
        self.chunk_frames = 2 * config.integer("n_window")
        # Of ``SinusoidsPositionEmbedding``, a table that no file has: float32, as it is computed.
        self.buffer_bytes = config.integer("max_source_positions") * self.width * DType.FLOAT32.num_bytes

    def make_layers(self, config: Config) -> Stack:
        layer = AudioLayer(config, key_bias=self.KEY_BIAS)
        return Stack.of(layer, config.integer("encoder_layers"), label="audio")

    def chunks(self, batch: Batch) -> PackedLengths:
        """Frames of the chunks that each sound is cut into, of which the last may be shorter."""
        assert batch.audio is not None
        return PackedLengths(cut(batch.audio.num_frames, self.chunk_frames), batch.num_audios)

    def convolved(self, chunks: PackedLengths, *, times: int) -> PackedLengths:
        """What of the chunks is left by convolutions with a stride of 2."""
        return PackedLengths(
            tuple((halved(length, times=times), count) for length, count in chunks.runs), chunks.num_images
        )

    def forward(self, spectrograms: Tensor, batch: Batch, backend: AttentionBackend) -> Tensor:
        """Features of all sounds (tokens, width of the decoder). Arguments and local variables live until the end, as
        there: frames of the sounds without padding, their chunks, and the positions of what is no padding."""
        tape, chunks = spectrograms.tape, self.chunks(batch)
        with tape.section("audio.embedding"):
            frames = self.frames(spectrograms, chunks.num_tokens)
            padded = tape.tensor((chunks.count, self.num_bins, chunks.longest), frames.dtype)
            tape.move(2 * padded.num_bytes)
            held, embedded = self.embed(padded, chunks)
        x = self.layers.run(embedded.pop(), lambda layer, x: layer(x, backend, self.lengths(chunks, batch)))
        with tape.section("audio.projection"):
            features = self.project(x, batch)
        del frames, held
        return features

    def frames(self, spectrograms: Tensor, num_frames: int) -> Tensor:
        """The frames of the sounds, picked by their mask (``get_audio_features``)."""
        places = spectrograms.tape.tensor((2, num_frames), DType.INT64)
        return take_rows(spectrograms, places, (num_frames, self.num_bins))

    def embed(self, padded: Tensor, chunks: PackedLengths) -> tuple[list[Tensor], list[Tensor]]:
        """Embeddings of chunks (chunks, mel bins, frames): what local variables hold, and what the layers get (frames,
        width)."""
        raise NotImplementedError

    def lengths(self, chunks: PackedLengths, batch: Batch) -> PackedLengths:
        """Lengths of the sequences of frames that see each other."""
        raise NotImplementedError

    def project(self, x: Tensor, batch: Batch) -> Tensor:
        """Features of the frames x."""
        raise NotImplementedError

    def positioned(self, x: Tensor) -> Tensor:
        """x (chunks, frames, width) with the positions of a chunk's frames, cast from float32."""
        return ops.add(x, x.tape.tensor((1, *x.shape[1:]), x.dtype))


def cut(length: int, piece: int) -> tuple[tuple[int, int], ...]:
    """(length, how many) of the pieces of a whole, the last of which is the rest.

    >>> cut(500, 200), cut(150, 200), cut(400, 200)
    (((200, 2), (100, 1)), ((150, 1),), ((200, 2),))
    """
    count, rest = divmod(length, piece)
    return ((piece, count),) * (count > 0) + ((rest, 1),) * (rest > 0)


class Qwen3OmniAudio(OmniAudio):
    """``Qwen3OmniMoeAudioEncoder``."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width, self.channels = self.width, config.integer("downsample_hidden_size")
        self.convolved_chunks, self.window_frames = config.integer("conv_chunksize"), config.integer("n_window_infer")
        self.layers = self.make_layers(config)
        self.ln_post = LayerNorm(width)
        self.conv2d1 = Convolution(1, self.channels, num_axes=2)
        self.conv2d2 = Convolution(self.channels, self.channels, num_axes=2)
        self.conv2d3 = Convolution(self.channels, self.channels, num_axes=2)
        self.conv_out = Linear(self.channels * halved(self.num_bins, times=NUM_HALVINGS), width)
        self.proj1 = Linear(width, width, bias=True)
        self.proj2 = Linear(width, config.integer("output_dim"), bias=True)
        self.activation = ops.ACTIVATIONS[config.text("activation_function")]

    def embed(self, padded: Tensor, chunks: PackedLengths) -> tuple[list[Tensor], list[Tensor]]:
        tape, (count, num_bins, num_frames) = padded.tape, padded.shape
        padded = ops.to(padded, self.conv2d1.weight.dtype)
        of_frames = self.convolved(chunks, times=NUM_HALVINGS)
        held = [padded, tape.tensor((of_frames.num_tokens,), DType.INT64)]
        pieces = cut(count, self.convolved_chunks)
        sizes = (
            [size for size, often in pieces for _ in range(often)]
            if sum(often for _, often in pieces) <= MAX_CALLS
            else shares(count)
        )
        for size in sizes:
            x = padded.view(size, 1, num_bins, num_frames)
            for convolution in (self.conv2d1, self.conv2d2, self.conv2d3):
                x = ops.gelu(convolution(x, (size, self.channels, halved(x.shape[2]), halved(x.shape[3]))))
            held.append(x)
            del x
        _, channels, bins, length = held[-1].shape
        x = ops.concatenate(held[2:], (count, channels, bins, length))
        x = ops.copy(x, count, length, channels * bins)
        x = self.positioned(self.conv_out(x))
        held.append(x)
        return held, [take_rows(x, held[1], (of_frames.num_tokens, self.width))]

    def lengths(self, chunks: PackedLengths, batch: Batch) -> PackedLengths:
        """Windows of a few chunks (``get_audio_cu_seqlens``)."""
        of_frames = self.convolved(chunks, times=NUM_HALVINGS)
        window = of_frames.longest * (self.window_frames // self.chunk_frames)
        return PackedLengths(cut(of_frames.num_tokens // batch.num_audios, window), batch.num_audios)

    def project(self, x: Tensor, batch: Batch) -> Tensor:
        return self.proj2(self.activation(self.proj1(self.ln_post(x))))


class Qwen25OmniAudio(OmniAudio):
    """``Qwen2_5OmniAudioEncoder``."""

    KEY_BIAS = False

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width, out_width = self.width, config.integer("output_dim")
        self.conv1 = Convolution(self.num_bins, width, num_axes=1)
        self.conv2 = Convolution(width, width, num_axes=1)
        self.audio_bos_eos_token = Embedding(2, out_width)
        self.layers = self.make_layers(config)
        self.ln_post = LayerNorm(width)
        self.proj = Linear(width, out_width, bias=True)

    def embed(self, padded: Tensor, chunks: PackedLengths) -> tuple[list[Tensor], list[Tensor]]:
        tape, (count, _, num_frames) = padded.tape, padded.shape
        of_frames = self.convolved(chunks, times=1)
        held = [padded, tape.tensor((of_frames.num_tokens,), DType.INT64)]
        held.append(tape.tensor((of_frames.num_tokens // 2,), DType.INT64))  # of pairs that are pooled
        padded = ops.to(padded, self.conv1.weight.dtype)
        mask = tape.tensor((count, 1, num_frames), DType.INT64)
        x = ops.mul(ops.gelu(self.conv1(padded, (count, self.width, num_frames))), mask)
        x = ops.gelu(self.conv2(x, (count, self.width, halved(num_frames))))
        x = self.positioned(x.view(count, halved(num_frames), self.width))
        held += [padded, mask, x]
        rows = ops.copy(x) if count > 1 else x  # frames of a chunk lie side by side
        return held, [take_rows(rows, held[1], (of_frames.num_tokens, self.width))]

    def lengths(self, chunks: PackedLengths, batch: Batch) -> PackedLengths:
        return self.convolved(chunks, times=1)

    def project(self, x: Tensor, batch: Batch) -> Tensor:
        assert batch.audio is not None
        tape, num_tokens = x.tape, batch.num_audios * batch.audio.num_tokens
        shape = (num_tokens, self.width)
        first = take_rows(x, tape.tensor((num_tokens,), DType.INT64), shape)
        second = take_rows(x, tape.tensor((num_tokens,), DType.INT64), shape)
        x = ops.add(first, second)
        del first, second
        return self.proj(self.ln_post(ops.scale(x)))
