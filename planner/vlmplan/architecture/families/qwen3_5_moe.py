"""Qwen3.5 with a mixture of experts in every layer, and an expert that sees all tokens beside it.

Source: transformers 5.23 ``models/qwen3_5_moe/modeling_qwen3_5_moe.py``. peft does not know names of its experts from
transformers 4 (``_MODEL_TO_CONVERSION_PATTERN`` leads to ``qwen3_5_text``, which has no entry of experts), so LoRA on
all Linears reaches the shared expert and its gate, and leaves experts and routers out.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import DecoderShape, GatedMlp
from vlmplan.architecture.families.moe import Experts, SparseMoeBlock, TopKRouter
from vlmplan.architecture.families.packed_patches import InterleavedDecoder
from vlmplan.architecture.families.qwen3_5 import hybrid_decoder, hybrid_shape
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.tensor import Tensor

CHOOSE_TO_NORMALIZE = ("qwen2_moe", "qwen3_next", "qwen4_exp_text")


class SharedExpertBlock(SparseMoeBlock):
    """``Qwen3_5MoeSparseMoeBlock``: the routed experts, and a gated MLP for every token."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        num_experts, width = config.integer("num_experts"), shape.hidden_size
        # The key is Qwen3-Next's and Qwen2-MoE's; Qwen3.5 normalises always.
        normalizes = config.model_type not in CHOOSE_TO_NORMALIZE or config.boolean("norm_topk_prob")
        num_per_token = config.integer("num_experts_per_tok")
        gate = TopKRouter(num_experts, width, num_per_token, casts_scores=True, normalizes=normalizes)
        inner = config.integer("moe_intermediate_size")
        experts = Experts(num_experts, width, inner, activation=shape.activation)
        super().__init__(gate, experts, registers_gate_first=True)
        self.shared_expert = GatedMlp(width, shape.intermediate_size, activation=shape.activation)
        self.shared_expert_gate = Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        width, tape = x.shape[-1], x.tape
        tape.enter_block()
        flat = x.view(x.numel // width, width)
        shared = self.shared_expert(flat)
        # The router's logits live to the end of the block.
        _logits, scores, indices = self.gate(flat)
        routed = self.experts(flat, indices, scores)
        shared = ops.mul(shared, ops.sigmoid(self.shared_expert_gate(flat)))
        out = ops.add(routed, shared).view(*x.shape)
        tape.leave_block()
        return out


def decoder(config: Config) -> InterleavedDecoder:
    """``Qwen3_5MoeTextModel``, the decoder without a head."""
    shape = hybrid_shape(config, intermediate_size=config.integer("shared_expert_intermediate_size"))
    return hybrid_decoder(config, shape, SharedExpertBlock(config, shape))
