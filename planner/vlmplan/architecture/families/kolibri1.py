"""Kolibri 1: EXAONE 4's attention between GLM-4's norms, and in every layer DeepSeek-V3's mixture of experts, whose
router weights by the sigmoids of the chosen logits.

Source: transformers 5.23 ``models/kolibri1/modeling_kolibri1.py`` and ``configuration_kolibri1.py``. peft does not know
its experts' names.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.group_router import SharedExpertsBlock
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderShape,
    GatedMlp,
    decoder_shape,
    stack_of_kinds,
    windows_by_type,
)
from vlmplan.architecture.families.moe import Experts, top
from vlmplan.architecture.families.residual_layers import SandwichNormLayer
from vlmplan.architecture.families.smollm3 import PositionlessAttention
from vlmplan.architecture.modules import RMSNorm
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.parameter_adapters import AdaptableModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType

PERIOD = 5
"""Every how many layers one sees everything where ``layer_types`` does not say (``__post_init__``)."""


class SigmoidRouter(AdaptableModule):
    """``Kolibri1TopKRouter``: (logits, scores, indices) of the k experts of each token, in float32."""

    def __init__(self, num_experts: int, hidden_size: int, num_per_token: int, *, normalizes: bool) -> None:
        self.weight = Parameter(num_experts, hidden_size)
        self.num_per_token, self.normalizes = num_per_token, normalizes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        wide = ops.to(x, DType.FLOAT32)
        logits = ops.linear(wide, ops.cast_weight(self.weight_of("weight"), DType.FLOAT32, x.tape))
        del wide
        picked, indices = top(logits, self.num_per_token, gathers=True)
        scores = ops.sigmoid(picked)
        del picked
        if self.normalizes:
            scores = chunks.divide(scores, ops.total(scores, (*scores.shape[:-1], 1)))
        return logits, scores, indices


class Kolibri1Layer(SandwichNormLayer):
    """``Kolibri1DecoderLayer``."""

    MODULES = (
        *("input_layernorm", "self_attn", "post_self_attn_layernorm"),
        *("post_attention_layernorm", "mlp", "post_mlp_layernorm"),
    )

    def __init__(self, config: Config, shape: DecoderShape, window: int | None) -> None:
        self.self_attn = (PositionlessAttention if window is None else Attention)(shape, window)
        self.mlp = _experts_block(config, shape)
        self.input_layernorm = RMSNorm(shape.hidden_size)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size)
        self.post_self_attn_layernorm = RMSNorm(shape.hidden_size)
        self.post_mlp_layernorm = RMSNorm(shape.hidden_size)


def _experts_block(config: Config, shape: DecoderShape) -> SharedExpertsBlock:
    """``Kolibri1SparseMoeBlock``."""
    num_experts, width = config.integer("num_experts"), shape.hidden_size
    experts = Experts(num_experts, width, config.integer("moe_intermediate_size"), activation=shape.activation)
    num_per_token, normalizes = config.integer("num_experts_per_tok"), config.boolean("norm_topk_prob")
    router = SigmoidRouter(num_experts, width, num_per_token, normalizes=normalizes)
    shared = GatedMlp(width, config.integer("shared_expert_intermediate_size"), activation=shape.activation)
    return SharedExpertsBlock(router, experts, shared)


def decoder(config: Config) -> Decoder:
    """Raises InputError where no width of windows is given: transformers makes a mask of them in any case."""
    width = config.integer("sliding_window")
    windows = windows_by_type(config, lambda index: (index + 1) % PERIOD != 0)
    shape = replace(decoder_shape(config), qk_norm=True, windows=windows)
    layers = stack_of_kinds(windows, lambda window: Kolibri1Layer(config, shape, window))
    return Decoder(shape, layers, masked_windows=(None, width))
