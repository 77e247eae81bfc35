"""Qwen-VL: the first Qwen decoder with the visual part of ``qwen_visual``.

Source: ``modeling_qwen.py`` in the files of Qwen/Qwen-VL-Chat. It is remote code that transformers does not contain and
that is never run here, so this description follows the published file and is not held to a real step. That file knows
one kind of attention: scores written out in the model's type, whatever ``attn_implementation`` says. Its own loss takes
16-bit logits; ``--loss full`` counts transformers' float32 loss instead, which is larger.
"""

from dataclasses import dataclass, replace

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.families.qwen_visual import VisionTransformer
from vlmplan.architecture.indexing import put_rows
from vlmplan.architecture.model import Batch, Model, Part
from vlmplan.architecture.modules import Embedding, Linear, Module, RMSNorm, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.units import DType

BLANK_IMAGE_SIDE = 224
"""Pixels of the blank image that a training batch without images is given, so that every weight has a gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenShape:
    """The dimensions of the decoder. ``intermediate_size`` is the file's: that of gate and up together."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    head_dim: int
    rotary_width: int
    vocab_size: int
    has_bias: bool
    embedding_dropout: float
    scores: Scores


class QwenContext:
    """What every block is called with besides the hidden states."""

    __slots__ = ("backend", "cos", "mask", "sin")

    def __init__(self, backend: AttentionBackend, cos: Tensor, sin: Tensor, mask: Tensor) -> None:
        self.backend, self.cos, self.sin, self.mask = backend, cos, sin, mask


class QwenAttention(Module):
    """Attention with one projection for q, k and v, and rotary positions in float32."""

    def __init__(self, shape: QwenShape) -> None:
        self.shape = shape
        width = shape.num_heads * shape.head_dim
        self.c_attn = Linear(shape.hidden_size, 3 * width, bias=True)
        self.c_proj = Linear(shape.hidden_size, width, bias=shape.has_bias)

    def forward(self, x: Tensor, context: QwenContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        head = (batch, self.shape.num_heads, num_tokens, self.shape.head_dim)
        q, k, v = ops.split(self.c_attn(x), head, head, head)
        q, k = _rotated(q, self.shape.rotary_width, context), _rotated(k, self.shape.rotary_width, context)
        out = attend(context.backend, q, k, v, is_causal=True, mask=context.mask, scores=self.shape.scores)
        return self.c_proj(out)


def _rotated(x: Tensor, rotary_width: int, context: QwenContext) -> Tensor:
    """``apply_rotary_pos_emb``: cast to float32, rotate, put together with the rest, cast back."""
    head_dim = x.shape[-1]
    rotated = x if rotary_width == head_dim else ops.slice_last(x, rotary_width)
    rotated = ops.to(rotated, DType.FLOAT32)
    rest = ops.to(ops.slice_last(x, head_dim - rotary_width), DType.FLOAT32)
    rotated = ops.rotate(rotated, context.cos, context.sin)
    return ops.to(ops.concatenate([rotated, rest], x.shape), x.dtype)


class QwenMlp(Module):
    """``c_proj(w1(x) * silu(w2(x)))``."""

    def __init__(self, shape: QwenShape) -> None:
        inner = shape.intermediate_size // 2
        self.w1 = Linear(shape.hidden_size, inner, bias=shape.has_bias)
        self.w2 = Linear(shape.hidden_size, inner, bias=shape.has_bias)
        self.c_proj = Linear(inner, shape.hidden_size, bias=shape.has_bias)

    def forward(self, x: Tensor) -> Tensor:
        up = self.w1(x)
        gate = self.w2(x)
        inner = ops.mul(up, ops.silu(gate))
        return self.c_proj(inner)


class QwenBlock(Module):
    """Pre-norm attention and MLP."""

    def __init__(self, shape: QwenShape) -> None:
        self.ln_1 = RMSNorm(shape.hidden_size)
        self.attn = QwenAttention(shape)
        self.ln_2 = RMSNorm(shape.hidden_size)
        self.mlp = QwenMlp(shape)

    def forward(self, x: Tensor, context: QwenContext) -> Tensor:
        normed = self.ln_1(x)
        attended = self.attn(normed, context)
        inner = ops.add(attended, x)
        normed = self.ln_2(inner)
        fed_forward = self.mlp(normed)
        return ops.add(inner, fed_forward)


class QwenModel(Module):
    """``QWenModel``: embedding, blocks, norm, and the visual part behind them in the order of parameters."""

    def __init__(self, shape: QwenShape, visual: VisionTransformer) -> None:
        self.shape = shape
        self.wte = Embedding(shape.vocab_size, shape.hidden_size)
        self.h = Stack.of(QwenBlock(shape), shape.num_layers, label="layers")
        self.ln_f = RMSNorm(shape.hidden_size)
        self.visual = visual

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        tape = ids.tape
        backend = replace(backend, implementation="eager")
        features = self._features(ids, pixels, batch)
        with tape.section("embedding"):
            x = self.wte(ids)
            mask = causal_masks(x, backend, (None,))[None]
            shape = (1, 1, x.shape[1], self.shape.rotary_width)
            cos, sin = tape.tensor(shape, DType.FLOAT32), tape.tensor(shape, DType.FLOAT32)
            context = QwenContext(backend, cos, sin, mask)
            del cos, sin, mask
            hidden = ops.copy(ops.dropout(x, self.shape.embedding_dropout))
            hidden = _with_images(hidden, features, has_images=pixels is not None)
        hidden = self.h.run(hidden, lambda block, hidden: block(hidden, context))
        with tape.section("norm"):
            return self.ln_f(hidden)

    def _features(self, ids: Tensor, pixels: Tensor | None, batch: Batch) -> Tensor:
        if pixels is not None:
            return self.visual(pixels, batch.num_images)
        with ids.tape.section("vision.blank"):
            num_patches = BLANK_IMAGE_SIDE**2 * 3 // self.visual.patch_numel
            blank = ids.tape.tensor((num_patches, self.visual.patch_numel), self.visual.conv1.weight.dtype)
        return self.visual(blank, 1)


def _with_images(hidden: Tensor, features: Tensor, *, has_images: bool) -> Tensor:
    """Features written over the embeddings of their tokens, image by image; those of a blank image times zero."""
    if not has_images:
        return ops.add(hidden, ops.scale(ops.mean_last(features.view(1, features.numel))))
    # A slice needs no mask; of the copies of the gradient that each image makes, two live at a time as here.
    no_mask = hidden.tape.tensor((0,), DType.BOOL)
    return put_rows(hidden, no_mask, features, features.shape)


class Qwen(Model):
    """``QWenLMHeadModel``."""

    PARTS = {
        "transformer.visual": Part.VISION,
        "transformer.visual.attn_pool": Part.PROJECTOR,
        "transformer.visual.ln_post": Part.PROJECTOR,
        "transformer.visual.proj": Part.PROJECTOR,
    }
    EMBEDDINGS = "transformer.wte"
    attention_linears = ("attn.c_attn", "attn.c_proj")

    def __init__(self, shape: QwenShape, visual: VisionTransformer, *, ties_weights: bool) -> None:
        self.transformer = QwenModel(shape, visual)
        self.lm_head = Linear(shape.hidden_size, shape.vocab_size)
        if ties_weights:
            self.tie_weights()

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        assert batch.image is not None
        return (batch.num_images * batch.image.num_patches, self.transformer.visual.patch_numel)

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        return self.transformer(ids, pixels, batch, backend)


def build(config: Config) -> Qwen:
    """``QWenLMHeadModel``. Raises InputError for a file without a visual part (Qwen 1 text models)."""
    if config.get("visual") is None:
        raise InputError("config.json has no visual part; of the models of type qwen only Qwen-VL can be planned")
    head_dim = config.integer("kv_channels")
    shape = QwenShape(
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=config.integer("num_attention_heads"),
        head_dim=head_dim,
        rotary_width=int(head_dim * config.number("rotary_pct", 1.0)),
        vocab_size=config.integer("vocab_size"),
        has_bias=not config.boolean("no_bias"),
        embedding_dropout=config.number("emb_dropout_prob"),
        scores=Scores(dropout=config.number("attn_dropout_prob"), upcasts=False),
    )
    visual = VisionTransformer(config.section("visual"))
    return Qwen(shape, visual, ties_weights=config.boolean("tie_word_embeddings"))
