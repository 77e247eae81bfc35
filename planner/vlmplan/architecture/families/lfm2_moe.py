"""LFM2 with a mixture of experts in all layers but the first ``num_dense_layers``.

Source: transformers 5.23 ``models/lfm2_moe/modeling_lfm2_moe.py``. Scores are sigmoids in the model's type; the bias
that decides with them which experts are chosen is a float32 buffer, which no gradient reaches. peft knows no old names
of these experts (``_MODEL_TO_CONVERSION_PATTERN`` has no entry), so that LoRA on all Linears leaves them out.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.lfm2 import (
    Lfm2,
    Lfm2Decoder,
    Lfm2Layer,
    Lfm2Mlp,
    layer_kinds,
    lfm2_shape,
    token_mixer,
)
from vlmplan.architecture.families.llama import DecoderShape, stack_of_kinds
from vlmplan.architecture.families.moe import Experts, SparseMoeBlock, normalized_in_place, top
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.parameter_adapters import AdaptableModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class BiasedRouter(AdaptableModule):
    """``Lfm2MoeTopKRouter``: (logits, scores, indices) of the k experts of each token."""

    def __init__(self, config: Config, hidden_size: int) -> None:
        self.weight = Parameter(config.integer("num_experts"), hidden_size)
        self.num_per_token = config.integer("num_experts_per_tok")
        self.has_bias, self.normalizes = config.boolean("use_expert_bias"), config.boolean("norm_topk_prob")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = ops.linear(x, self.weight_of("weight"))
        weights = ops.sigmoid(logits)
        # With the bias, what is chosen by, and the best of it, live until this returns.
        wide = x.tape.tensor(weights.shape if self.has_bias else (0,), DType.FLOAT32)
        picked, indices = top(weights, self.num_per_token)
        best = x.tape.tensor(picked.shape if self.has_bias else (0,), DType.FLOAT32)
        if self.normalizes:
            # Autocast sums in float32 (``aten/src/ATen/autocast_mode.h``), and the quotient is float32 then.
            picked = normalized_in_place(picked if x.tape.autocast is None else ops.to(picked, DType.FLOAT32))
        picked = ops.scale(picked)
        del wide, best
        return logits, picked, indices


def moe_block(config: Config, shape: DecoderShape) -> SparseMoeBlock:
    """``Lfm2MoeSparseMoeBlock``."""
    experts = Experts(config.integer("num_experts"), shape.hidden_size, config.integer("moe_intermediate_size"))
    return SparseMoeBlock(BiasedRouter(config, shape.hidden_size), experts, registers_gate_first=False)


class Lfm2MoeDecoder(Lfm2Decoder):
    """``Lfm2MoeModel``."""

    ROTARY_MODULES = ("pos_emb",)


def decoder(config: Config) -> Lfm2MoeDecoder:
    shape, num_dense = lfm2_shape(config), config.count("num_dense_layers")
    kinds = [(kind, index >= num_dense) for index, kind in enumerate(layer_kinds(config))]

    def layer(kind: tuple[str, bool]) -> Lfm2Layer:
        name, is_sparse = kind
        width = shape.hidden_size
        experts = moe_block(config, shape) if is_sparse else Lfm2Mlp(width, shape.intermediate_size)
        return Lfm2Layer(width, token_mixer(config, shape, name), experts)

    return Lfm2MoeDecoder(shape, stack_of_kinds(kinds, layer))


causal_lm = Lfm2
