"""RoBERTa with norms before attention and MLP, and XLM-RoBERTa XL, which has no norm behind its embeddings.

Source: transformers 5.23 ``models/{roberta_prelayernorm,xlm_roberta_xl}/modeling_*.py``.
"""

from collections.abc import Callable, Mapping

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.bert import (
    BertEmbeddings,
    BertModel,
    BertSelfAttention,
    BertShape,
    Roberta,
    bert_shape,
)
from vlmplan.architecture.families.gpt2 import GPT2Context
from vlmplan.architecture.modules import LayerNorm, Linear, Module, Stack
from vlmplan.architecture.tensor import Tensor

XL = "xlm-roberta-xl"


class PlainOutput(Module):
    """``RobertaPreLayerNormSelfOutput`` and its like: added to the residual, and not normed."""

    def __init__(self, shape: BertShape, in_features: int, dropout: float) -> None:
        self.dense = Linear(in_features, shape.hidden_size, bias=True)
        self.dropout = dropout

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        x = self.dense(x)
        x = ops.dropout(x, self.dropout)
        return ops.add(x, residual)


class PreNormAttention(Module):
    """``RobertaPreLayerNormAttention``, ``XLMRobertaXLAttention``; ``norm``: what its norm is called."""

    def __init__(self, shape: BertShape, norm: str) -> None:
        self.self = BertSelfAttention(shape)
        self.output = PlainOutput(shape, shape.hidden_size, shape.dropout)
        self.norm_name = norm
        setattr(self, norm, LayerNorm(shape.hidden_size))

    def forward(self, x: Tensor, context: GPT2Context) -> Tensor:
        normed = self.modules_by_name[self.norm_name](x)
        attended = self.modules_by_name["self"](normed, context)
        attended = self.output(attended, x)
        del normed
        return attended


class PreNormIntermediate(Module):
    """``RobertaPreLayerNormIntermediate``; without a norm ``XLMRobertaXLIntermediate``."""

    def __init__(self, shape: BertShape, *, norms: bool) -> None:
        self.norms = norms
        if norms:
            self.LayerNorm = LayerNorm(shape.hidden_size)
        self.dense = Linear(shape.hidden_size, shape.intermediate_size, bias=True)
        self.intermediate_act_fn: Callable[[Tensor], Tensor] = ops.activation_module(shape.activation)

    def forward(self, x: Tensor) -> Tensor:
        if self.norms:
            x = self.LayerNorm(x)
        x = self.dense(x)
        return self.intermediate_act_fn(x)


class PreNormLayer(Module):
    """``RobertaPreLayerNormLayer``."""

    def __init__(self, shape: BertShape) -> None:
        self.attention = PreNormAttention(shape, "LayerNorm")
        self.intermediate = PreNormIntermediate(shape, norms=True)
        self.output = PlainOutput(shape, shape.intermediate_size, shape.dropout)

    def forward(self, x: Tensor, context: GPT2Context) -> Tensor:
        attended = self.attention(x, context)
        between = self.intermediate(attended)
        return self.output(between, attended)


class XlLayer(Module):
    """``XLMRobertaXLLayer``, whose MLP drops nothing."""

    def __init__(self, shape: BertShape) -> None:
        self.attention = PreNormAttention(shape, "self_attn_layer_norm")
        self.intermediate = PreNormIntermediate(shape, norms=False)
        self.output = PlainOutput(shape, shape.intermediate_size, 0.0)
        self.LayerNorm = LayerNorm(shape.hidden_size)

    def forward(self, x: Tensor, context: GPT2Context) -> Tensor:
        attended = self.attention(x, context)
        between = self.LayerNorm(attended)
        between = self.intermediate(between)
        return self.output(between, attended)


class PreNormEncoder(Module):
    """``RobertaPreLayerNormEncoder``; with a norm ``XLMRobertaXLEncoder``."""

    def __init__(self, shape: BertShape, layer: Module, *, norms: bool) -> None:
        self.layer = Stack.of(layer, shape.num_layers, label="layers")
        if norms:
            self.LayerNorm = LayerNorm(shape.hidden_size)


class PreNormModel(BertModel):
    """``RobertaPreLayerNormModel``, ``XLMRobertaXLModel``: a norm behind all layers."""

    def __init__(self, shape: BertShape, *, is_xl: bool) -> None:
        self.shape, self.is_xl = shape, is_xl
        self.embeddings = BertEmbeddings(shape, norms=not is_xl)
        self.encoder = PreNormEncoder(shape, XlLayer(shape) if is_xl else PreNormLayer(shape), norms=is_xl)
        if not is_xl:
            self.LayerNorm = LayerNorm(shape.hidden_size)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        hidden = super().forward(x, backend)
        with x.tape.section("norm"):
            return self.encoder.LayerNorm(hidden) if self.is_xl else self.LayerNorm(hidden)


class RobertaPreLayerNorm(Roberta):
    """``RobertaPreLayerNormForCausalLM``."""

    EMBEDDINGS = "roberta_prelayernorm.embeddings.word_embeddings"


CLASSES: Mapping[str, type[Roberta]] = {"roberta-prelayernorm": RobertaPreLayerNorm, XL: Roberta}


def causal_lm(decoder: BertModel, config: Config) -> Roberta:
    return CLASSES[config.model_type](decoder, config)


def decoder(config: Config) -> PreNormModel:
    return PreNormModel(bert_shape(config), is_xl=config.model_type == XL)
