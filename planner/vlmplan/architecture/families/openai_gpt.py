"""The first GPT: GPT-2's modules with norms behind the residuals, and attention that is written out.

Source: transformers 5.23 ``models/openai/modeling_openai.py``. Causality is a table of ones and zeros in every layer.
The class has neither fused attention nor activation checkpointing.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.attention_kernels import product
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.gpt2 import GPT2Mlp, GPT2Shape
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Conv1D, Embedding, LayerNorm, Module, Stack, require_positions
from vlmplan.architecture.reused_layers import layers_result
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

ACTIVATIONS = {"relu": "relu", "silu": "silu", "gelu": "gelu_new", "swish": "silu"}
"""``ACT_FNS``: what the configuration calls activation functions, and what they are."""


class OpenAIMlp(GPT2Mlp):
    """``MLP``, most of whose activations are functions (``ACT_FNS``)."""

    ACTIVATION_NAME = "_act"


class OpenAIGPTContext:
    """What every block is called with besides the hidden states. ``table_dtype``: of the tables of causality."""

    __slots__ = ("mask", "table_dtype")

    def __init__(self, mask: Tensor | None, table_dtype: DType) -> None:
        self.mask, self.table_dtype = mask, table_dtype


class OpenAIGPTAttention(Module):
    """``Attention``."""

    def __init__(self, shape: GPT2Shape) -> None:
        self.shape = shape
        self.c_attn = Conv1D(shape.hidden_size, 3 * shape.hidden_size)
        self.c_proj = Conv1D(shape.hidden_size, shape.hidden_size)

    def forward(self, x: Tensor, context: OpenAIGPTContext) -> Tensor:
        batch, num_tokens, width = x.shape
        num_heads = self.shape.num_heads
        head = (batch, num_heads, num_tokens, width // num_heads)
        x = self.c_attn(x)
        q, k, v = ops.split(x, head, head, head)
        attended = self._attend(q, k, v, context)
        out = ops.copy(attended, batch, num_tokens, width)
        out = ops.dropout(self.c_proj(out), self.shape.residual_dropout)
        del attended
        return out

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, context: OpenAIGPTContext) -> Tensor:
        """``_attn``."""
        batch, num_heads, num_tokens, head_dim = q.shape
        scores, several = (batch, num_heads, num_tokens, num_tokens), batch > 1
        weights = product(q, k, scores, head_dim, copies=(several, several))
        weights = ops.scale(weights)
        # A part of a table that is there anyway, and what keeps later tokens away, made of it.
        table = Tensor(q.tape.tensor((0,), context.table_dtype).storage, (1, 1, *scores[2:]), context.table_dtype)
        seen = ops.mul(weights, table)
        unseen = ops.scale(ops.scale(q.tape.tensor(table.shape, table.dtype)))
        weights = ops.add(seen, unseen)
        del seen, unseen
        if context.mask is not None:
            weights = ops.add(weights, context.mask)
        weights = ops.softmax(weights)
        weights = ops.dropout(weights, self.shape.scores.dropout)
        return product(weights, v, q.shape, num_tokens, copies=(False, several))


class OpenAIGPTBlock(Module):
    """``Block``."""

    def __init__(self, shape: GPT2Shape) -> None:
        self.attn = OpenAIGPTAttention(shape)
        self.ln_1 = LayerNorm(shape.hidden_size)
        self.mlp = OpenAIMlp(shape)
        self.ln_2 = LayerNorm(shape.hidden_size)

    def forward(self, x: Tensor, context: OpenAIGPTContext) -> Tensor:
        attended = self.attn(x, context)
        normed = self.ln_1(ops.add(x, attended))
        fed_forward = self.mlp(normed)
        out = self.ln_2(ops.add(normed, fed_forward))
        del attended, normed, fed_forward
        return out


class OpenAIGPTDecoder(Module):
    """``OpenAIGPTModel``."""

    table_dtype = DType.BFLOAT16

    def __init__(self, shape: GPT2Shape) -> None:
        self.shape = shape
        self.tokens_embed = Embedding(shape.vocab_size, shape.hidden_size)
        self.positions_embed = Embedding(shape.num_positions, shape.hidden_size)
        blocks = [0] * shape.num_layers
        self.h = Stack([OpenAIGPTBlock(shape)], blocks, label="layers", can_checkpoint=False)

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.tokens_embed(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        tape, (batch, num_tokens, _) = x.tape, x.shape
        require_positions(num_tokens, self.shape.num_positions)
        with tape.section("positions"):
            mask = tape.tensor((batch, 1, 1, num_tokens), x.dtype) if backend.gets_mask else None
            positions = self.positions_embed(
                Tensor(tape.tensor((0,), DType.INT64).storage, (1, num_tokens), DType.INT64)
            )
            hidden = ops.shift(ops.add(x, positions))
            context = OpenAIGPTContext(mask, self.table_dtype)
            embedded = [ops.dropout(hidden, self.shape.embedding_dropout)]
            del hidden
        return layers_result(self.h.run(embedded.pop(), lambda block, hidden: block(hidden, context)))


class OpenAIGPT(CausalLM):
    """``OpenAIGPTLMHeadModel``."""

    DECODER = "transformer"
    EMBEDDINGS = "transformer.tokens_embed"
    attention_linears = ("attn.c_attn", "attn.c_proj")

    @property
    def layer_buffer_bytes(self) -> int:
        """The tables of causality of all layers."""
        shape = self.decoder.shape
        return shape.num_layers * shape.num_positions**2 * self.buffer_dtype.num_bytes

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        self.decoder.table_dtype = self.buffer_dtype
        return super().last_hidden_state(batch, ids, pixels, backend)


def decoder(config: Config) -> OpenAIGPTDecoder:
    """Raises InputError for an activation function that the class does not know."""
    name, hidden_size = config.text("afn"), config.integer("hidden_size")
    if name not in ACTIVATIONS:
        raise not_allowed(CONFIG, "afn", name, f"one of {', '.join(ACTIVATIONS)}")
    shape = GPT2Shape(
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=config.integer("num_attention_heads"),
        num_positions=config.integer("max_position_embeddings"),
        vocab_size=config.integer("vocab_size"),
        activation=ACTIVATIONS[name],
        embedding_dropout=config.number("embd_pdrop"),
        residual_dropout=config.number("resid_pdrop"),
        scores=Scores(dropout=config.number("attn_pdrop")),
    )
    return OpenAIGPTDecoder(shape)


causal_lm = OpenAIGPT
