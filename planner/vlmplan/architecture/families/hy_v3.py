"""Hunyuan 3 (Hy3): Qwen3's attention, and experts chosen by sigmoid scores beside an MLP that sees every token.

Source: transformers 5.23 ``models/hy_v3/modeling_hy_v3.py``. The layer of published checkpoints that predicts more than
one token is left out by transformers (``_keys_to_ignore_on_load_unexpected``).
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import (
    Decoder,
    DecoderLayer,
    DecoderShape,
    GatedMlp,
    decoder_shape,
    stack_of_kinds,
)
from vlmplan.architecture.families.moe import Experts, chosen_by, sparse_by_name, top
from vlmplan.architecture.modules import Module
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.parameter_adapters import AdaptableModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class HyRouter(AdaptableModule):
    """``HYV3TopKRouter``, in float32: each expert's score is its own, and a buffer is added to choose by."""

    def __init__(self, num_experts: int, hidden_size: int, num_per_token: int) -> None:
        self.weight = Parameter(num_experts, hidden_size)
        self.num_per_token = num_per_token

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tape = x.tape
        weight = ops.cast_weight(self.weight_of("weight"), DType.FLOAT32, tape)
        logits = ops.linear(ops.to(x, DType.FLOAT32), weight)
        del weight
        scores = ops.sigmoid(logits)
        held = chosen_by(scores, self.num_per_token)
        picked, indices = top(scores, self.num_per_token)
        total = ops.shift(ops.total(picked, (*picked.shape[:-1], 1)))
        picked = chunks.divide(picked, total)
        del total
        picked = ops.scale(picked)
        del held
        return logits, picked, indices


class HyMoe(Module):
    """``HYV3MoE``: with ``adds_wide`` what the routed and the shared experts give is added in float32."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        num_experts, width = config.integer("num_experts"), shape.hidden_size
        inner = config.integer("moe_intermediate_size")
        self.adds_wide = config.boolean("enable_moe_fp32_combine")
        self.gate = HyRouter(num_experts, width, config.integer("num_experts_per_tok"))
        self.experts = Experts(num_experts, width, inner, activation=shape.activation)
        inner *= config.integer("num_shared_experts")
        self.shared_experts = GatedMlp(width, inner, activation=shape.activation, bias=shape.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        flat = x.view(x.numel // width, width)
        _logits, scores, indices = self.gate(flat)
        routed = self.experts(flat, indices, scores)
        if self.adds_wide:
            wide = ops.to(routed, DType.FLOAT32)
            out = ops.to(ops.add(wide, ops.to(self.shared_experts(flat), DType.FLOAT32)), x.dtype)
        else:
            out = ops.add(routed, self.shared_experts(flat))
        return out.view(*x.shape)


def decoder(config: Config) -> Decoder:
    shape = replace(decoder_shape(config), qk_norm=True, norms_behind_projections=True)
    # ``HYV3Config.__post_init__``: the first layer is dense.
    return Decoder(
        shape,
        stack_of_kinds(
            sparse_by_name(config),
            lambda is_sparse: DecoderLayer(shape, mlp=HyMoe(config, shape) if is_sparse else None),
        ),
    )
