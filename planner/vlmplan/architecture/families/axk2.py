"""A.X-K2: a DeepSeek-V3.2 whose queries come with gates of what attention finds, and whose norms have gates.

Source: transformers 5.23 ``models/axk2/modeling_axk2.py`` and ``configuration_axk2.py``. Gates are made of the narrow
tensor of the queries, normed and as it is, in one product with them.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.axk1 import sparse_layers
from vlmplan.architecture.families.deepseek_v3 import latent_decoder_shape
from vlmplan.architecture.families.deepseek_v32 import MaskedDecoder
from vlmplan.architecture.families.group_router import shared_experts_block
from vlmplan.architecture.families.latent_attention import LatentShape, latent_shape
from vlmplan.architecture.families.llama import DecoderLayer, stack_of_kinds
from vlmplan.architecture.families.sparse_attention import SparseLatentAttention, indexer_shape
from vlmplan.architecture.modules import Linear, Module, RMSNorm
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType

LINEARS = ("q_a_proj", "q_gate_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
"""What attention is made of, by name."""


class GateMlp(Module):
    """``AXK2GateMLP``."""

    def __init__(self, width: int, rank: int) -> None:
        self.fc1 = Linear(width, rank)
        self.fc2 = Linear(rank, width)
        self.activation_fn = ops.activation_module("silu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = self.activation_fn(x)
        return self.fc2(x)


class GatedNorm(Module):
    """``AXK2GatedRMSNorm``."""

    def __init__(self, width: int, rank: int) -> None:
        self.norm = RMSNorm(width)
        self.mlp = GateMlp(width, rank)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return _gated(y, self.mlp(y))


def _gated(x: Tensor, gate: Tensor) -> Tensor:
    """``(x * sigmoid(gate.float())).to(x.dtype)``."""
    return ops.to(ops.mul(x, ops.sigmoid(ops.to(gate, DType.FLOAT32))), x.dtype)


class GatedSparseAttention(SparseLatentAttention):
    """``AXK2Attention``."""

    def make_query_projections(self, shape: LatentShape) -> None:
        assert shape.q_rank is not None
        self.q_a_proj = Linear(shape.hidden_size, shape.q_rank, bias=shape.has_bias)
        self.q_a_layernorm = RMSNorm(shape.q_rank)
        self.q_gate_proj = Linear(2 * shape.q_rank, shape.num_heads * (shape.head_dim + shape.value_width))

    def queries(self, x: Tensor) -> tuple[Tensor, Tensor | None, Sequence[Tensor]]:
        shape, (batch, num_tokens, _) = self.shape, x.shape
        rows, num_heads = (batch, num_tokens), shape.num_heads
        compressed = self.q_a_proj(x)
        latent = self.q_a_layernorm(compressed)
        both = ops.concatenate([latent, compressed], (*rows, 2 * latent.shape[-1]))
        q, gate = ops.split(
            self.q_gate_proj(both), (*rows, num_heads, shape.head_dim), (*rows, num_heads, shape.value_width)
        )
        return q, latent, (ops.copy(gate, *rows, num_heads * shape.value_width), compressed)

    def output(self, x: Tensor, gates: Sequence[Tensor]) -> Tensor:
        return self.o_proj(_gated(x, gates[0]))


def decoder(config: Config) -> MaskedDecoder:
    latent = latent_shape(config)
    shape, indexer = latent_decoder_shape(config, latent), indexer_shape(config, latent)
    width, rank = shape.hidden_size, config.integer("gated_norm_rank")

    def layer(is_sparse: bool) -> DecoderLayer:
        block = shared_experts_block(config, shape) if is_sparse else None
        made = DecoderLayer(shape, attention=GatedSparseAttention(latent, indexer), mlp=block)
        made.input_layernorm = GatedNorm(width, rank)
        if is_sparse:
            made.post_attention_layernorm = GatedNorm(width, rank)
        return made

    return MaskedDecoder(shape, stack_of_kinds(sparse_layers(config), layer), rotary_width=latent.rotary_width)


def causal_lm(decoder: Module, config: Config) -> CausalLM:
    """``AXK2ForCausalLM``. peft does not know its experts' names."""
    causal = CausalLM(decoder, config)
    causal.attention_linears = LINEARS
    return causal
