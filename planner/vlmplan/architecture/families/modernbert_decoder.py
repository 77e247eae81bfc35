"""ModernBERT's decoder (Ettin): windows in two of three layers, a fused gated MLP, and a dense layer before the head.

Source: transformers 5.23 ``models/modernbert_decoder/modeling_modernbert_decoder.py``. Positions turn heads in float32,
and every sample has its own. The first layer has no norm before attention; embeddings are normed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gemma import GemmaContext
from vlmplan.architecture.families.llama import causal_masks, stack_of_kinds, windows_by_type
from vlmplan.architecture.layer_calls import Calls
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernBertShape:
    """The dimensions of a decoder; ``windows`` of each layer, None for full attention."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    vocab_size: int
    window: int
    windows: tuple[int | None, ...]
    activation: str
    norm_bias: bool
    attention_bias: bool
    mlp_bias: bool
    attention_dropout: float
    embedding_dropout: float
    mlp_dropout: float

    def norm(self) -> LayerNorm:
        return LayerNorm(self.hidden_size, bias=self.norm_bias)


class NormedEmbeddings(Module):
    """``ModernBertDecoderEmbeddings``."""

    def __init__(self, shape: ModernBertShape) -> None:
        self.tok_embeddings = Embedding(shape.vocab_size, shape.hidden_size)
        self.norm = shape.norm()
        self.dropout = shape.embedding_dropout

    def forward(self, ids: Tensor) -> Tensor:
        return ops.dropout(self.norm(self.tok_embeddings(ids)), self.dropout)


class ModernBertAttention(Module):
    """``ModernBertDecoderAttention``."""

    def __init__(self, shape: ModernBertShape, window: int | None) -> None:
        self.shape, self.window = shape, window
        width, bias = shape.hidden_size, shape.attention_bias
        self.q_proj = Linear(width, width, bias=bias)
        self.k_proj = Linear(width, width, bias=bias)
        self.v_proj = Linear(width, width, bias=bias)
        self.Wo = Linear(width, width, bias=bias)

    def forward(self, x: Tensor, context: GemmaContext) -> Tensor:
        batch, num_tokens, width = x.shape
        heads = (batch, self.shape.num_heads, num_tokens, width // self.shape.num_heads)
        q = self.q_proj(x).view(*heads)
        k = self.k_proj(x).view(*heads)
        v = self.v_proj(x).view(*heads)
        ((cos, sin),) = context.positions.values()
        q, k = rotated_wide(q, k, cos, sin)
        mask, scores = context.masks.get(self.window), Scores(dropout=self.shape.attention_dropout)
        out = attend(context.backend, q, k, v, is_causal=True, mask=mask, scores=scores)
        return ops.dropout(self.Wo(out), self.shape.attention_dropout)


def rotated_wide(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """``apply_rotary_pos_emb``: each factor takes a float32 copy of its own, and both results are there before the
    first is cast back."""
    wide: list[Tensor] = []
    for x in (q, k):
        straight = ops.mul(ops.to(x, DType.FLOAT32), cos)
        turned = ops.mul(ops.rotate_half(ops.to(x, DType.FLOAT32), x.shape[-1] // 2), sin)
        wide.append(ops.add(straight, turned))
        del straight, turned
    return ops.to(wide[0], q.dtype), ops.to(wide[1], k.dtype)


class ModernBertMlp(Module):
    """``ModernBertDecoderMLP``."""

    def __init__(self, shape: ModernBertShape) -> None:
        self.Wi = Linear(shape.hidden_size, 2 * shape.intermediate_size, bias=shape.mlp_bias)
        self.Wo = Linear(shape.intermediate_size, shape.hidden_size, bias=shape.mlp_bias)
        self.act: Callable[[Tensor], Tensor] = ops.activation_module(shape.activation)
        self.dropout = shape.mlp_dropout

    def forward(self, x: Tensor) -> Tensor:
        fused = self.Wi(x)
        half = (*fused.shape[:-1], fused.shape[-1] // 2)
        entered, gate = ops.split(fused, half, half)
        del fused
        out = self.Wo(ops.dropout(ops.mul(self.act(entered), gate), self.dropout))
        del entered, gate
        return out


class ModernBertLayer(Module):
    """``ModernBertDecoderLayer``, in which the result of attention has a name to its end."""

    def __init__(self, shape: ModernBertShape, window: int | None, *, is_first: bool) -> None:
        self.attn_norm: LayerNorm | None = None if is_first else shape.norm()
        self.attn = ModernBertAttention(shape, window)
        self.mlp_norm = shape.norm()
        self.mlp = ModernBertMlp(shape)

    @property
    def self_attn(self) -> ModernBertAttention:
        return self.attn

    def forward(self, x: Tensor, context: GemmaContext) -> Tensor:
        residual = x
        x = ops.called(_same, x) if self.attn_norm is None else self.attn_norm(x)
        attended = self.attn(x, context)
        x = ops.add(residual, attended)
        residual = x
        x = self.mlp_norm(x)
        fed_forward = self.mlp(x)
        out = ops.add(residual, fed_forward)
        del attended
        return out


def _same(x: Tensor) -> Tensor:
    return x


class ModernBertDecoder(Module):
    """``ModernBertDecoderModel``."""

    ROTARY_MODULES = ("rotary_emb",)

    def __init__(self, shape: ModernBertShape) -> None:
        self.shape = shape
        self.embeddings = NormedEmbeddings(shape)
        kinds = [(window, index == 0) for index, window in enumerate(shape.windows)]
        self.layers = stack_of_kinds(kinds, lambda kind: ModernBertLayer(shape, kind[0], is_first=kind[1]))
        self.final_norm = shape.norm()

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.embeddings(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        tape, shape = x.tape, self.shape
        with tape.section("positions"):
            masks = causal_masks(x, backend, (None, shape.window))
            tape.prefetch()  # for the module of the positions
            position = (1 if backend.is_packed else x.shape[0], 1, x.shape[1], shape.hidden_size // shape.num_heads)
            positions = {
                window: (tape.tensor(position, x.dtype), tape.tensor(position, x.dtype))
                for window in sorted(set(shape.windows), key=str)
            }
            context = GemmaContext(backend, positions, masks)
        hidden = self.layers.run(x, Calls(context.of_layer))
        with tape.section("norm"):
            hidden = self.final_norm(hidden)
        del masks, positions
        return hidden


class PredictionHead(Module):
    """``ModernBertDecoderPredictionHead``."""

    def __init__(self, shape: ModernBertShape, activation: str, *, has_bias: bool) -> None:
        self.dense = Linear(shape.hidden_size, shape.hidden_size, bias=has_bias)
        self.norm = shape.norm()
        self.act: Callable[[Tensor], Tensor] = ops.activation_module(activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.act(self.dense(x)))


class ModernBert(Model):
    """``ModernBertDecoderForCausalLM``, whose ``lm_head`` comes before what makes the logits."""

    EMBEDDINGS = "model.embeddings.tok_embeddings"
    HEAD = "decoder"
    attention_linears = ("q_proj", "k_proj", "v_proj", "attn.Wo")
    calls_head_inside = True

    def __init__(self, decoder: ModernBertDecoder, config: Config) -> None:
        shape = decoder.shape
        self.model = decoder
        self.lm_head = PredictionHead(
            shape, config.text("classifier_activation"), has_bias=config.boolean("classifier_bias")
        )
        self.decoder = Linear(shape.hidden_size, shape.vocab_size, bias=config.boolean("decoder_bias"))
        if config.boolean("tie_word_embeddings"):
            self.tie_weights()

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        """What the head gets; what the decoder returns is there until the loss is made."""
        hidden = self.model.forward(self.model.embed(ids), backend)
        ids.tape.locals.append(hidden.detached())
        with ids.tape.section("before the head"):
            return self.lm_head(hidden)


def decoder(config: Config) -> Any:
    window = config.integer("local_attention") // 2
    every = config.integer("global_attn_every_n_layers", 3)
    layers = {key: config.get(key) for key in ("num_hidden_layers", "layer_types")}
    named = Config({"sliding_window": window, **layers})
    return ModernBertDecoder(
        ModernBertShape(
            hidden_size=config.integer("hidden_size"),
            intermediate_size=config.integer("intermediate_size"),
            num_heads=config.integer("num_attention_heads"),
            vocab_size=config.integer("vocab_size"),
            window=window,
            windows=windows_by_type(named, lambda index: index % every != 0),
            activation=config.text("hidden_activation"),
            norm_bias=config.boolean("norm_bias"),
            attention_bias=config.boolean("attention_bias"),
            mlp_bias=config.boolean("mlp_bias"),
            attention_dropout=config.number("attention_dropout"),
            embedding_dropout=config.number("embedding_dropout"),
            mlp_dropout=config.number("mlp_dropout"),
        )
    )


causal_lm = ModernBert
