"""RoCBERT: a BERT that reads the shape and the pronunciation of each token too, mapped to its width with the word.

Source: transformers 5.23 ``models/roc_bert/modeling_roc_bert.py``. Tokens whose shapes and pronunciations are not given
have the first of each, as in a text from a tokenizer of another model.
"""

from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.bert import Bert, BertEncoder, BertModel, BertShape, bert_shape
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, require_positions
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.units import DType


class RoCBertEmbeddings(Module):
    """``RoCBertEmbeddings`` with ``concat_input``."""

    def __init__(self, shape: BertShape, config: Config) -> None:
        self.shape = shape
        width = shape.hidden_size
        pronunciation_width, shape_width = config.integer("pronunciation_embed_dim"), config.integer("shape_embed_dim")
        self.word_embeddings = Embedding(shape.vocab_size, width)
        self.pronunciation_embed = Embedding(config.integer("pronunciation_vocab_size"), pronunciation_width)
        self.shape_embed = Embedding(config.integer("shape_vocab_size"), shape_width)
        self.position_embeddings = Embedding(shape.num_positions, width)
        self.token_type_embeddings = Embedding(shape.num_token_types, width)
        self.map_inputs_layer = Linear(width + pronunciation_width + shape_width, width, bias=True)
        self.LayerNorm = LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        tape, (batch, num_tokens) = ids.tape, ids.shape
        require_positions(num_tokens, self.shape.num_positions)
        position_ids = tape.tensor((0, num_tokens), DType.INT64)  # a part of the buffer
        type_ids = tape.tensor((1, num_tokens), DType.INT64)
        words = self.word_embeddings(ids)
        joined = ops.copy(words)
        shape_ids = tape.tensor(ids.shape, DType.INT64)
        shapes = self.shape_embed(shape_ids)
        joined = _behind(joined, shapes)
        sound_ids = tape.tensor(ids.shape, DType.INT64)
        sounds = self.pronunciation_embed(sound_ids)
        joined = _behind(joined, sounds)
        mapped = self.map_inputs_layer(joined)
        del joined
        types = self.token_type_embeddings(Tensor(type_ids.storage, (batch, num_tokens), DType.INT64))
        mapped = ops.add_in_place(mapped, types)
        positions = self.position_embeddings(Tensor(position_ids.storage, (1, num_tokens), DType.INT64))
        mapped = ops.add_in_place(mapped, positions)
        mapped = self.LayerNorm(mapped)
        mapped = ops.dropout(mapped, self.shape.dropout)
        del words, shapes, sounds, types, positions, shape_ids, sound_ids
        return mapped


def _behind(x: Tensor, y: Tensor) -> Tensor:
    return ops.concatenate([x, y], (*x.shape[:-1], x.shape[-1] + y.shape[-1]))


class RoCBertModel(BertModel):
    """``RoCBertModel`` without a pooler."""

    def __init__(self, shape: BertShape, config: Config) -> None:
        self.shape = shape
        self.embeddings: Any = RoCBertEmbeddings(shape, config)
        self.encoder = BertEncoder(shape)


class RoCBert(Bert):
    """``RoCBertForCausalLM``."""

    EMBEDDINGS = "roc_bert.embeddings.word_embeddings"


causal_lm = RoCBert


def decoder(config: Config) -> RoCBertModel:
    """Raises InputError for variants in which tables of shapes or pronunciations have no part in the result."""
    for key in ("concat_input", "enable_pronunciation", "enable_shape"):
        if not config.boolean(key):
            raise InputError(f"{CONFIG}: {key} is false; such a model can be planned with it only")
    return RoCBertModel(bert_shape(config), config)
