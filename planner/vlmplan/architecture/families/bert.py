"""BERT, RoBERTa and their kin with a language-model head: attention and MLP, each behind its residual normed.

Source: transformers 5.23 ``models/{bert,ernie,roberta,camembert,xlm_roberta,data2vec}``. Unless ``is_decoder`` is set
every token sees all others. RoBERTa and what comes from it number a sample's tokens by its ids. Before the output head
is a dense layer; the head's bias is one that the module around it holds too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.gpt2 import GPT2Context
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, Stack, require_positions
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.units import DType

BERTS = frozenset("bert bert-generation electra ernie megatron-bert rembert roc_bert roformer".split())
"""Types whose positions are those of a row; in the others padding has none, so that each sample has its own."""

TYPES_WITH_EMBEDDING_SIZE = frozenset({"electra", "roformer"})
"""Types whose embeddings and head may have a width of their own."""

DEFAULT_PADDING = 1
"""``pad_token_id`` of the others where the file has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BertShape:
    """The dimensions of a model; ``first_position`` is the row of the table that its first token gets."""

    hidden_size: int
    embedding_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    vocab_size: int
    num_positions: int
    num_token_types: int
    activation: str
    dropout: float
    scores: Scores
    is_causal: bool
    first_position: int
    counts_samples: bool
    """Whether positions are counted in each sample."""


class BertEmbeddings(Module):
    """``BertEmbeddings``, ``RobertaEmbeddings``: words, types of tokens and positions, summed and, mostly, normed."""

    has_buffered_types = True
    """Whether types that are not given are a row of a buffer; else they are zeros for all samples."""

    def __init__(self, shape: BertShape, *, norms: bool = True) -> None:
        self.shape, self.norms = shape, norms
        width = shape.embedding_size
        self.word_embeddings = Embedding(shape.vocab_size, width)
        if not shape.counts_samples:
            self.position_embeddings = Embedding(shape.num_positions, width)
        self.token_type_embeddings = Embedding(shape.num_token_types, width)
        if norms:
            self.LayerNorm = LayerNorm(width)
        if shape.counts_samples:
            self.position_embeddings = Embedding(shape.num_positions, width)

    def forward(self, ids: Tensor) -> Tensor:
        shape, tape, (batch, num_tokens) = self.shape, ids.tape, ids.shape
        require_positions(num_tokens, shape.num_positions - shape.first_position)
        rows = batch if shape.counts_samples else 1
        position_ids = tape.tensor((rows if shape.counts_samples else 0, num_tokens), DType.INT64)  # or a buffer's
        type_ids = tape.tensor((rows if self.has_buffered_types else batch, num_tokens), DType.INT64)
        words = self.word_embeddings(ids)
        types = self.token_type_embeddings(Tensor(type_ids.storage, (batch, num_tokens), DType.INT64))
        summed = ops.add(words, types)
        positions = self.position_embeddings(Tensor(position_ids.storage, (rows, num_tokens), DType.INT64))
        summed = self.added(summed, positions)
        if self.norms:
            summed = self.LayerNorm(summed)
        summed = ops.dropout(summed, shape.dropout)
        del words, types, positions
        return summed

    def added(self, summed: Tensor, positions: Tensor) -> Tensor:
        """Positions and what they are added to."""
        return ops.add(summed, positions)


class BertSelfAttention(Module):
    """``BertSelfAttention``."""

    def __init__(self, shape: BertShape) -> None:
        self.shape = shape
        self.query = Linear(shape.hidden_size, shape.hidden_size, bias=True)
        self.key = Linear(shape.hidden_size, shape.hidden_size, bias=True)
        self.value = Linear(shape.hidden_size, shape.hidden_size, bias=True)

    def forward(self, x: Tensor, context: GPT2Context) -> Tensor:
        shape, (batch, num_tokens, width) = self.shape, x.shape
        heads = (batch, shape.num_heads, num_tokens, width // shape.num_heads)
        q = self.query(x).view(*heads)
        k = self.key(x).view(*heads)
        v = self.value(x).view(*heads)
        return attend(
            context.backend, q, k, v, is_causal=shape.is_causal, mask=context.mask, scores=shape.scores, is_cached=True
        )


class ResidualOutput(Module):
    """``BertSelfOutput``, ``BertOutput``."""

    def __init__(self, shape: BertShape, in_features: int) -> None:
        self.dense = Linear(in_features, shape.hidden_size, bias=True)
        self.LayerNorm = LayerNorm(shape.hidden_size)
        self.dropout = shape.dropout

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        x = self.dense(x)
        x = ops.dropout(x, self.dropout)
        return self.LayerNorm(ops.add(x, residual))


class BertAttention(Module):
    """``BertAttention``."""

    def __init__(self, shape: BertShape) -> None:
        self.self = BertSelfAttention(shape)
        self.output = ResidualOutput(shape, shape.hidden_size)

    def forward(self, x: Tensor, context: GPT2Context) -> Tensor:
        attended = self.modules_by_name["self"](entering(x), context)
        return self.output(attended, x)


class BertIntermediate(Module):
    """``BertIntermediate``."""

    def __init__(self, shape: BertShape) -> None:
        self.dense = Linear(shape.hidden_size, shape.intermediate_size, bias=True)
        self.intermediate_act_fn: Callable[[Tensor], Tensor] = ops.activation_module(shape.activation)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense(entering(x))
        return self.intermediate_act_fn(x)


def entering(x: Tensor) -> Tensor:
    """x as a module gets it, which a residual gets too: under ZeRO-3 the gradients of what the module does are summed
    before they meet the residual's, in the node that DeepSpeed puts before every module
    (``PostBackwardFunctionModule`` in 0.19.8 ``zero/parameter_offload.py``)."""
    return ops.viewed(x, *x.shape) if x.tape.follows_weights and x.requires_grad else x


class BertLayer(Module):
    """``BertLayer``."""

    def __init__(self, shape: BertShape) -> None:
        self.attention = BertAttention(shape)
        self.intermediate = BertIntermediate(shape)
        self.output = ResidualOutput(shape, shape.intermediate_size)

    def forward(self, x: Tensor, context: GPT2Context) -> Tensor:
        attended = self.attention(x, context)
        between = self.intermediate(attended)
        return self.output(between, attended)


class BertEncoder(Module):
    """``BertEncoder``."""

    def __init__(self, shape: BertShape) -> None:
        self.layer = Stack.of(BertLayer(shape), shape.num_layers, label="layers")


class BertModel(Module):
    """``BertModel`` without a pooler."""

    def __init__(self, shape: BertShape) -> None:
        self.shape = shape
        self.embeddings = BertEmbeddings(shape)
        self.encoder = BertEncoder(shape)

    @property
    def buffer_bytes(self) -> int:
        """``position_ids`` and ``token_type_ids`` of all positions."""
        return 2 * self.shape.num_positions * DType.INT64.num_bytes

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.embeddings(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        with x.tape.section("positions"):
            mask = causal_masks(x, backend, (None,)).get(None) if self.shape.is_causal else None
            context = GPT2Context(backend, mask)
        return self.encoder.layer.run(x, lambda layer, x: layer(x, context))


class Transform(Module):
    """``BertPredictionHeadTransform``."""

    def __init__(self, shape: BertShape, *, norm: str) -> None:
        self.dense = Linear(shape.hidden_size, shape.embedding_size, bias=True)
        self.norm_name = norm
        setattr(self, norm, LayerNorm(shape.embedding_size))
        self.transform_act_fn: Callable[[Tensor], Tensor] = ops.activation_module(shape.activation)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense(x)
        x = self.transform_act_fn(x)
        return self.modules_by_name[self.norm_name](x)


class BertPredictions(Module):
    """``BertLMPredictionHead``."""

    def __init__(self, shape: BertShape) -> None:
        self.bias = Parameter(shape.vocab_size)
        self.transform = Transform(shape, norm="LayerNorm")
        self.decoder: Any = Linear(shape.embedding_size, shape.vocab_size, bias=True)
        self.decoder.bias = self.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.transform(x)


class RobertaHead(Transform):
    """``RobertaLMHead``, whose activation is GELU whatever the file says."""

    def __init__(self, shape: BertShape) -> None:
        self.bias = Parameter(shape.vocab_size)
        super().__init__(shape, norm="layer_norm")
        self.decoder: Any = Linear(shape.hidden_size, shape.vocab_size, bias=True)
        self.decoder.bias = self.bias
        self.transform_act_fn = ops.gelu


class HeadAround(Module):
    """``BertOnlyMLMHead``."""

    def __init__(self, predictions: Module) -> None:
        self.predictions = predictions

    def forward(self, x: Tensor) -> Tensor:
        return self.predictions(x)


class Bert(Model):
    """``BertLMHeadModel``."""

    EMBEDDINGS = "bert.embeddings.word_embeddings"
    HEAD = "cls.predictions.decoder"
    AROUND: ClassVar[str] = "cls"
    """What the module around the head is called."""
    IS_HEAD_FIRST: ClassVar[bool] = False
    """Whether that comes before the model in the order of parameters."""
    attention_linears = ("query", "key", "value", "attention.output.dense")
    calls_head_inside = True

    def __init__(self, decoder: BertModel, config: Config) -> None:
        if not config.boolean("tie_word_embeddings"):
            raise InputError(f"{CONFIG}: tie_word_embeddings is false; such models are planned with a tied head only")
        parts: dict[str, Module] = {self.decoder_name: decoder, self.AROUND: self.around(decoder.shape)}
        for name in reversed(parts) if self.IS_HEAD_FIRST else parts:
            setattr(self, name, parts[name])
        self.tie_weights()

    @property
    def decoder_name(self) -> str:
        return self.EMBEDDINGS.partition(".")[0]

    def around(self, shape: BertShape) -> Module:
        """The module around the head."""
        return HeadAround(BertPredictions(shape))

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        """What the head gets; what the decoder returns is there until the loss is made."""
        decoder = self.module(self.decoder_name)
        hidden = decoder.forward(decoder.embed(ids), backend)
        ids.tape.locals.append(hidden.detached())
        with ids.tape.section("before the head"):
            return self.module(self.AROUND)(hidden)


class Ernie(Bert):
    """``ErnieForCausalLM``."""

    EMBEDDINGS = "ernie.embeddings.word_embeddings"


class Roberta(Bert):
    """``RobertaForCausalLM``."""

    EMBEDDINGS = "roberta.embeddings.word_embeddings"
    HEAD = "lm_head.decoder"
    AROUND = "lm_head"

    def around(self, shape: BertShape) -> Module:
        return RobertaHead(shape)


class XlmRoberta(Roberta):
    """``XLMRobertaForCausalLM``, ``CamembertForCausalLM``."""

    IS_HEAD_FIRST = True


class Data2Vec(Roberta):
    """``Data2VecTextForCausalLM``."""

    EMBEDDINGS = "data2vec_text.embeddings.word_embeddings"


CLASSES: Mapping[str, type[Bert]] = {
    "bert": Bert,
    "camembert": XlmRoberta,
    "data2vec-text": Data2Vec,
    "ernie": Ernie,
    "roberta": Roberta,
    "xlm-roberta": XlmRoberta,
}


def causal_lm(decoder: BertModel, config: Config) -> Bert:
    return CLASSES[config.model_type](decoder, config)


def decoder(config: Config) -> BertModel:
    return BertModel(bert_shape(config))


def bert_shape(config: Config) -> BertShape:
    """Raises InputError for variants that compute something else."""
    for key in ("add_cross_attention", "use_task_id"):
        if config.boolean(key):
            raise InputError(f"{CONFIG}: {key} is set; such a model can be planned without it only")
    counts_samples = config.model_type not in BERTS
    padding = DEFAULT_PADDING if config.get("pad_token_id") is None else config.count("pad_token_id")
    hidden_size = config.integer("hidden_size")
    has_own_width = config.model_type in TYPES_WITH_EMBEDDING_SIZE
    return BertShape(
        hidden_size=hidden_size,
        embedding_size=config.integer("embedding_size", hidden_size) if has_own_width else hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=config.integer("num_attention_heads"),
        vocab_size=config.integer("vocab_size"),
        num_positions=config.integer("max_position_embeddings"),
        num_token_types=config.optional_integer("type_vocab_size") or 0,
        activation=config.text("hidden_act"),
        dropout=config.number("hidden_dropout_prob"),
        scores=Scores(dropout=config.number("attention_probs_dropout_prob"), upcasts=False, casts_back=False),
        is_causal=config.boolean("is_decoder"),
        first_position=padding + 1 if counts_samples else 0,
        counts_samples=counts_samples,
    )
