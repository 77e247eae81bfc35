"""GPT BigCode (SantaCoder, StarCoder): a GPT-2 of Linears, whose heads may share one of keys and values.

Source: transformers 5.23 ``models/gpt_bigcode/modeling_gpt_bigcode.py``. Its model holds a table of which token sees
which, of as many positions as it has, that nothing reads.
"""

from functools import partial

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import Scores
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gpt2 import GPT2Block, GPT2Context, GPT2Decoder, GPT2Mlp, GPT2Shape, gpt2_shape
from vlmplan.architecture.modules import Linear, Module, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.units import DType


class BigCodeAttention(Module):
    """``GPTBigCodeAttention``."""

    def __init__(self, shape: GPT2Shape, num_kv_heads: int) -> None:
        self.shape, self.num_kv_heads = shape, num_kv_heads
        self.head_dim = shape.hidden_size // shape.num_heads
        self.c_attn = Linear(shape.hidden_size, shape.hidden_size + 2 * num_kv_heads * self.head_dim, bias=True)
        self.c_proj = Linear(shape.hidden_size, shape.hidden_size, bias=True)

    def forward(self, x: Tensor, context: GPT2Context) -> Tensor:
        batch, num_tokens, _ = x.shape
        head = (batch, self.shape.num_heads, num_tokens, self.head_dim)
        shared = (batch, self.num_kv_heads, num_tokens, self.head_dim)
        q, k, v = ops.split(self.c_attn(x), head, shared, shared)
        out = attend(context.backend, q, k, v, is_causal=True, mask=context.mask, scores=self.shape.scores)
        out = self.c_proj(out)
        return ops.dropout(out, self.shape.residual_dropout)


class BigCode(CausalLM):
    """``GPTBigCodeForCausalLM``."""

    DECODER = "transformer"
    EMBEDDINGS = "transformer.wte"
    attention_linears = ("attn.c_attn", "attn.c_proj")


def decoder(config: Config) -> GPT2Decoder:
    if config.boolean("add_cross_attention"):
        raise InputError("config.json: add_cross_attention is set; GPT BigCode can be planned without it only")
    shape = gpt2_shape(config, Scores(dropout=config.number("attn_pdrop")))
    num_kv_heads = 1 if config.boolean("multi_query") else shape.num_heads
    block = GPT2Block(shape, BigCodeAttention(shape, num_kv_heads), GPT2Mlp(shape, partial(Linear, bias=True)))
    model = GPT2Decoder(shape, Stack.of(block, shape.num_layers, label="layers"))
    model.buffer_bytes = shape.num_positions**2 * DType.BOOL.num_bytes
    return model


causal_lm = BigCode
