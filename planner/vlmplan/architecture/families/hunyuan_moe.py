"""HunYuan with experts (HunYuan-Large, A13B): HunYuan's attention, and experts beside an MLP that sees every token.

Source: transformers 5.23 ``models/hunyuan_v1_moe/modeling_hunyuan_v1_moe.py``, whose experts are as wide as
``intermediate_size`` and of one number in all layers.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.group_router import NamedExpertsLM
from vlmplan.architecture.families.hunyuan import HunYuanLayer
from vlmplan.architecture.families.llama import Decoder, DecoderShape, GatedMlp, decoder_shape
from vlmplan.architecture.families.moe import Experts, normalized_in_place, top
from vlmplan.architecture.modules import Linear, Module, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType


class HunYuanGate(Module):
    """``HunYuanMoEV1Gate``: a Linear, where the model is trained in float32 one that casts what it takes."""

    def __init__(self, num_experts: int, hidden_size: int, num_per_token: int) -> None:
        self.wg = Linear(hidden_size, num_experts)
        self.num_per_token = num_per_token

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.wg.weight.dtype is DType.FLOAT32:
            x = ops.to(x, DType.FLOAT32)
        logits = self.wg(x)
        scores, indices = top(ops.softmax(logits, DType.FLOAT32), self.num_per_token)
        scores = normalized_in_place(scores)
        return logits, ops.to(scores, logits.dtype), indices


class HunYuanMoe(Module):
    """``HunYuanMoEV1Moe``."""

    def __init__(self, shape: DecoderShape, num_experts: int, num_per_token: int) -> None:
        width, inner = shape.hidden_size, shape.intermediate_size
        self.gate = HunYuanGate(num_experts, width, num_per_token)
        self.experts = Experts(num_experts, width, inner, activation=shape.activation)
        self.shared_mlp = GatedMlp(width, inner, activation=shape.activation)

    def forward(self, x: Tensor) -> Tensor:
        shared = self.shared_mlp(x)
        width = x.shape[-1]
        flat = x.view(x.numel // width, width)
        _logits, scores, indices = self.gate(flat)
        routed = self.experts(flat, indices, scores).view(*x.shape)
        return ops.add(routed, shared)


def experts_per_token(config: Config) -> int:
    """``moe_topk``, which files may give by layer. Raises InputError where layers differ."""
    numbers = set(config.integers("moe_topk"))
    if len(numbers) != 1:
        raise not_allowed(CONFIG, "moe_topk", sorted(numbers), "one number for all layers")
    return numbers.pop()


def decoder(config: Config) -> Decoder:
    shape = replace(decoder_shape(config), mlp_bias=False, windows=())
    mlp = HunYuanMoe(shape, config.integer("num_experts"), experts_per_token(config))
    return Decoder(shape, Stack.of(HunYuanLayer(shape, mlp=mlp), shape.num_layers, label="layers"))


causal_lm = NamedExpertsLM
