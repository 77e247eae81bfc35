"""Aria's language model: a Llama whose MLPs are mixtures of experts with shared ones.

Source: transformers 5.23 ``models/aria/modeling_aria.py``, ``AriaTextModel``.
"""

from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gpt_oss import LogitRouter
from vlmplan.architecture.families.llama import Decoder, DecoderLayer, DecoderShape, GatedMlp, decoder_shape
from vlmplan.architecture.families.moe import Experts
from vlmplan.architecture.modules import Module, Stack
from vlmplan.architecture.tensor import Tensor


class AriaMoe(Module):
    """``AriaTextMoELayer``: a softmax over the logits of the experts that were chosen; weights are (in, out)."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        num_experts, inner = config.integer("moe_num_experts"), shape.intermediate_size
        num_chosen = config.integer("moe_topk")
        self.router = LogitRouter(num_experts, shape.hidden_size, num_chosen, has_bias=False, names_type=False)
        self.experts: Any = Experts(num_experts, shape.hidden_size, inner, is_transposed=True)
        shared = inner * config.integer("moe_num_shared_experts")
        self.shared_experts = GatedMlp(shape.hidden_size, shared, activation=shape.activation, bias=shape.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(x.numel // x.shape[-1], x.shape[-1])
        _logits, scores, indices = self.router(flat)
        routed = self.experts(flat, indices, scores).view(*x.shape)
        return ops.add(routed, self.shared_experts(x))


def decoder(config: Config) -> Decoder:
    shape = decoder_shape(config)
    layer = DecoderLayer(shape, mlp=AriaMoe(config, shape))
    return Decoder(shape, Stack.of(layer, shape.num_layers, label="layers"))
