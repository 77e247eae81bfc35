"""ERNIE 4.5 with experts: its attention, and experts beside an MLP that sees every token, in some layers.

Source: transformers 5.23 ``models/ernie4_5_moe/modeling_ernie4_5_moe.py``. The correction of what experts are chosen by
is a parameter that never has a gradient. The layer of published checkpoints that predicts more than one token is left
out by transformers (``_keys_to_ignore_on_load_unexpected``).
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import PLAIN_SCORES
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.ernie4_5 import ErnieLayer
from vlmplan.architecture.families.group_router import NamedExpertsLM, SharedExpertsBlock
from vlmplan.architecture.families.llama import Decoder, DecoderShape, GatedMlp, decoder_shape, stack_of_kinds
from vlmplan.architecture.families.moe import Experts, top
from vlmplan.architecture.modules import Module
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.parameter_adapters import AdaptableModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class Statics(Module):
    """``Ernie4_5_MoeStatics``."""

    def __init__(self, num_experts: int) -> None:
        self.e_score_correction_bias = Parameter(1, num_experts)

    def forward(self, scores: Tensor) -> Tensor:
        """What experts are chosen by, of which no gradient comes back."""
        scores.tape.move(2 * scores.num_bytes)
        return scores.tape.tensor(scores.shape, scores.dtype)


class ErnieRouter(AdaptableModule):
    """``Ernie4_5_MoeTopKRouter``: probabilities in float32, without autocast."""

    def __init__(self, num_experts: int, hidden_size: int, num_per_token: int) -> None:
        self.weight = Parameter(num_experts, hidden_size)
        self.weight.meets_autocast = False
        self.moe_statics = Statics(num_experts)
        self.num_per_token = num_per_token

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tape, wide = x.tape, DType.FLOAT32
        outside, tape.autocast = tape.autocast, None
        logits = ops.linear(ops.to(x, wide), ops.cast_weight(self.weight_of("weight"), wide, tape))
        weights = ops.softmax(logits)
        chosen_by, _ = top(self.moe_statics(weights.detached()), self.num_per_token)
        weights, indices = top(weights, self.num_per_token)  # gathered: the gradient is as large
        total = ops.clamp(ops.total(weights, (x.shape[0], 1)), num_limits=1)
        weights = chunks.divide(weights, total)
        tape.autocast = outside
        del chosen_by
        return logits, ops.to(weights, x.dtype), indices


class ErnieMoeBlock(SharedExpertsBlock):
    """``Ernie4_5_MoeSparseMoeBlock``."""

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        flat = x.view(x.numel // width, width)
        shared = self.shared_experts(flat) if self.has_shared else None
        _logits, scores, indices = self.gate(flat)
        routed = self.experts(flat, indices, scores)
        return (routed if shared is None else ops.add(routed, shared)).view(*x.shape)


class ErnieMoeLayer(ErnieLayer):
    """``Ernie4_5_MoeDecoderLayer``."""

    def __init__(self, config: Config, shape: DecoderShape, *, is_sparse: bool) -> None:
        super().__init__(shape)
        if not is_sparse:
            return
        num_experts, inner = config.integer("moe_num_experts"), config.integer("moe_intermediate_size")
        experts = Experts(num_experts, shape.hidden_size, inner, activation=shape.activation)
        inner *= config.count("moe_num_shared_experts")
        shared = GatedMlp(shape.hidden_size, inner, activation=shape.activation, bias=shape.mlp_bias) if inner else None
        router = ErnieRouter(num_experts, shape.hidden_size, config.integer("moe_k"))
        self.mlp = ErnieMoeBlock(router, experts, shared, registers_gate_first=True)


def _sparse_layers(config: Config, num_layers: int) -> list[bool]:
    """Whether each layer has experts: every ``moe_layer_interval``-th of a stretch."""
    step, first = config.integer("moe_layer_interval"), config.count("moe_layer_start_index")
    last = num_layers - 1 if config.get("moe_layer_end_index") == -1 else config.count("moe_layer_end_index")
    return [(index + 1) % step == 0 and first <= index <= last for index in range(num_layers)]


def decoder(config: Config) -> Decoder:
    bias = config.boolean("use_bias")
    shape = replace(decoder_shape(config), qkv_bias=bias, output_bias=bias, mlp_bias=bias, scores=PLAIN_SCORES)
    is_sparse = _sparse_layers(config, shape.num_layers)
    layers = stack_of_kinds(is_sparse, lambda sparse: ErnieMoeLayer(config, shape, is_sparse=sparse))
    return Decoder(shape, layers, rotary_dtype=DType.FLOAT32)


def causal_lm(decoder: Module, config: Config) -> NamedExpertsLM:
    """``Ernie4_5_MoeForCausalLM``."""
    return NamedExpertsLM(decoder, config, has_bias=config.boolean("use_bias"))
