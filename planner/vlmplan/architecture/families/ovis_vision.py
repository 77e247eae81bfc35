"""The visual tokenizer of Ovis 2: a transformer with RMSNorm whose results are spread over a visual vocabulary.

Source: transformers 5.23 ``models/ovis2/modeling_ovis2.py``, ``Ovis2VisionModel``. Nothing copies what the patch
convolution returns, and neither RMSNorm nor a sum changes the layout, so the residuals of all layers lie with their
positions innermost: ``F.linear`` folds the rows of several tiles into one matrix and copies its input for that, every
Linear for itself.
"""

import math

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.vision_tower import Encoder
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, PatchEmbedding, RMSNorm
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType


class Attention(Module):
    """All patches of one tile see each other."""

    def __init__(self, config: Config, width: int) -> None:
        self.num_heads = config.integer("num_attention_heads")
        self.scores = Scores(dropout=config.number("attention_dropout"))
        bias = config.boolean("qkv_bias")
        self.k_proj = Linear(width, width, bias=bias)
        self.v_proj = Linear(width, width, bias=bias)
        self.q_proj = Linear(width, width, bias=bias)
        # Patches of several tiles do not lie in rows.
        self.k_proj.copies_input = self.v_proj.copies_input = self.q_proj.copies_input = True
        self.out_proj = Linear(width, width, bias=bias)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        batch, num_tokens, width = x.shape
        heads = (batch, self.num_heads, num_tokens, width // self.num_heads)
        q = self.q_proj(x).view(*heads)
        k = self.k_proj(x).view(*heads)
        v = self.v_proj(x).view(*heads)
        return self.out_proj(attend(backend, q, k, v, is_causal=False, scores=self.scores))


class GatedMlp(Module):
    """``down(act(gate(x)) * up(x))``."""

    def __init__(self, config: Config, width: int) -> None:
        inner, bias = config.integer("intermediate_size"), config.boolean("mlp_bias")
        self.gate_proj = Linear(width, inner, bias=bias)
        self.up_proj = Linear(width, inner, bias=bias)
        self.gate_proj.copies_input = self.up_proj.copies_input = True
        self.down_proj = Linear(inner, width, bias=bias)
        self.act_fn = ops.activation_module(config.text("hidden_act"))

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(ops.mul(self.act_fn(self.gate_proj(x)), self.up_proj(x)))


class VisionLayer(Module):
    """Pre-norm attention and MLP; what the norms return lives on in a variable of its own."""

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.attention = Attention(config, width)
        self.ffn = GatedMlp(config, width)
        self.rms_norm1 = RMSNorm(width)
        self.rms_norm2 = RMSNorm(width)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        normed = self.rms_norm1(x)
        attended = self.attention(normed, backend)
        x = ops.add(x, attended)
        normed = self.rms_norm2(x)
        return ops.add(x, self.ffn(normed))


class VisionEmbeddings(Module):
    """Patches, normed, and their learned positions."""

    def __init__(self, config: Config) -> None:
        width, patch_size = config.integer("hidden_size"), config.integer("patch_size")
        self.num_positions = (config.integer("image_size") // patch_size) ** 2
        self.patch_numel = config.integer("num_channels") * patch_size**2
        self.patch_embedding = PatchEmbedding(self.patch_numel, width, bias=True)
        self.position_embedding = Embedding(self.num_positions, width)
        self.rms_norm = RMSNorm(width)

    def forward(self, pixels: Tensor, batch: Batch) -> Tensor:
        patches = self.patch_embedding(ops.to(pixels, self.patch_embedding.weight.dtype))
        num_tiles = batch.num_vision_sequences
        num_patches, width = patches.shape[0] // num_tiles, patches.shape[1]
        if num_patches != self.num_positions:
            raise InputError(f"the vision tower takes tiles of {self.num_positions} patches, not {num_patches}")
        x = self.rms_norm(patches.view(num_tiles, num_patches, width))
        # The buffer ``position_ids`` is the model's, not the micro batch's.
        empty = pixels.tape.tensor((0,), DType.INT64)
        return ops.add(x, self.position_embedding(Tensor(empty.storage, (1, num_patches), DType.INT64)))


class VisionTransformer(Module):
    """``Ovis2VisionTransformer``."""

    def __init__(self, config: Config) -> None:
        self.embeddings = VisionEmbeddings(config)
        self.encoder = Encoder(lambda: VisionLayer(config), config.integer("num_hidden_layers"), ())
        self.rms_norm = RMSNorm(config.integer("hidden_size"))

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> Tensor:
        with pixels.tape.section("vision.embedding"):
            embeddings = self.embeddings(pixels, batch)
        last, _ = self.encoder.run(embeddings, lambda layer, x: layer(x, backend))
        with pixels.tape.section("vision.norm"):
            return self.rms_norm(last)


class OvisVision(Module):
    """``Ovis2VisionModel``: squares of patches, and a probability for each word of the visual vocabulary."""

    def __init__(self, config: Config) -> None:
        width, self.stride = config.integer("hidden_size"), config.integer("hidden_stride")
        self.num_indicators = config.integer("num_visual_indicator_tokens")
        self.vocab_size = config.integer("vocab_size")
        if config.text("tokenize_function") != "softmax":
            raise not_allowed(CONFIG, "vision_config.tokenize_function", config.get("tokenize_function"), "softmax")
        num_words = self.vocab_size - self.num_indicators
        self.transformer = VisionTransformer(config)
        self.head_linear = Linear(width * self.stride**2, num_words)
        self.head_norm = LayerNorm(num_words)

    @property
    def patch_numel(self) -> int:
        return self.transformer.embeddings.patch_numel

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        """(the squares of patches, the probabilities of visual words)."""
        hidden = self.transformer(pixels, batch, backend)
        with pixels.tape.section("vision.tokenizer"):
            squares = self.squares(hidden)
            logits = self.head_linear(squares)
            logits = self.head_norm(logits)
            return squares, ops.softmax(logits)

    def squares(self, hidden: Tensor) -> Tensor:
        """Squares of ``hidden_stride`` patches become one wider feature: a clone (``F.pad`` by 0), then a copy."""
        if self.stride == 1:
            return hidden
        num_tiles, num_patches, width = hidden.shape
        side = math.isqrt(num_patches)
        if side**2 != num_patches or side % self.stride:
            # The model pads tiles as well as patches where a side leaves a remainder, and then fails.
            raise InputError(
                f"the vision tower merges {self.stride}x{self.stride} patches of square tiles; {num_patches} patches "
                f"are no such square"
            )
        hidden = ops.copy(hidden)
        return ops.resample(hidden, num_tiles, (side // self.stride) ** 2, width * self.stride**2)
