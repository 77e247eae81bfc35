"""Mixtures of experts whose gates and values are clamped, and routers that choose by a table of tokens: DeepSeek-V4's.

Source: transformers 5.23 ``models/deepseek_v4/modeling_deepseek_v4.py`` (``DeepseekV4TopKRouter``,
``DeepseekV4HashRouter``, ``DeepseekV4Experts``, ``DeepseekV4MLP``). Symbols as in ``moe``. The table of the first
layers, ``tid2eid``, is a buffer of (vocabulary, k) integers: like ``e_score_correction_bias`` it is not trained.
"""

from collections.abc import Callable

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.group_router import SharedExpertsBlock
from vlmplan.architecture.families.llama import GatedMlp
from vlmplan.architecture.families.moe import Experts, top
from vlmplan.architecture.ops import ActivationTable, chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.parameter_adapters import AdaptableModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType

HASH, SPARSE = MLP_KINDS = "hash_moe", "moe"
"""Kinds of mixtures, as ``mlp_layer_types`` names them: chosen by the token alone, and by its scores."""


def square_root_of_softplus(x: Tensor) -> Tensor:
    """``SqrtSoftplusActivation``: softplus saves its input, the root its result; autocast runs it in float32."""
    x = x if x.tape.autocast is None else ops.to(x, DType.FLOAT32)
    return ops.unary(ops.unary(x, saves_input=True), saves_output=True)


SCORING = ActivationTable({"sqrtsoftplus": square_root_of_softplus, "sigmoid": ops.sigmoid})
"""Functions that make scores of logits, by ``scoring_func``."""


class ScoringRouter(AdaptableModule):
    """``DeepseekV4TopKRouter`` and ``DeepseekV4HashRouter``: (logits, scores, indices) of each token's k experts."""

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        num_per_token: int,
        score: Callable[[Tensor], Tensor],
        *,
        looks_up: bool,
    ) -> None:
        self.weight = Parameter(num_experts, hidden_size)
        self.num_per_token, self.score, self.looks_up = num_per_token, score, looks_up

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = ops.linear(x, self.weight_of("weight"))
        scores = self.score(logits)
        if not self.looks_up:
            self._choose(scores)
        picked, indices = top(scores, self.num_per_token)  # gather: saves the indices too
        picked = chunks.divide(picked, ops.shift(ops.total(picked, (*picked.shape[:-1], 1))))
        return logits, ops.scale(picked), indices

    def _choose(self, scores: Tensor) -> None:
        """What the best are chosen by, and the k best values, which go at once."""
        tape = scores.tape
        biased = tape.tensor(scores.shape, scores.dtype)
        best = tape.tensor((scores.shape[0], self.num_per_token), scores.dtype)
        tape.move(2 * biased.num_bytes + best.num_bytes)


class ClampedExperts(Experts):
    """``DeepseekV4Experts``."""

    def _gated(self, out: Tensor) -> Tensor:
        half = (out.shape[0], out.shape[1] // 2)
        gate, up = ops.split(out, half, half)
        gate = ops.clamp(gate, num_limits=1)
        up = ops.clamp(up, num_limits=2)
        return ops.mul(self.activation(gate), up)


class ClampedMlp(GatedMlp):
    """``DeepseekV4MLP``: what every token goes through besides its experts."""

    def forward(self, x: Tensor) -> Tensor:
        gate = ops.clamp(self.gate_proj(x), num_limits=1)
        up = ops.clamp(self.up_proj(x), num_limits=2)
        return self.down_proj(ops.mul(self.act_fn(gate), up))


def clamped_experts_block(config: Config, kind: str) -> SharedExpertsBlock:
    """The mixture of experts of a layer of ``kind``."""
    num_experts, width = config.integer("n_routed_experts"), config.integer("hidden_size")
    inner, activation = config.integer("moe_intermediate_size"), config.text("hidden_act")
    router = ScoringRouter(
        num_experts,
        width,
        config.integer("num_experts_per_tok"),
        SCORING[config.text("scoring_func")],
        looks_up=kind == HASH,
    )
    experts = ClampedExperts(num_experts, width, inner, activation=activation)
    shared = ClampedMlp(width, inner, activation=activation, bias=config.boolean("mlp_bias"))
    return SharedExpertsBlock(router, experts, shared, registers_gate_first=True)
