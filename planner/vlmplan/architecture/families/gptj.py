"""GPT-J and CodeGen: attention and MLP side by side behind one norm, positions on part of each head.

Source: transformers 5.23 and 5.24 ``models/gptj/modeling_gptj.py`` and ``models/codegen/modeling_codegen.py``. Before
5.24 every layer holds a table of positions, of which no file has anything, and picks its rows anew, and there is no
sdpa; GPT-J alone takes flash_attention_2.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, cached
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.attention_kernels import product
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.held_weights import HoldingContext, stack_of_holding
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.families.partial_rotary import parts_of_heads
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, Stack, require_positions
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class GptjShape:
    """The dimensions of a GPT-J decoder, and its probabilities of dropout."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_positions: int
    rotary_width: int
    vocab_size: int
    activation: str
    attention_dropout: float
    embedding_dropout: float
    residual_dropout: float
    shares_positions: bool
    """Whether all layers share a table, and have transformers' attention functions: see ``TransformersVersion``."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


class GptjContext(HoldingContext):
    """``rows``: sine and cosine of the tokens side by side, where all layers share them."""

    __slots__ = ("rows",)

    def __init__(self, backend: AttentionBackend, mask: Tensor | None, rows: Tensor | None) -> None:
        super().__init__(backend, mask)
        self.rows = rows


class GptjAttention(Module):
    """``GPTJAttention``: (result, weights of eager attention or what flash attention gives), which the layer holds."""

    def __init__(self, shape: GptjShape) -> None:
        self.shape, width = shape, shape.hidden_size
        self.k_proj = Linear(width, width)
        self.v_proj = Linear(width, width)
        self.q_proj = Linear(width, width)
        self.out_proj = Linear(width, width)

    def forward(self, x: Tensor, context: GptjContext) -> tuple[Tensor, Tensor | None]:
        """The rows of the table, and what they are picked by, live until attention ends."""
        batch, num_tokens, _ = x.shape
        shape = self.shape
        heads = (batch, shape.num_heads, num_tokens, shape.head_dim)
        q = self.q_proj(x).view(*heads)
        k = self.k_proj(x).view(*heads)
        v = self.v_proj(x).view(*heads)
        picked = self._picked(k, num_tokens) if context.rows is None else [context.rows]
        rows = picked[-1]
        k_part, k_rest = parts_of_heads(k, shape.rotary_width)
        q_part, q_rest = parts_of_heads(q, shape.rotary_width)
        k_part = rotated_in_pairs(k_part, rows)
        q_part = rotated_in_pairs(q_part, rows)
        k = ops.concatenate([k_part, k_rest], k.shape)
        q = ops.concatenate([q_part, q_rest], q.shape)
        out, weights = self._attended(q, k, v, context)
        out = ops.dropout(self.out_proj(out), shape.residual_dropout)
        del picked, rows, k_part, k_rest, q_part, q_rest
        return out, weights

    def _picked(self, k: Tensor, num_tokens: int) -> list[Tensor]:
        """The table, what its rows are picked by, and these."""
        tape, width = k.tape, self.shape.rotary_width
        table = tape.tensor((1, self.shape.num_positions, width), DType.FLOAT32)
        places = tape.tensor((1, num_tokens, width), DType.INT64)
        tape.move(table.num_bytes + places.num_bytes)
        return [table, places, tape.tensor((1, num_tokens, width), k.dtype)]

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, context: GptjContext) -> tuple[Tensor, Tensor | None]:
        if self.shape.shares_positions:
            return attended(q, k, v, context, dropout=self.shape.attention_dropout)
        if context.backend.implementation == "eager":
            return wide_attention(q, k, v, context, dropout=self.shape.attention_dropout, masks_first=False)
        out = attend(context.backend, q, k, v, is_causal=True, scores=Scores(dropout=self.shape.attention_dropout))
        return out, out.detached()


class CodeGenAttention(Module):
    """``CodeGenAttention``: one projection, whose queries, keys and values are written out, and positions in float32,
    which make queries and keys so."""

    def __init__(self, shape: GptjShape) -> None:
        self.shape, width = shape, shape.hidden_size
        fused, out = Linear(width, 3 * width), Linear(width, width)
        if shape.shares_positions:
            self.out_proj, self.qkv_proj = out, fused
        else:
            self.qkv_proj, self.out_proj = fused, out

    def forward(self, x: Tensor, context: GptjContext) -> tuple[Tensor, Tensor | None]:
        """The projection lives until attention ends."""
        tape, (batch, num_tokens, width) = x.tape, x.shape
        shape = self.shape
        fused = self.qkv_proj(x)
        third = (batch, num_tokens, width)
        heads = (batch, shape.num_heads, num_tokens, shape.head_dim)
        q, v, k = ops.split(fused, third, third, third)
        q = ops.copy(q, *heads)
        k = ops.copy(k, *heads)
        v = ops.copy(v, *heads)
        rows = context.rows or tape.tensor((1, num_tokens, shape.rotary_width), DType.FLOAT32)
        k_part, k_rest = parts_of_heads(k, shape.rotary_width)
        q_part, q_rest = parts_of_heads(q, shape.rotary_width)
        k_part = rotated_in_pairs(k_part, rows)
        q_part = rotated_in_pairs(q_part, rows)
        k = ops.concatenate([k_part, k_rest], k.shape)
        q = ops.concatenate([q_part, q_rest], q.shape)
        if shape.shares_positions:
            q = ops.to(q, v.dtype)
            k = ops.to(k, v.dtype)
            out, weights = attended(q, k, v, context, dropout=shape.attention_dropout)
        else:
            out, weights = wide_attention(q, k, v, context, dropout=shape.attention_dropout, masks_first=True)
        out = ops.dropout(self.out_proj(out), shape.residual_dropout)
        del fused, rows, k_part, k_rest, q_part, q_rest
        return out, weights


def rotated_in_pairs(x: Tensor, rows: Tensor) -> Tensor:
    """``apply_rotary_pos_emb``: sine and cosine, which lie side by side in ``rows``, are written out for both elements
    of a pair, each time anew."""
    shape = (1, 1, rows.shape[1], rows.shape[2])
    sin, cos = rows.tape.tensor(shape, rows.dtype), rows.tape.tensor(shape, rows.dtype)
    return ops.rotate(x, cos, sin)


def wide_attention(
    q: Tensor, k: Tensor, v: Tensor, context: HoldingContext, *, dropout: float, masks_first: bool
) -> tuple[Tensor, Tensor]:
    """``_attn``: the result and the weights, of scores in float32; ``masks_first``: before they are scaled."""
    batch, num_heads, num_tokens, head_dim = q.shape
    k, v = cached(ops.to(k, v.dtype) if q.tape.key_cache is not None else k, v)
    scores, several = (batch, num_heads, num_tokens, num_tokens), batch > 1
    q_wide, k_wide = ops.to(q, DType.FLOAT32), ops.to(k, DType.FLOAT32)
    weights = product(q_wide, k_wide, scores, head_dim, copies=(several, several))
    assert context.mask is not None
    if masks_first:
        weights = ops.add(weights, context.mask)
        weights = ops.scale(weights)
    else:
        weights = ops.scale(weights)
        weights = ops.add(weights, context.mask)
    weights = ops.softmax(weights)
    weights = ops.to(weights, v.dtype)
    weights = ops.dropout(weights, dropout)
    out = product(weights, v, (*q.shape[:-1], head_dim), num_tokens, copies=(False, several))
    del q_wide, k_wide
    return ops.copy(out, batch, num_tokens, num_heads * head_dim), weights


def attended(q: Tensor, k: Tensor, v: Tensor, context: GptjContext, *, dropout: float) -> tuple[Tensor, Tensor | None]:
    """The result and the weights, by one of transformers' attention functions or ``eager_attention_forward``, whose
    scores are in float32."""
    if context.backend.implementation != "eager":
        scores = Scores(dropout=dropout)
        return attend(context.backend, q, k, v, is_causal=True, mask=context.mask, scores=scores), None
    batch, num_heads, num_tokens, head_dim = q.shape
    k, v = cached(k, v)
    shape, several = (batch, num_heads, num_tokens, num_tokens), batch > 1
    wide = ops.to(q, DType.FLOAT32), ops.to(k, DType.FLOAT32)
    weights = product(*wide, shape, head_dim, copies=(several, several))
    del wide
    weights = ops.scale(weights)
    if context.mask is not None:
        weights = ops.add(weights, context.mask)
    weights = ops.to(ops.softmax(weights), v.dtype)
    weights = ops.dropout(weights, dropout)
    out = product(weights, v, q.shape, num_tokens, copies=(False, several))
    return ops.copy(out, batch, num_tokens, num_heads * head_dim), weights


class GptjMlp(Module):
    """``GPTJMLP``."""

    def __init__(self, shape: GptjShape) -> None:
        self.fc_in = Linear(shape.hidden_size, shape.intermediate_size, bias=True)
        self.fc_out = Linear(shape.intermediate_size, shape.hidden_size, bias=True)
        self.act: Callable[[Tensor], Tensor] = ops.activation_module(shape.activation)
        self.dropout = shape.residual_dropout

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc_in(x)
        x = self.act(x)
        x = self.fc_out(x)
        return ops.dropout(x, self.dropout)


class GptjLayer(Module):
    """``GPTJBlock``, ``CodeGenBlock``."""

    def __init__(self, shape: GptjShape, attention: Module) -> None:
        self.ln_1 = LayerNorm(shape.hidden_size)
        self.attn: Any = attention
        self.mlp = GptjMlp(shape)
        self.returns_weights = not shape.shares_positions

    def forward(self, x: Tensor, context: GptjContext) -> Tensor:
        held = context.held(x)
        residual = x
        x = self.ln_1(x)
        attended, weights = self.attn(x, context)
        fed_forward = self.mlp(x)
        x = ops.add(ops.add(attended, fed_forward), residual)
        if self.returns_weights:
            context.hold(weights)
        del weights, held
        return x


class GptjDecoder(Module):
    """``GPTJModel``, ``CodeGenModel``."""

    def __init__(self, shape: GptjShape, attention: Callable[[GptjShape], Module]) -> None:
        self.shape = shape
        table_bytes = shape.num_positions * shape.rotary_width * DType.FLOAT32.num_bytes
        self.buffer_bytes = table_bytes if shape.shares_positions else 0
        self.layer_buffer_bytes = 0 if shape.shares_positions else shape.num_layers * table_bytes
        self.wte = Embedding(shape.vocab_size, shape.hidden_size)
        self.rows_dtype = DType.FLOAT32 if attention is CodeGenAttention else None
        self.h = _layers(shape, attention)
        self.ln_f = LayerNorm(shape.hidden_size)

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.wte(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        """x, the embeddings, stays beside what dropout makes of it until this returns."""
        require_positions(x.shape[1], self.shape.num_positions)
        with x.tape.section("positions"):
            mask = causal_masks(x, backend, (None,)).get(None)
            embedded = [ops.dropout(x, self.shape.embedding_dropout)]
            context = GptjContext(backend, mask, self._rows(x) if self.shape.shares_positions else None)
        hidden = self.h.run(embedded.pop(), lambda layer, hidden: layer(hidden, context))
        with x.tape.section("norm"):
            return self.ln_f(hidden)

    def _rows(self, x: Tensor) -> Tensor:
        rows = x.tape.tensor((1, x.shape[1], self.shape.rotary_width), DType.FLOAT32)
        return ops.to(rows, self.rows_dtype or x.dtype)


def _layers(shape: GptjShape, attention: Callable[[GptjShape], Module]) -> Stack:
    if shape.shares_positions:
        return Stack.of(GptjLayer(shape, attention(shape)), shape.num_layers, label="layers")
    return stack_of_holding(lambda: GptjLayer(shape, attention(shape)), shape.num_layers)


class Gptj(CausalLM):
    """``GPTJForCausalLM``, ``CodeGenForCausalLM``."""

    DECODER = "transformer"
    EMBEDDINGS = "transformer.wte"


def gptj_shape(config: Config) -> GptjShape:
    hidden_size = config.integer("hidden_size")
    if config.get("rotary_dim") is None:
        raise InputError("config.json: rotary_dim is null; GPT-J can be planned with rotary positions on a number only")
    return GptjShape(
        hidden_size=hidden_size,
        intermediate_size=config.integer("n_inner", 4 * hidden_size),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=config.integer("num_attention_heads"),
        num_positions=config.integer("max_position_embeddings"),
        rotary_width=config.integer("rotary_dim"),
        vocab_size=config.integer("vocab_size"),
        activation=config.text("activation_function"),
        attention_dropout=config.number("attn_pdrop"),
        embedding_dropout=config.number("embd_pdrop"),
        residual_dropout=config.number("resid_pdrop"),
        shares_positions=config.release.shares_gptj_positions,
    )


def decoder(config: Config) -> GptjDecoder:
    attention = CodeGenAttention if config.model_type == "codegen" else GptjAttention
    return GptjDecoder(gptj_shape(config), attention)


def causal_lm(decoder: GptjDecoder, config: Config) -> Gptj:
    """Their heads have a bias."""
    model = Gptj(decoder, config, has_bias=True)
    is_fused = config.model_type == "codegen"
    model.attention_linears = ("qkv_proj", "out_proj") if is_fused else ("q_proj", "k_proj", "v_proj", "out_proj")
    return model
