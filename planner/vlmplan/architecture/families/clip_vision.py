"""The vision tower of CLIP: a class token, learned positions, a norm before the layers.

Source: transformers 5.23 ``models/clip/modeling_clip.py``, ``CLIPVisionModel``. SigLIP's layers are copies of CLIP's.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, by_kernel
from vlmplan.architecture.attention_backend import PLAIN_SCORES, AttentionBackend, Scores
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.residual_layers import PreNormLayer
from vlmplan.architecture.families.vision_tower import Encoder, VisionOutput
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, PatchEmbedding
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.read_weights import ReadingModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.units import DType


class Attention(Module):
    """``CLIPAttention``: all tokens of one tile see each other. ``context`` is the backend."""

    scores = PLAIN_SCORES

    def __init__(self, width: int, num_heads: int) -> None:
        self.num_heads = num_heads
        self.k_proj = Linear(width, width, bias=True)
        self.v_proj = Linear(width, width, bias=True)
        self.q_proj = Linear(width, width, bias=True)
        self.out_proj = Linear(width, width, bias=True)

    def forward(self, x: Tensor, context: Any) -> Tensor:
        q, k, v = by_kernel(context, *self.heads(x), has_mask=False)
        return self.out_proj(attend(context, q, k, v, is_causal=False, scores=self.scores))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (batch, heads, tokens, width of a head)."""
        batch, num_tokens, width = x.shape
        heads = (batch, self.num_heads, num_tokens, width // self.num_heads)
        return self.q_proj(x).view(*heads), self.k_proj(x).view(*heads), self.v_proj(x).view(*heads)


class Mlp(Module):
    """``CLIPMLP``: ``fc2(act(fc1(x)))``, of some decoders of text too (Phi, nanochat)."""

    def __init__(self, width: int, inner: int, activation: str, *, has_bias: bool = True) -> None:
        self.fc1 = Linear(width, inner, bias=has_bias)
        self.fc2 = Linear(inner, width, bias=has_bias)
        self.activation_fn = ops.activation_module(activation)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = self.activation_fn(x)
        return self.fc2(x)


class EncoderLayer(PreNormLayer):
    """``CLIPEncoderLayer``: pre-norm attention and MLP. ``context`` is what the attention takes."""

    MODULES = ("layer_norm1", "self_attn", "layer_norm2", "mlp")

    attention: Any = Attention

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.self_attn: Any = self.attention(width, config.integer("num_attention_heads"))
        self.self_attn.scores = Scores(dropout=config.number("attention_dropout"))
        self.layer_norm1 = LayerNorm(width)
        self.mlp = Mlp(width, config.integer("intermediate_size"), config.text("hidden_act"))
        self.layer_norm2 = LayerNorm(width)


class VisionEmbeddings(ReadingModule):
    """``CLIPVisionEmbeddings`` and ``SiglipVisionEmbeddings``: patches, a class token in CLIP, learned positions. They
    read the convolution's weight for the type that pixels are cast to."""

    INPUT_EMBEDDING = "patch_embedding"

    def __init__(self, config: Config, *, has_class_token: bool) -> None:
        width, patch_size = config.integer("hidden_size"), config.integer("patch_size")
        self.image_size, self.patch_size = config.integer("image_size"), patch_size
        self.patch_numel = config.integer("num_channels") * patch_size**2
        self.num_positions = (self.image_size // patch_size) ** 2 + has_class_token
        self.has_class_token = has_class_token
        if has_class_token:
            self.class_embedding = Parameter(width)
        self.patch_embedding = PatchEmbedding(self.patch_numel, width, bias=not has_class_token)
        self.position_embedding = Embedding(self.num_positions, width)

    def read_modules(self) -> Sequence[Module]:
        return (self.patch_embedding,)

    def forward(self, pixels: Tensor, batch: Batch) -> Tensor:
        tape = pixels.tape
        num_sequences = batch.num_vision_sequences
        patches = self.patch_embedding(ops.to(pixels, self.patch_embedding.weight.dtype))
        num_patches, width = patches.shape[0] // num_sequences, patches.shape[1]
        if num_patches + self.has_class_token != self.num_positions:
            raise InputError(
                f"the vision tower takes images of {self.image_size}x{self.image_size} pixels, "
                f"{self.num_positions - self.has_class_token} patches of {self.patch_size}, not {num_patches}"
            )
        embeddings = patches = patches.view(num_sequences, num_patches, width)
        if self.has_class_token:
            class_tokens = ops.expand_weight(self.class_embedding, (num_sequences, 1, width), tape)
            embeddings = ops.concatenate([class_tokens, patches], (num_sequences, self.num_positions, width))
        return ops.add(embeddings, self.position_embedding(position_ids(tape.tensor((0,), DType.INT64), self)))


def position_ids(empty: Tensor, embeddings: VisionEmbeddings) -> Tensor:
    """The buffer ``position_ids``: its bytes are the model's, not the micro batch's."""
    return Tensor(empty.storage, (1, embeddings.num_positions), empty.dtype)


class ClipVision(Module):
    """``CLIPVisionModel``."""

    keeps_channels_first = False

    def __init__(self, config: Config, feature_layers: Sequence[int]) -> None:
        width = config.integer("hidden_size")
        self.embeddings = VisionEmbeddings(config, has_class_token=True)
        self.pre_layrnorm = LayerNorm(width)
        self.encoder = Encoder(lambda: EncoderLayer(config), config.integer("num_hidden_layers"), feature_layers)
        self.post_layernorm = LayerNorm(width)

    @property
    def patch_numel(self) -> int:
        return self.embeddings.patch_numel

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> VisionOutput:
        with pixels.tape.section("vision.embedding"):
            hidden = self.embeddings(pixels, batch)
            hidden = self.pre_layrnorm(hidden)
        last, held = self.encoder.run(hidden, lambda layer, x: layer(x, backend))
        with pixels.tape.section("vision.pooling"):
            pooled = self.post_layernorm(ops.part(last, last.shape[0], last.shape[2]))
        return VisionOutput(last, held, pooled)
