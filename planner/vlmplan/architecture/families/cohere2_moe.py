"""Cohere 2 with experts: Cohere's layers, attention beside a mixture of experts, with dense layers in front.

Source: transformers 5.23 ``models/cohere2_moe/modeling_cohere2_moe.py`` and ``configuration_cohere2_moe.py``.
"""

from collections.abc import Callable
from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.cohere import CohereLayer, CohereNorm
from vlmplan.architecture.families.group_router import NamedExpertsLM
from vlmplan.architecture.families.llama import (
    Decoder,
    DecoderShape,
    GatedMlp,
    decoder_shape,
    stack_of_kinds,
    windows_by_type,
)
from vlmplan.architecture.families.moe import Experts, sparse_by_name, top
from vlmplan.architecture.modules import Module, RMSNorm
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.parameter_adapters import AdaptableModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

SOFTMAX, SIGMOID = "softmax", "sigmoid"
AVERAGE, SUM = "average", "sum"


class ChoosingRouter(AdaptableModule):
    """``Cohere2MoeTopKRouter``: scores of the k largest logits alone."""

    def __init__(
        self, num_experts: int, hidden_size: int, num_per_token: int, *, is_softmax: bool, normalizes: bool
    ) -> None:
        self.weight = Parameter(num_experts, hidden_size)
        self.num_per_token, self.is_softmax, self.normalizes = num_per_token, is_softmax, normalizes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = ops.linear(x, self.weight_of("weight"))
        scores, indices = top(logits, self.num_per_token)
        if self.is_softmax:
            scores = ops.softmax(scores, DType.FLOAT32)
        else:
            scores = ops.sigmoid(scores)
            if self.normalizes:
                scores = chunks.divide(scores, ops.total(scores, (*scores.shape[:-1], 1)))
        return logits, ops.to(scores, x.dtype), indices


class CohereMoe(Module):
    """``Cohere2MoeSparseMoeBlock``; ``is_average``: of what routed and shared experts give."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        num_experts, width, inner = config.integer("num_experts"), shape.hidden_size, shape.intermediate_size
        scoring = one_of(config, "expert_selection_fn", (SOFTMAX, SIGMOID))
        self.is_average = one_of(config, "shared_expert_combination_strategy", (SUM, AVERAGE)) == AVERAGE
        self.gate = ChoosingRouter(
            num_experts,
            width,
            config.integer("num_experts_per_tok"),
            is_softmax=scoring == SOFTMAX,
            normalizes=config.boolean("norm_topk_prob"),
        )
        self.experts = Experts(num_experts, width, inner, activation=shape.activation)
        num_shared = config.count("num_shared_experts")
        self.has_shared = num_shared > 0
        if self.has_shared:
            self.shared_experts = GatedMlp(width, inner * num_shared, activation=shape.activation)

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        flat = x.view(x.numel // width, width)
        _logits, scores, indices = self.gate(flat)
        out = self.experts(flat, indices, scores)
        if self.has_shared:
            shared = self.shared_experts(flat)
            out = ops.scale(ops.add(out, shared)) if self.is_average else ops.add(out, shared)
            del shared
        return out.view(*x.shape)


def one_of(config: Config, key: str, names: tuple[str, ...]) -> str:
    value = config.text(key)
    if value not in names:
        raise not_allowed(CONFIG, key, value, " or ".join(names))
    return value


class ScaledNamedLM(NamedExpertsLM):
    """``Cohere2MoeForCausalLM``."""

    scales_logits = True


def decoder(config: Config) -> Decoder:
    shape = decoder_shape(config)
    num_dense = config.optional_integer("first_k_dense_replace") or 0
    front, behind = config.integer("prefix_dense_sliding_window_pattern"), config.integer("sliding_window_pattern")
    windows = windows_by_type(
        config, lambda index: (index + 1) % front != 0 if index < num_dense else (index - num_dense + 1) % behind != 0
    )
    shape = replace(shape, windows=windows)
    norm: Callable[[int], Module] = CohereNorm if config.get("rms_norm_eps") is None else RMSNorm

    def layer(kind: tuple[int | None, bool]) -> CohereLayer:
        window, is_sparse = kind
        rotates = window is not None or (not is_sparse and front == 1)
        made = CohereLayer(shape, window, norms_heads=False, has_positions=rotates)
        inner = config.integer("prefix_dense_intermediate_size", shape.intermediate_size)
        made.mlp = (
            CohereMoe(config, shape) if is_sparse else GatedMlp(shape.hidden_size, inner, activation=shape.activation)
        )
        made.input_layernorm = norm(shape.hidden_size)
        return made

    kinds = list(zip(windows, sparse_by_name(config, num_dense=num_dense), strict=True))
    masked = (None, config.integer("sliding_window"))
    return Decoder(shape, stack_of_kinds(kinds, layer), norm=norm, masked_windows=masked)


causal_lm = ScaledNamedLM
