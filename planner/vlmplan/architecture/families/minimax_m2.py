"""MiniMax-M2: whole queries and keys normed, positions on part of each head, and experts chosen by sigmoid scores.

Source: transformers 5.23 ``models/minimax_m2/modeling_minimax_m2.py`` and ``configuration_minimax_m2.py``. What
predicts more than one token is not in transformers' class. ``router_jitter_noise`` is not described: it is 0 by
default.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.llama import Decoder, DecoderLayer, DecoderShape, decoder_shape
from vlmplan.architecture.families.mixtral import Mixtral
from vlmplan.architecture.families.moe import Experts, SparseMoeBlock, TopKRouter, chosen_by, normalized_in_place, top
from vlmplan.architecture.families.olmo import WholeNormAttention
from vlmplan.architecture.families.partial_rotary import PartlyRotatedAttention, rotary_fraction
from vlmplan.architecture.modules import Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType


class SigmoidRouter(TopKRouter):
    """``MiniMaxM2TopKRouter``: each expert's score is its own, and a buffer is added to choose by."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = ops.linear(x, self.weight_of("weight"))
        scores = ops.sigmoid(ops.to(logits, DType.FLOAT32))
        held = chosen_by(scores, self.num_per_token)
        picked, indices = top(scores, self.num_per_token)
        picked = normalized_in_place(picked)
        del held
        return logits, picked, indices


class MiniMaxM2Attention(PartlyRotatedAttention, WholeNormAttention):
    """``MiniMaxM2Attention``."""


class MiniMaxM2Layer(DecoderLayer):
    """``MiniMaxM2DecoderLayer``."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        super().__init__(shape)
        self.self_attn = MiniMaxM2Attention(shape, None)
        num_experts, width = config.integer("num_local_experts"), shape.hidden_size
        router = SigmoidRouter(num_experts, width, config.integer("num_experts_per_tok"), casts_scores=False)
        experts = Experts(num_experts, width, shape.intermediate_size, activation=shape.activation)
        self.mlp = SparseMoeBlock(router, experts, registers_gate_first=True)


def rotary_width(config: Config, shape: DecoderShape) -> int:
    """How much of each head is rotated: ``rotary_dim`` of published files, else a fraction."""
    named = config.optional_integer("rotary_dim")
    return int(shape.head_dim * rotary_fraction(config, 1.0 if named is None else named / shape.head_dim))


def decoder(config: Config) -> Decoder:
    """Raises InputError where inputs get noise."""
    if config.number("router_jitter_noise"):
        raise not_allowed(CONFIG, "router_jitter_noise", config.get("router_jitter_noise"), "0: noise is not described")
    shape = replace(decoder_shape(config), qkv_bias=False, output_bias=False, windows=())
    layers = Stack.of(MiniMaxM2Layer(config, shape), shape.num_layers, label="layers")
    return Decoder(shape, layers, rotary_width=rotary_width(config, shape))


causal_lm = Mixtral
