"""CTRL: scaled embeddings, sines as positions, layer norms first, and a head with a bias.

Source: transformers 5.23 ``models/ctrl/modeling_ctrl.py``. The class has no activation checkpointing.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.bert import entering
from vlmplan.architecture.families.gpt2 import GPT2Context, GPT2Shape
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.families.packed_patches import Sequential
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, Stack, require_positions
from vlmplan.architecture.tensor import Tensor


class MultiHeadAttention(Module):
    """``MultiHeadAttention``, which is given its input three times."""

    def __init__(self, shape: GPT2Shape) -> None:
        self.shape, width = shape, shape.hidden_size
        self.Wq = Linear(width, width, bias=True)
        self.Wk = Linear(width, width, bias=True)
        self.Wv = Linear(width, width, bias=True)
        self.dense = Linear(width, width, bias=True)

    def forward(self, v: Tensor, k: Tensor, q: Tensor, context: GPT2Context) -> Tensor:
        batch, num_tokens, width = q.shape
        head = (batch, self.shape.num_heads, num_tokens, width // self.shape.num_heads)
        queries = self.Wq(q).view(*head)
        keys = self.Wk(k).view(*head)
        values = self.Wv(v).view(*head)
        out = attend(
            context.backend, queries, keys, values, is_causal=True, mask=context.mask, scores=self.shape.scores
        )
        out = self.dense(out)
        del queries, keys, values
        return out


class CtrlLayer(Module):
    """``EncoderLayer``."""

    def __init__(self, shape: GPT2Shape) -> None:
        width, inner = shape.hidden_size, shape.intermediate_size
        self.multi_head_attention = MultiHeadAttention(shape)
        self.ffn = Sequential({"0": Linear(width, inner, bias=True), "2": Linear(inner, width, bias=True)})
        self.layernorm1 = LayerNorm(width)
        self.layernorm2 = LayerNorm(width)
        self.dropout = shape.residual_dropout

    def forward(self, x: Tensor, context: GPT2Context) -> Tensor:
        normed = self.layernorm1(x)
        attended = self.multi_head_attention(entering(normed), entering(normed), entering(normed), context)
        attended = ops.dropout(attended, self.dropout)
        first = ops.add(x, attended)
        second = self.layernorm2(first)
        out = ops.called(self._fed_forward, second)
        out = ops.dropout(out, self.dropout)
        second = ops.add(first, out)
        del normed, attended, first, out
        return second

    def _fed_forward(self, x: Tensor) -> Tensor:
        return self.ffn["2"](ops.called(ops.relu, self.ffn["0"](x)))


class CtrlDecoder(Module):
    """``CTRLModel``."""

    def __init__(self, shape: GPT2Shape) -> None:
        self.shape = shape
        self.w = Embedding(shape.vocab_size, shape.hidden_size)
        self.h = Stack([CtrlLayer(shape)], [0] * shape.num_layers, label="layers", can_checkpoint=False)
        self.layernorm = LayerNorm(shape.hidden_size)

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.w(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        tape, (_, num_tokens, width) = x.tape, x.shape
        require_positions(num_tokens, self.shape.num_positions)
        with tape.section("positions"):
            context = GPT2Context(backend, causal_masks(x, backend, (None,)).get(None))
            x = ops.scale_in_place(x)
            positions = tape.tensor((1, num_tokens, width), x.dtype)
            hidden = ops.shift(ops.add(x, positions))  # no types of tokens: the number 0 is added
            embedded = [ops.dropout(hidden, self.shape.embedding_dropout)]
            del hidden
        hidden = self.h.run(embedded.pop(), lambda layer, hidden: layer(hidden, context))
        with tape.section("norm"):
            hidden = self.layernorm(hidden)
        del positions
        return hidden


class Ctrl(CausalLM):
    """``CTRLLMHeadModel``."""

    DECODER = "transformer"
    EMBEDDINGS = "transformer.w"
    attention_linears = ("Wq", "Wk", "Wv", "multi_head_attention.dense")

    def __init__(self, decoder: Module, config: Config) -> None:
        super().__init__(decoder, config, has_bias=True)

    @property
    def buffer_bytes(self) -> int:
        """``pos_encoding``, which the first forward puts into the type of the embeddings."""
        shape = self.decoder.shape
        return shape.num_positions * shape.hidden_size * self.buffer_dtype.num_bytes


def decoder(config: Config) -> CtrlDecoder:
    shape = GPT2Shape(
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("dff"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=config.integer("num_attention_heads"),
        num_positions=config.integer("max_position_embeddings"),
        vocab_size=config.integer("vocab_size"),
        activation="relu",
        embedding_dropout=config.number("embd_pdrop"),
        residual_dropout=config.number("resid_pdrop"),
        scores=Scores(upcasts=False, casts_back=False),
    )
    return CtrlDecoder(shape)


causal_lm = Ctrl
