"""GPT-NeoX and Pythia: attention and MLP side by side, each behind a norm of its own; one Linear for q, k and v.

Source: transformers 5.23 ``models/gpt_neox/modeling_gpt_neox.py`` and ``configuration_gpt_neox.py``. Positions are on
part of each head.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.attention import by_head
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import DecoderShape, RotaryContext, causal_masks, decoder_shape
from vlmplan.architecture.families.partial_rotary import partly_rotated
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, Stack
from vlmplan.architecture.tensor import Tensor

ROTARY_FRACTION = 0.25
"""``partial_rotary_factor`` that ``GPTNeoXConfig`` sets where the file has no ``rotary_pct``."""


class NeoXAttention(Module):
    """``GPTNeoXAttention``."""

    def __init__(self, shape: DecoderShape) -> None:
        self.shape, width = shape, shape.hidden_size
        self.query_key_value = Linear(width, 3 * width, bias=shape.qkv_bias)
        self.dense = Linear(width, width, bias=shape.qkv_bias)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        shape = self.shape
        head = (batch, shape.num_heads, num_tokens, shape.head_dim)
        qkv = by_head(self.query_key_value(x), shape.num_heads)
        q, k, v = ops.split(qkv, head, head, head)
        q, k = partly_rotated(q, k, context.cos, context.sin)
        out = context.attended(q, k, v, scores=shape.scores)
        return self.dense(out)


class NeoXMlp(Module):
    """``GPTNeoXMLP``."""

    def __init__(self, shape: DecoderShape) -> None:
        self.dense_h_to_4h = Linear(shape.hidden_size, shape.intermediate_size, bias=True)
        self.dense_4h_to_h = Linear(shape.intermediate_size, shape.hidden_size, bias=True)
        self.act = ops.activation_module(shape.activation)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense_h_to_4h(x)
        x = self.act(x)
        return self.dense_4h_to_h(x)


class NeoXLayer(Module):
    """``GPTNeoXLayer``; without ``is_parallel`` the MLP sees what attention has added."""

    def __init__(self, shape: DecoderShape, *, is_parallel: bool, dropout: float) -> None:
        self.is_parallel, self.dropout = is_parallel, dropout
        self.input_layernorm = LayerNorm(shape.hidden_size)
        self.post_attention_layernorm = LayerNorm(shape.hidden_size)
        self.attention = NeoXAttention(shape)
        self.mlp = NeoXMlp(shape)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        attended = self.attention(self.input_layernorm(x), context)
        attended = ops.dropout(attended, self.dropout)
        if self.is_parallel:
            out = self.mlp(self.post_attention_layernorm(x))
            out = ops.dropout(out, self.dropout)
            return ops.add(ops.add(out, attended), ops.shared(x))
        attended = ops.add(attended, x)
        out = self.mlp(self.post_attention_layernorm(attended))
        out = ops.dropout(out, self.dropout)
        return ops.add(out, attended)


class NeoXDecoder(Module):
    """``GPTNeoXModel``."""

    ROTARY_MODULES = ("rotary_emb",)

    def __init__(self, shape: DecoderShape, rotary_width: int, *, is_parallel: bool, dropout: float) -> None:
        self.shape, self.rotary_width, self.dropout = shape, rotary_width, dropout
        self.embed_in = Embedding(shape.vocab_size, shape.hidden_size)
        layer = NeoXLayer(shape, is_parallel=is_parallel, dropout=dropout)
        self.layers = Stack.of(layer, shape.num_layers, label="layers")
        self.final_layer_norm = LayerNorm(shape.hidden_size)

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.embed_in(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        """x, the embeddings, stays beside what dropout makes of it until this returns."""
        tape = x.tape
        with tape.section("positions"):
            masks = causal_masks(x, backend, (None,))
            embedded = [ops.dropout(x, self.dropout)]
            positions = (1, 1, x.shape[1], self.rotary_width)
            tape.prefetch()  # for the module of the positions
            context = RotaryContext(backend, tape.tensor(positions, x.dtype), tape.tensor(positions, x.dtype), masks)
        hidden = self.layers.run(embedded.pop(), lambda layer, hidden: layer(hidden, context))
        with tape.section("norm"):
            return self.final_layer_norm(hidden)


class NeoX(CausalLM):
    """``GPTNeoXForCausalLM``."""

    DECODER = "gpt_neox"
    EMBEDDINGS = "gpt_neox.embed_in"
    attention_linears = ("query_key_value", "dense")


def rotary_fraction(config: Config, default: float = ROTARY_FRACTION) -> float:
    """The rotated part of each head: in ``rope_parameters``, else under the name that it once had, else ``default``."""
    default = config.number("rotary_pct", default)
    return config.mapping("rope_parameters").number("partial_rotary_factor", default)


def decoder(config: Config) -> NeoXDecoder:
    shape = replace(decoder_shape(config), windows=())
    shape = replace(shape, head_dim=shape.hidden_size // shape.num_heads, num_kv_heads=shape.num_heads)
    width, is_parallel = int(shape.head_dim * rotary_fraction(config)), config.boolean("use_parallel_residual")
    return NeoXDecoder(shape, width, is_parallel=is_parallel, dropout=config.number("hidden_dropout"))


causal_lm = NeoX
