"""RoFormer: a BERT with rotary positions, of pairs of neighbours, out of a table that is not trained.

Source: transformers 5.23 ``models/roformer/modeling_roformer.py``. The class has no fused attention.
"""

from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.bert import Bert, BertShape, bert_shape
from vlmplan.architecture.families.electra import ElectraModel
from vlmplan.architecture.families.held_weights import HoldingContext, stack_of_holding
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.families.megatron_bert import MegatronSelfAttention
from vlmplan.architecture.families.rembert import WrittenOutLayer
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, Stack, require_positions
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class RoFormerContext(HoldingContext):
    """What every layer is called with besides the hidden states. ``positions``: sines and cosines of each token,
    (1, 1, tokens, width of a head)."""

    __slots__ = ("positions",)

    def __init__(self, backend: AttentionBackend, mask: Tensor | None, positions: Tensor) -> None:
        super().__init__(backend, mask)
        self.positions = positions


class RoFormerEmbeddings(Module):
    """``RoFormerEmbeddings``."""

    def __init__(self, shape: BertShape) -> None:
        self.dropout = shape.dropout
        self.word_embeddings = Embedding(shape.vocab_size, shape.embedding_size)
        self.token_type_embeddings = Embedding(shape.num_token_types, shape.embedding_size)
        self.LayerNorm = LayerNorm(shape.embedding_size)

    def forward(self, ids: Tensor) -> Tensor:
        words = self.word_embeddings(ids)
        types = self.token_type_embeddings(ids.tape.tensor(ids.shape, DType.INT64))
        summed = ops.add(words, types)
        summed = self.LayerNorm(summed)
        summed = ops.dropout(summed, self.dropout)
        del words, types
        return summed


class RoFormerSelfAttention(MegatronSelfAttention):
    """``RoFormerSelfAttention``."""

    def __init__(self, shape: BertShape, *, rotates_values: bool) -> None:
        super().__init__(shape)
        self.rotates_values = rotates_values

    def positioned(self, q: Tensor, k: Tensor, v: Tensor, context: RoFormerContext) -> tuple[Tensor, Tensor, Tensor]:
        """``apply_rotary_position_embeddings``: every layer writes out sines and cosines for itself."""
        tape, table, half = q.tape, context.positions, q.shape[-1] // 2
        sin = tape.tensor(table.shape, table.dtype)
        cos = tape.tensor(table.shape, table.dtype)
        turned_q = ops.rotate_half(q, half)
        q = ops.add(ops.mul(q, cos), ops.mul(turned_q, sin))
        turned_k = ops.rotate_half(k, half)
        k = ops.add(ops.mul(k, cos), ops.mul(turned_k, sin))
        if self.rotates_values:
            v = ops.rotate(v, cos, sin)
        del turned_q, turned_k
        return q, k, v


class RoFormerEncoder(Module):
    """``RoFormerEncoder``."""

    def __init__(self, shape: BertShape, *, rotates_values: bool) -> None:
        self.embed_positions = Embedding(shape.num_positions, shape.hidden_size // shape.num_heads)
        self.embed_positions.weight.is_constant = True

        def layer() -> Module:
            return WrittenOutLayer(shape, RoFormerSelfAttention(shape, rotates_values=rotates_values))

        self.layer = stack_of_holding(layer, shape.num_layers)


class RoFormerModel(ElectraModel):
    """``RoFormerModel``, whose embeddings may have a width of their own, as ELECTRA's."""

    def __init__(self, shape: BertShape, *, rotates_values: bool) -> None:
        self.shape = shape
        self.embeddings: Any = RoFormerEmbeddings(shape)
        if shape.embedding_size != shape.hidden_size:
            self.embeddings_project = Linear(shape.embedding_size, shape.hidden_size, bias=True)
        self.encoder: Any = RoFormerEncoder(shape, rotates_values=rotates_values)

    @property
    def buffer_bytes(self) -> int:
        return 0

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        tape, num_tokens = x.tape, x.shape[1]
        require_positions(num_tokens, self.shape.num_positions)
        with tape.section("positions"):
            mask = causal_masks(x, backend, (None,)).get(None) if self.shape.is_causal else None
            positions = self.encoder.embed_positions(tape.tensor((num_tokens,), DType.INT64))
            table = Tensor(positions.storage, (1, 1, *positions.shape), positions.dtype)
            context = RoFormerContext(backend, mask, table)
        layers: Stack = self.encoder.layer
        return layers.run(x, lambda layer, x: layer(x, context))


class RoFormer(Bert):
    """``RoFormerForCausalLM``."""

    EMBEDDINGS = "roformer.embeddings.word_embeddings"


causal_lm = RoFormer


def decoder(config: Config) -> RoFormerModel:
    return RoFormerModel(bert_shape(config), rotates_values=config.boolean("rotary_value"))
