"""Mixtures of experts as DeepSeek-V3 has them, and GLM-4.5 after it: sigmoid scores, and experts that see all tokens.

Source: transformers 5.23 ``models/deepseek_v3/modeling_deepseek_v3.py`` (``DeepseekV3TopkRouter``, ``DeepseekV3MoE``)
and its copies. Symbols as in ``moe``. The router computes in float32 whatever the model's type, and its scores stay
so: what they weight becomes float32 too, as in Mixtral. ``e_score_correction_bias`` is a buffer and takes no part in
anything that is trained.

peft 0.21 (``utils/transformers_weight_conversion.py``) takes ``gate_proj``, ``up_proj`` and ``down_proj`` for names of
experts in transformers 4: with LoRA on all Linears routers and experts are adapted, and the Linears of these names, in
dense layers and shared experts, are not (seen).
"""

from collections.abc import Mapping
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.llama import DecoderShape, GatedMlp
from vlmplan.architecture.families.moe import Experts, normalized_in_place, top
from vlmplan.architecture.modules import Module
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.parameter_adapters import AdaptableModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

METHODS = GREEDY, LIMITED = "greedy", "group_limited_greedy"
"""How DeepSeek-V2 chooses experts: out of all, or out of the best groups."""
DEEPSEEK_V2 = ("deepseek_ocr2_text", "deepseek_v2")
"""Types whose router is DeepSeek-V2's."""
BEST_OF_GROUP = 2
"""Experts by whose scores a group is chosen: ``topk(2)``."""


EXPERT_KEYS: Mapping[str, tuple[str, str]] = {
    "exaone_moe": ("num_experts", "num_shared_experts"),
    "kimi_linear": ("num_local_experts", "n_shared_experts"),
}
"""Keys of the numbers of experts that are routed to and that see all tokens, where they are not those of the others."""
OLD_EXPERT_NAMES: Mapping[str, str] = {
    "gate": "gate.weight",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "down_proj": "down_proj",
}
"""``PARAMETER_TARGETS`` of models of experts."""


class NamedExpertsLM(CausalLM):
    """A text model whose names of experts peft takes for those that Qwen2-MoE's have in transformers 4."""

    PARAMETER_TARGETS = OLD_EXPERT_NAMES


class GroupRouter(AdaptableModule):
    """``DeepseekV3TopkRouter``: (logits, scores, indices) of the k experts of each token, out of the best groups."""

    def __init__(
        self, num_experts: int, hidden_size: int, num_per_token: int, *, num_groups: int, normalizes: bool
    ) -> None:
        self.weight = Parameter(num_experts, hidden_size)
        self.num_per_token, self.num_groups, self.normalizes = num_per_token, num_groups, normalizes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tape = x.tape
        num_tokens = x.shape[0]
        logits, scores = self.scored(x)
        # What only decides which experts are chosen: no gradient comes back, all of it goes when this returns.
        choice = tape.tensor(scores.shape, scores.dtype)
        best = tape.tensor((num_tokens, self.num_groups, BEST_OF_GROUP), DType.INT64)
        group_scores = tape.tensor((num_tokens, self.num_groups), scores.dtype)
        group_mask = tape.tensor((num_tokens, self.num_groups), scores.dtype)
        score_mask = tape.tensor(scores.shape if self.num_groups > 1 else (0,), scores.dtype)
        is_outside = tape.tensor(scores.shape, DType.BOOL)
        choice = tape.tensor(scores.shape, scores.dtype)
        tape.move(6 * choice.num_bytes)
        picked, indices = top(scores, self.num_per_token)
        if self.normalizes:
            picked = normalized_in_place(picked)
        picked = ops.scale(picked)
        del best, group_scores, group_mask, score_mask, is_outside, choice
        return logits, picked, indices

    def scored(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The logits and what is chosen by."""
        wide = ops.to(x, DType.FLOAT32)
        logits = ops.linear(wide, ops.cast_weight(self.weight_of("weight"), DType.FLOAT32, x.tape))
        del wide
        return logits, ops.sigmoid(logits)


class SoftmaxGroupRouter(GroupRouter):
    """``Mistral4TopkRouter``: scores are probabilities in the model's type."""

    def scored(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = ops.linear(x, self.weight_of("weight"))
        return logits, ops.softmax(logits)


class GreedyRouter(AdaptableModule):
    """``DeepseekV2TopkRouter``: probabilities in float32; where it is ``limited`` to the best groups, those of others
    are filled with zeros before the k best are taken."""

    def __init__(self, num_experts: int, hidden_size: int, num_per_token: int, *, num_groups: int | None) -> None:
        self.weight = Parameter(num_experts, hidden_size)
        self.num_per_token, self.num_groups = num_per_token, num_groups

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tape = x.tape
        wide = ops.to(x, DType.FLOAT32)
        logits = ops.linear(wide, ops.cast_weight(self.weight_of("weight"), DType.FLOAT32, tape))
        del wide
        scores = ops.softmax(logits, DType.FLOAT32)
        if self.num_groups is not None:
            # The best score of each group, of which no gradient comes back; both masks live until this returns.
            best = [tape.tensor((x.shape[0], self.num_groups), kind) for kind in (DType.FLOAT32, DType.INT64)]
            masks = [tape.tensor((x.shape[0], self.num_groups), DType.FLOAT32)]
            masks.append(tape.tensor(scores.shape, DType.FLOAT32))
            scores = chunks.masked_fill(scores, tape.tensor(scores.shape, DType.BOOL))
            picked, indices = top(scores, self.num_per_token)
            del best, masks
        else:
            picked, indices = top(scores, self.num_per_token)
        return logits, ops.scale(picked), indices


class SharedExpertsBlock(Module):
    """``DeepseekV3MoE``: routed experts, and a gated MLP that sees every token. DeepSeek-V4 has the router first."""

    def __init__(
        self, gate: AdaptableModule, experts: Experts, shared: GatedMlp | None, *, registers_gate_first: bool = False
    ) -> None:
        if registers_gate_first:
            self.gate: Any = gate
        self.experts: Any = experts
        if not registers_gate_first:
            self.gate = gate
        self.shared_experts: Any = shared
        self.has_shared = shared is not None

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        flat = x.view(x.numel // width, width)
        # The router's logits live to the end of the block.
        _logits, scores, indices = self.gate(flat)
        routed = self.experts(flat, indices, scores).view(*x.shape)
        return ops.add(routed, self.shared_experts(x))


def shared_experts_block(
    config: Config, shape: DecoderShape, block: type[SharedExpertsBlock] = SharedExpertsBlock
) -> SharedExpertsBlock:
    """The mixture of experts of a text configuration (deepseek_v3, glm4_moe, mistral4, solar_open, ...)."""
    routed_key, shared_key = EXPERT_KEYS.get(config.model_type, ("n_routed_experts", "n_shared_experts"))
    num_experts = config.integer(routed_key)
    inner = config.integer("moe_intermediate_size")
    experts = Experts(num_experts, shape.hidden_size, inner, activation=shape.activation)
    inner *= config.integer(shared_key)
    # Others have no key mlp_bias, or a class that does not read it here.
    bias = config.model_type in DEEPSEEK_V2 and shape.mlp_bias
    shared = GatedMlp(shape.hidden_size, inner, activation=shape.activation, bias=bias)
    return block(_router(config, num_experts, shape.hidden_size), experts, shared)


def _router(config: Config, num_experts: int, hidden_size: int) -> GroupRouter | GreedyRouter:
    num_per_token = config.integer("num_experts_per_tok")
    if config.model_type in DEEPSEEK_V2:
        method = config.text("topk_method")
        if method not in METHODS:
            raise not_allowed(CONFIG, "topk_method", method, " or ".join(METHODS))
        num_groups = None if method == GREEDY else config.integer("n_group")
        return GreedyRouter(num_experts, hidden_size, num_per_token, num_groups=num_groups)
    router = SoftmaxGroupRouter if config.model_type == "mistral4" else GroupRouter
    num_groups, normalizes = config.integer("n_group", 1), config.boolean("norm_topk_prob")
    return router(num_experts, hidden_size, num_per_token, num_groups=num_groups, normalizes=normalizes)
