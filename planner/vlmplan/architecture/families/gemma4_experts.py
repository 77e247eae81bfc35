"""What Gemma 4's layers are made of besides attention: its norm, and a router with experts beside the MLP.

Source: transformers 5.23 ``models/gemma4/modeling_gemma4.py`` (``Gemma4RMSNorm``, ``Gemma4TextRouter``,
``Gemma4TextExperts``).
"""

from typing import Any, NamedTuple

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gemma4_shape import UNIFIED
from vlmplan.architecture.families.moe import Experts, normalized_in_place, top
from vlmplan.architecture.indexing import take_rows
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class Gemma4Norm(Module):
    """``Gemma4RMSNorm``: all in float32, with ``torch.pow`` for a root; no weight if ``width`` is None."""

    def __init__(self, width: int | None) -> None:
        self.has_weight = width is not None
        if width is not None:
            self.weight = Parameter(width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self._normed(ops.to(x, DType.FLOAT32))
        if self.has_weight:
            normed = ops.mul(normed, ops.cast_weight(self.weight, DType.FLOAT32, x.tape))
        return ops.to(normed, x.dtype)

    def _normed(self, x: Tensor) -> Tensor:
        """x, cast for this call, goes when it returns unless it is saved."""
        mean_squared = ops.shift(ops.mean_last(ops.power(x)))
        return ops.mul(x, ops.power(mean_squared))


class Router(Module):
    """``Gemma4TextRouter``: (probabilities, scores, indices), all in float32; each expert scales its scores."""

    def __init__(self, num_experts: int, hidden_size: int, num_per_token: int) -> None:
        self.scale = Parameter(hidden_size)
        self.per_expert_scale = Parameter(num_experts)
        self.norm = Gemma4Norm(None)
        self.proj = Linear(hidden_size, num_experts)
        self.num_per_token = num_per_token

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.norm(x)
        x = ops.scale(ops.mul(x, self.scale))
        logits = self.proj(x)
        probabilities = ops.softmax(logits, DType.FLOAT32)
        scores, indices = top(probabilities, self.num_per_token)
        scores = normalized_in_place(scores)
        scores = ops.mul(scores, take_rows(self.per_expert_scale, indices, indices.shape))
        return probabilities, scores, indices


class Mixture(NamedTuple):
    """The router and the experts of one layer."""

    router: Any
    experts: Any


def mixture(config: Config) -> Mixture | None:
    """The mixture of experts of a text configuration; None where it has none (``enable_moe_block``)."""
    if config.model_type == UNIFIED or not config.boolean("enable_moe_block"):
        return None
    num_experts, width = config.integer("num_experts"), config.integer("hidden_size")
    router = Router(num_experts, width, config.integer("top_k_experts"))
    intermediate_size = config.integer("moe_intermediate_size")
    return Mixture(router, Experts(num_experts, width, intermediate_size, activation=config.text("hidden_activation")))
