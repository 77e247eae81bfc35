"""Mixtures of experts: a router, and experts whose weights lie in two three-dimensional parameters.

Source: transformers 5.23 ``integrations/moe.py`` (``grouped_mm_experts_forward``, which runs unless another
``experts_implementation`` is asked for) and the classes ``...Experts``, ``...TopKRouter`` and ``...SparseMoeBlock`` of
``models/{mixtral,qwen3_moe,qwen3_vl_moe}``. Symbols: N tokens, k experts per token, S = N * k pairs, E experts.

Neither the experts nor the router are ``nn.Linear``. bitsandbytes therefore leaves them in 16 bit
(``replace_with_bnb_linear``). LoRA reaches them in Mixtral and Qwen3-MoE, by ``all-linear`` and by the names that the
layers had in transformers 4 (``parameter_adapters``), but not in Qwen3-VL-MoE, for which peft has no such mapping.
torch's ``FlopCounterMode`` knows no formula for a grouped product (torch 2.13); the floating point operations here are
those of the k experts of each token, and a rehearsal counts them likewise. The loss that balances experts is not
described: ``output_router_logits`` is off by default, and its (N, E) tensors are small beside the (S, width) ones of a
layer.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.llama import DecoderLayer, DecoderShape
from vlmplan.architecture.indexing import take_rows
from vlmplan.architecture.leaf_module import LeafModule
from vlmplan.architecture.modules import Module, Stack
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.parameter_adapters import AdaptableModule
from vlmplan.architecture.tensor import GraphNode, Operand, Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

DENSE, SPARSE = "dense", "sparse"
"""Names of the two kinds of layers in ``mlp_layer_types``."""


class Experts(AdaptableModule):
    """``MixtralExperts`` and its copies: gated MLPs, each over the tokens that were routed to it.

    ``is_transposed``: weights are (E, in, out). ``has_bias``: each expert has biases (both: GPT-OSS). ``has_gate`` is
    False for MLPs without one (Nemotron-H).
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str = "silu",
        is_transposed: bool = False,
        has_bias: bool = False,
        has_gate: bool = True,
    ) -> None:
        self.up_name, width = ("gate_up_proj", 2 * intermediate_size) if has_gate else ("up_proj", intermediate_size)
        up, down = (width, hidden_size), (hidden_size, intermediate_size)
        setattr(self, self.up_name, Parameter(num_experts, *(up[::-1] if is_transposed else up)))
        if has_bias:
            setattr(self, f"{self.up_name}_bias", Parameter(num_experts, up[0]))
        self.down_proj = Parameter(num_experts, *(down[::-1] if is_transposed else down))
        if has_bias:
            self.down_proj_bias = Parameter(num_experts, down[0])
        self.activation = ops.ACTIVATIONS[activation]
        self.is_transposed, self.has_bias, self.has_gate = is_transposed, has_bias, has_gate
        for parameter in self.parameters_by_name.values():
            parameter.meets_autocast = False

    def forward(self, x: Tensor, indices: Tensor, scores: Tensor) -> Tensor:
        """x (N, width), expert indices and their scores (N, k); the result (N, width)."""
        tape = x.tape
        if tape.key_cache is not None and tape.key_cache.is_past_prompt:
            return self._decode(x, indices, scores)
        num_tokens, width = x.shape
        num_pairs = indices.numel
        # The local variables of grouped_mm_experts_forward: most live to its end, also those that nothing saves.
        expert_ids, permutation = (tape.tensor((num_pairs,), DType.INT64) for _ in range(2))
        selected = take_rows(x, tape.tensor((num_pairs,), DType.INT64), (num_pairs, width))
        selected_scores = take_rows(scores.view(num_pairs), permutation, (num_pairs,))
        histogram_input = tape.tensor((num_pairs,), DType.INT32)
        biases = self._biases(f"{self.up_name}_bias", expert_ids)
        out = self._grouped_linear(selected, self.up_name, biases)
        out = self._gated(out) if self.has_gate else self.activation(out)
        biases = self._biases("down_proj_bias", expert_ids)
        out = self._grouped_linear(out, "down_proj", biases)
        weighted = ops.mul(out, selected_scores.view(num_pairs, 1))
        inverse = tape.tensor((num_pairs,), DType.INT64)
        weighted = take_rows(weighted, inverse, weighted.shape)
        result = ops.to(ops.resample(weighted, num_tokens, weighted.shape[1]), x.dtype)  # view(N, k, width).sum(dim=1)
        del expert_ids, permutation, histogram_input, biases
        return result

    def _decode(self, x: Tensor, indices: Tensor, scores: Tensor) -> Tensor:
        """``batched_mm_experts_forward``, which ``generate`` switches to behind the prompt
        (``_optimize_model_for_decode`` in transformers 5.23 ``generation/utils.py``): each pair takes a copy of its
        expert's weights, and the first ones are there until the second have been taken."""
        num_tokens, width = x.shape
        num_pairs = indices.numel
        selected = ops.copy(x, num_pairs, width)
        weights = self._copied(self.up_name, indices)
        biases = self._biases(f"{self.up_name}_bias", indices)
        out = batched_linear(selected, weights, biases, is_transposed=self.is_transposed)
        out = self._gated(out) if self.has_gate else self.activation(out)
        weights = self._copied("down_proj", indices)
        biases = self._biases("down_proj_bias", indices)
        out = batched_linear(out, weights, biases, is_transposed=self.is_transposed)
        weighted = ops.mul(out, scores.view(num_pairs, 1))
        return ops.to(ops.resample(weighted, num_tokens, weighted.shape[1]), x.dtype)

    def _copied(self, name: str, expert_ids: Tensor) -> Tensor:
        weight = self.weight_of(name)
        return take_rows(weight, expert_ids, (expert_ids.numel, *weight.shape[1:]))

    def _biases(self, name: str, expert_ids: Tensor) -> Tensor | None:
        """The bias of each pair's expert, (S, out): a copy for every pair."""
        if not self.has_bias:
            return None
        bias = self.parameters_by_name[name]
        return take_rows(bias, expert_ids, (expert_ids.numel, bias.shape[1]))

    def _grouped_linear(self, x: Tensor, name: str, biases: Tensor | None) -> Tensor:
        out = grouped_linear(x, self.weight_of(name), is_transposed=self.is_transposed)
        return out if biases is None else added_in_place(out, biases)

    def _gated(self, out: Tensor) -> Tensor:
        half = (out.shape[0], out.shape[1] // 2)
        gate, up = ops.split(out, half, half)
        return ops.mul(self.activation(gate), up)


def added_in_place(x: Tensor, y: Tensor) -> Tensor:
    """``x.add_(y)``: saves nothing; both gradients are g."""
    node = x.tape.node((x, y), _added_backward)
    x.tape.move(2 * x.num_bytes + y.num_bytes)
    return Tensor(x.storage, x.shape, x.dtype, node)


def _added_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    return [g if needed else None for needed in node.needs]


def grouped_linear(x: Tensor, weight: Operand, *, is_transposed: bool = False) -> Tensor:
    """``grouped_mm``: rows of x (S, in), sorted by expert, each times the weight (E, out, in) of its expert.

    Saves x if the weight needs a gradient, the whole weight if x does: as a view, or itself where it ``is_transposed``,
    (E, in, out). It is not part of autocast: x takes the weight's type.
    """
    tape = x.tape
    x = ops.to(x, weight.dtype)
    _, out_width, in_width = weight.shape
    if is_transposed:
        out_width, in_width = in_width, out_width
    kept_weight = weight if isinstance(weight, Parameter) else weight.detached()
    saved = (x.detached() if weight.requires_grad else None, kept_weight if x.requires_grad else None)
    view_of = weight if isinstance(weight, Parameter) and x.requires_grad and not is_transposed else None
    node = tape.node((x, weight), expert_products_backward, saved, (x.shape, weight.shape, x.dtype), view_of)
    out = tape.tensor((x.shape[0], out_width), x.dtype, node)
    weight_bytes = weight.numel * weight.dtype.num_bytes
    tape.matmul(2 * x.shape[0] * in_width * out_width, x.num_bytes + weight_bytes + out.num_bytes, x.dtype)
    return out


def batched_linear(x: Tensor, weights: Tensor, biases: Tensor | None, *, is_transposed: bool) -> Tensor:
    """``_batched_linear``: each row of x (S, in) times its weight of (S, out, in), of which no gradient is asked.
    Autocast casts both."""
    tape = x.tape
    if tape.autocast is not None:
        x, weights = ops.to(x, tape.autocast), ops.to(weights, tape.autocast)
    _, out_width, in_width = weights.shape
    if is_transposed:
        out_width, in_width = in_width, out_width
    out = tape.tensor((x.shape[0], out_width), x.dtype)
    tape.matmul(2 * x.shape[0] * in_width * out_width, x.num_bytes + weights.num_bytes + out.num_bytes, x.dtype)
    return out if biases is None else added_in_place(out, biases)


def expert_products_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """Of rows times the weights of their experts; the weight's gradient comes first."""
    g = ops.only(grads)
    x_shape, weight_shape, dtype = node.meta
    tape = g.tape
    num_experts, width, other_width = weight_shape
    flops = 2 * x_shape[0] * width * other_width
    hbm_bytes = (x_shape[0] * (width + other_width) + num_experts * width * other_width) * dtype.num_bytes
    grad_x = grad_weight = None
    if node.needs[1]:
        grad_weight = tape.gradient(weight_shape, dtype)
        tape.matmul(flops, hbm_bytes, dtype)
    if node.needs[0]:
        grad_x = tape.tensor(x_shape, dtype)
        tape.matmul(flops, hbm_bytes, dtype)
    return (grad_x, grad_weight)


class TopKRouter(AdaptableModule):
    """``MixtralTopKRouter`` and its copies: (logits, scores, indices) of the k experts of each token.

    Probabilities are float32. ``casts_scores``: the scores go back to the model's type (Qwen 3); where they do not
    (Mixtral), what they weight becomes float32 too. ``normalizes``: the k scores sum to one.
    """

    def __init__(
        self, num_experts: int, hidden_size: int, num_per_token: int, *, casts_scores: bool, normalizes: bool = True
    ) -> None:
        self.weight = Parameter(num_experts, hidden_size)
        self.num_per_token, self.casts_scores, self.normalizes = num_per_token, casts_scores, normalizes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = ops.linear(x, self.weight_of("weight"))
        probabilities = ops.softmax(logits if self.casts_scores else ops.to(logits, DType.FLOAT32), DType.FLOAT32)
        scores, indices = top(probabilities, self.num_per_token)
        if self.normalizes:
            scores = normalized_in_place(scores)
        if self.casts_scores:
            scores = ops.to(scores, logits.dtype)
        return logits, scores, indices


def top(x: Tensor, count: int, *, gathers: bool = False) -> tuple[Tensor, Tensor]:
    """``torch.topk(x, count, dim=-1)``: values and indices; saves the indices. ``gathers``: something else has chosen
    them, and ``x.gather(-1, indices)`` takes the values, which saves x too."""
    tape = x.tape
    saved = (x.detached(),) if gathers and x.requires_grad else ()
    node = tape.node((x,), written_anew, saved, (x.shape, x.dtype))
    shape = (*x.shape[:-1], count)
    values, indices = tape.tensor(shape, x.dtype, node), tape.tensor(shape, DType.INT64)
    tape.save(node, indices)
    tape.move(x.num_bytes + values.num_bytes + indices.num_bytes)
    return values, indices


def written_anew(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """A gradient of the shape and type in ``meta``, which one kernel writes from g: it gathers, sums or copies."""
    g = ops.only(grads)
    out = g.tape.tensor(*node.meta)
    g.tape.move(g.num_bytes + out.num_bytes)
    return (out,)


def chosen_by(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """What ``count`` experts are chosen by, scores with a bias added, and the largest of these. No gradient comes back
    to either; a router holds them as long as its names for them."""
    biased = scores.tape.tensor(scores.shape, scores.dtype)
    largest = scores.tape.tensor((*scores.shape[:-1], count), scores.dtype)
    scores.tape.move(3 * biased.num_bytes)
    return biased, largest


def normalized_in_place(x: Tensor) -> Tensor:
    """``x /= x.sum(dim=-1, keepdim=True)``: saves the sum and, as the division is in place, a copy of x."""
    tape = x.tape
    before, total = tape.tensor(x.shape, x.dtype), tape.tensor((*x.shape[:-1], 1), x.dtype)
    node = tape.node((x,), _normalized_backward, (before, total), (x.shape, x.dtype))
    tape.move(4 * x.num_bytes)
    return Tensor(x.storage, x.shape, x.dtype, node)


def _normalized_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    out = g.tape.tensor(*node.meta)
    g.tape.move(4 * out.num_bytes)
    return (out,)


class SparseMoeBlock(Module):
    """``MixtralSparseMoeBlock`` and its copies: route, then run the experts. Mixtral registers the router first."""

    def __init__(self, gate: Module, experts: Experts, *, registers_gate_first: bool) -> None:
        if registers_gate_first:
            self.gate: Any = gate
        self.experts: Any = experts
        if not registers_gate_first:
            self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        flat = x.view(x.numel // width, width)
        _, scores, indices = self.gate(flat)
        return self.experts(flat, indices, scores).view(*x.shape)


class LeafMoeBlock(LeafModule, SparseMoeBlock):
    """The blocks of Mixtral and Qwen3-MoE, which DeepSpeed knows by their classes."""


class MoeDecoderLayer(DecoderLayer):
    """``MixtralDecoderLayer`` and its copies: a Llama layer with a mixture of experts for an MLP."""

    def __init__(self, shape: DecoderShape, block: SparseMoeBlock, window: int | None = None) -> None:
        super().__init__(shape, window)
        self.mlp = block


CHOOSE_TO_NORMALIZE = ("mellum", "qwen3_moe", "qwen3_omni_moe_text")


def moe_block(config: Config, shape: DecoderShape) -> SparseMoeBlock:
    """The mixture of experts of a text configuration (mellum, mixtral, qwen3_moe, qwen3_omni_moe_text,
    qwen3_vl_moe_text)."""
    is_mixtral = config.model_type == "mixtral"
    num_experts = config.integer("num_experts")
    width = config.integer("intermediate_size" if is_mixtral else "moe_intermediate_size")
    gate = TopKRouter(
        num_experts,
        shape.hidden_size,
        config.integer("num_experts_per_tok"),
        casts_scores=not is_mixtral,
        # The key is Qwen3-MoE's, its Omni's and Mellum's; the others normalise always.
        normalizes=config.model_type not in CHOOSE_TO_NORMALIZE or config.boolean("norm_topk_prob"),
    )
    experts = Experts(num_experts, shape.hidden_size, width, activation=shape.activation)
    block = LeafMoeBlock if config.model_type in ("mixtral", "qwen3_moe") else SparseMoeBlock
    return block(gate, experts, registers_gate_first=is_mixtral)


def moe_layers(config: Config, shape: DecoderShape) -> Stack:
    """The layers of a decoder: every ``decoder_sparse_step``-th has experts, but for ``mlp_only_layers``."""
    window = shape.windows[0] if shape.windows else None
    is_sparse = has_experts(config, shape.num_layers)
    kinds: list[Module] = []
    if True in is_sparse:
        kinds.append(MoeDecoderLayer(shape, moe_block(config, shape), window))
    if False in is_sparse:
        kinds.append(DecoderLayer(shape, window))
    return Stack(kinds, [0 if sparse else len(kinds) - 1 for sparse in is_sparse], label="layers")


def has_experts(config: Config, num_layers: int) -> list[bool]:
    """Whether each layer has experts: every ``decoder_sparse_step``-th, but for ``mlp_only_layers``."""
    dense_layers = config.integers("mlp_only_layers")
    step = config.integer("decoder_sparse_step", 1)
    return [index not in dense_layers and (index + 1) % step == 0 for index in range(num_layers)]


def sparse_by_name(config: Config, *, num_dense: int = 1) -> list[bool]:
    """Whether each layer has experts: by ``mlp_layer_types``, else all behind the first ``num_dense`` ones."""
    num_layers = config.integer("num_hidden_layers")
    types = config.names_by_layer("mlp_layer_types")
    if types is None:
        return [index >= num_dense for index in range(num_layers)]
    if not set(types) <= {DENSE, SPARSE}:
        raise not_allowed(CONFIG, "mlp_layer_types", sorted(set(types)), f"names out of {DENSE} and {SPARSE}")
    return [name == SPARSE for name in types]
