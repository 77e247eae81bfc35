"""Operations of torch, by the names that they have under autograd, on symbolic tensors.

What each saves is what ``tools/autograd/derivatives.yaml`` of torch 2.13 says, as in ``architecture/ops``.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

from vlmplan.architecture import ops
from vlmplan.architecture.captured import tensors
from vlmplan.architecture.captured.program import Instruction, Program, flat
from vlmplan.architecture.families.moe import grouped_linear
from vlmplan.architecture.indexing import sample_rows, sum_rows
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import ForwardTape, Operand, Tensor
from vlmplan.units import DType

Operands = list[Operand | None]
"""What an operation takes, those of its lists among them; None for what is left out of a program."""
Result = Tensor | list[Tensor]


class Call:
    """One operation with its operands: ``shape`` and ``dtype`` are those of its first result."""

    __slots__ = ("dtype", "instruction", "operands", "shape", "tape")

    def __init__(self, tape: ForwardTape, instruction: Instruction, operands: Operands, dtype: DType) -> None:
        self.tape, self.instruction, self.operands, self.dtype = tape, instruction, operands, dtype
        self.shape = instruction.outputs[0].sizes

    def tensor(self, index: int = 0) -> Tensor:
        """An operand as a tensor: a weight as a view, what is left out as a new one of the result's shape."""
        operand = self.operands[index] if index < len(self.operands) else None
        if isinstance(operand, Parameter):
            return tensors.weight_view(operand, operand.shape, self.tape)
        return self.tape.tensor(self.shape, self.dtype) if operand is None else operand

    def whole(self, index: int = 0) -> Tensor:
        """An operand in the shape of the result, over which it is broadcast."""
        x = self.tensor(index)
        return x if x.numel == prod(self.shape) else tensors.expand(x, *self.shape)

    @property
    def floats(self) -> list[Operand]:
        return [one for one in self.operands if one is not None and one.dtype.is_floating]


def _binary(call: Call, function: Callable[[Tensor, Operand], Tensor]) -> Tensor:
    """An operation of two operands. With a number for one of them the gradient is a new tensor; of two tensors the
    larger comes first."""
    if len(call.floats) < 2:
        return ops.scale(_only(call))
    first, second = call.floats[:2]
    if not isinstance(first, Tensor) or first.numel < second.numel:
        first, second = second, first
    if not isinstance(first, Tensor):
        first = tensors.weight_view(first, first.shape, call.tape)
    if first.numel != prod(call.shape):
        first = tensors.expand(first, *call.shape)
    return _shaped(function(first, second), call.shape)


def _only(call: Call) -> Tensor:
    """The one operand that is a tensor."""
    index = next(place for place, one in enumerate(call.operands) if one is not None and one.dtype.is_floating)
    return call.whole(index)


def _shaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x if x.shape == shape else x.view(*shape)


def _add(call: Call) -> Tensor:
    if len(call.floats) < 2:
        return ops.shift(_only(call))
    return _binary(call, ops.add)


def _subtract(call: Call) -> Tensor:
    return _binary(call, lambda x, y: ops.subtract(x, y) if isinstance(y, Tensor) else ops.add(x, y))


def _unary(call: Call, *, saves_input: bool = False, saves_output: bool = False) -> Tensor:
    return ops.unary(_only(call), saves_input=saves_input, saves_output=saves_output)


def _copied(call: Call) -> Tensor:
    x = call.tensor()
    if not x.dtype.is_floating or not call.dtype.is_floating or x.dtype is call.dtype:
        return ops.copy(x, *call.shape)
    return _shaped(ops.to(x, call.dtype), call.shape)


def _cloned(call: Call) -> Tensor:
    """A copy in the element type that the tensor has: autocast's where that of the captured model is the weights'."""
    return ops.copy(call.tensor(), *call.shape)


def _moved(call: Call, *, saves_input: bool = False) -> Tensor:
    """What puts elements elsewhere: the result and the gradient are new tensors."""
    return ops.resample(_first(call), *call.shape, saves_input=saves_input)


def _first(call: Call) -> Tensor:
    index = next((place for place, one in enumerate(call.operands) if one is not None and one.dtype.is_floating), 0)
    return call.tensor(index)


def _product(call: Call) -> Tensor:
    """``addmm`` and ``mm``: of a view of a weight, or of two tensors."""
    *added, x, y = [call.tensor(index) for index in range(len(call.operands))]
    bias = added[0] if added else None
    return ops.linear(x, y, bias, is_transposed=True)


def _batched_product(call: Call) -> Tensor:
    """Autocast casts for it (``bmm`` and ``baddbmm`` in ``aten/src/ATen/autocast_mode.h``)."""
    parts = [call.tensor(index) for index in (-2 + len(call.operands), -1 + len(call.operands))]
    x, y = parts if call.tape.autocast is None else [ops.to(part, call.tape.autocast) for part in parts]
    return ops.matmul(x, y, call.shape, x.shape[-1])


def _joined(call: Call) -> Tensor:
    parts = [call.tensor(index) for index, one in enumerate(call.operands) if one is not None]
    return ops.concatenate(parts, call.shape) if parts else call.tape.tensor(call.shape, call.dtype)


def _embedding(call: Call) -> Tensor:
    weight, ids = (*call.operands, None)[:2]
    assert weight is not None
    if not isinstance(ids, Tensor):
        ids = call.tape.tensor(call.shape[:-1], DType.INT64)
    return ops.embedding(ids, weight)


def _embedding_bag(call: Call) -> Tensor:
    weight, ids = call.tensor(), call.operands[1]
    count = int(call.instruction.values["ids_per_bag"]) * call.shape[0]
    if not isinstance(ids, Tensor):
        ids = call.tape.tensor((count,), DType.INT64)
    weights = call.operands[3] if len(call.operands) > 3 else None
    if not isinstance(weights, Tensor):
        weights = call.tape.tensor((count,), call.dtype)
    return sum_rows(weight, ids, weights, call.shape[0])


def _grid_sample(call: Call) -> Tensor:
    """``F.grid_sample``: what is left out is where each of its points lies, two numbers."""
    grid = call.operands[1] if len(call.operands) > 1 else None
    if not isinstance(grid, Tensor):
        grid = call.tape.tensor((prod(call.shape) // call.shape[1], 2), call.dtype)
    return sample_rows(call.tensor(), grid, call.shape)


def _grouped_product(call: Call) -> Tensor:
    """``grouped_mm``: of the rows that each expert has, and its weight as a view, (experts, in, out)."""
    return grouped_linear(call.tensor(0), call.tensor(1), is_transposed=True)


def _layer_norm(call: Call) -> Tensor:
    weight, bias = (one if isinstance(one, Parameter) else None for one in (*call.operands[1:], None, None)[:2])
    if weight is None:
        return ops.grouped_norm(call.tensor(), None, None, prod(call.shape[:-1]))
    return ops.layer_norm(call.tensor(), weight, bias)


def _group_norm(call: Call) -> Tensor:
    weight, bias = (one if isinstance(one, Parameter) else None for one in (*call.operands[1:], None, None)[:2])
    groups = call.instruction.outputs[1].sizes if len(call.instruction.outputs) > 1 else call.shape[:2]
    return ops.grouped_norm(call.tensor(), weight, bias, prod(groups))


def _convolution(call: Call) -> Tensor:
    x, weight, bias = (*call.operands, None)[:3]
    assert isinstance(x, Tensor)
    assert weight is not None
    return ops.convolution(x, weight, bias, call.shape)


def _chosen(call: Call) -> Tensor:
    parts = [call.whole(index) for index, one in enumerate(call.operands) if one is not None and one.dtype.is_floating]
    return tensors.choice(parts, call.shape)


def _largest(call: Call) -> list[Tensor]:
    """``max(dim)`` and ``topk``: the indices are saved, the gradient is one of x's size."""
    made = ops.resample(_first(call), *call.shape)
    return [made, *(call.tape.tensor(output.sizes, DType.INT64) for output in call.instruction.outputs[1:])]


def _dropped(call: Call) -> Tensor:
    return ops.dropout(call.tensor(), float(call.instruction.values.get("probability", 0.0)))


def _softmax(call: Call) -> Tensor:
    x = call.tensor()
    return ops.softmax(x, call.dtype)


def _in_place(call: Call, *, replaces: bool) -> Tensor:
    x, others = call.tensor(), [one for one in call.operands[1:] if isinstance(one, Tensor) and one.dtype.is_floating]
    return tensors.into(x, others[0] if others else None, replaces=replaces)


_SAVES_INPUT = ("abs", "cos", "elu", "erf", "gelu", "hardswish", "leaky_relu", "log", "mish", "silu", "sin", "softplus")
_SAVES_OUTPUT = ("exp", "reciprocal", "relu", "rsqrt", "sigmoid", "sqrt", "tanh")
_SAVES_NOTHING = ("neg", "masked_fill")
_MOVES = (
    *("_adaptive_avg_pool2d", "constant_pad_nd", "cumsum", "flip", "gather", "im2col", "index", "index_select"),
    *("linalg_vector_norm", "repeat", "repeat_interleave", "roll", "slice_scatter", "unfold"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "upsample_bicubic2d", "upsample_bilinear2d"),
    *("upsample_nearest2d", "upsample_nearest1d", "upsample_linear1d", "_upsample_nearest_exact2d", "pixel_shuffle"),
)
OPERATIONS: Mapping[str, Callable[[Call], Result]] = {
    **dict.fromkeys(_SAVES_INPUT, partial(_unary, saves_input=True)),
    **dict.fromkeys(_SAVES_OUTPUT, partial(_unary, saves_output=True)),
    **dict.fromkeys(_SAVES_NOTHING, _unary),
    **dict.fromkeys(_MOVES, _moved),
    **dict.fromkeys(("avg_pool2d", "avg_pool1d"), partial(_moved, saves_input=True)),
    **dict.fromkeys(("max", "topk", "max_pool2d_with_indices", "sort"), _largest),
    **dict.fromkeys(("add_", "sub_"), partial(_in_place, replaces=False)),
    **dict.fromkeys(
        ("copy_", "fill_", "index_put_", "masked_fill_", "masked_scatter_", "mul_"), partial(_in_place, replaces=True)
    ),
    **dict.fromkeys(("cat", "stack"), _joined),
    **dict.fromkeys(("clone", "contiguous"), _cloned),
    **dict.fromkeys(("addmm", "mm"), _product),
    **dict.fromkeys(("bmm", "baddbmm"), _batched_product),
    **dict.fromkeys(("native_group_norm", "native_batch_norm"), _group_norm),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), lambda call: ops.clamp(_only(call), num_limits=1)),
    **dict.fromkeys(("sum",), lambda call: ops.total(_first(call), call.shape)),
    "_grouped_mm": _grouped_product,
    "_softmax": _softmax,
    "_to_copy": _copied,
    "add": _add,
    "as_strided_": lambda call: _shaped(call.tensor(), call.shape),  # pooling to one value has its strides changed
    "convolution": _convolution,
    "div": partial(_binary, function=ops.mul),
    "embedding": _embedding,
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _embedding_bag),
    "grid_sampler_2d": _grid_sample,
    "mean": lambda call: tensors.average(_first(call), *call.shape),
    "mul": partial(_binary, function=ops.mul),
    "native_dropout": _dropped,
    "native_layer_norm": _layer_norm,
    "pow": lambda call: ops.power(_only(call)),
    "rsub": _subtract,
    "sub": _subtract,
    "where": _chosen,
}
"""Each with the results that a gradient goes through; further ones are statistics, which the operation keeps itself."""


_CALLS = ("attend", "call", "linear")
"""Are described where a program is run."""
_MADE = ("empty_like", "full_like", "ones_like", "rand_like", "randn_like", "zeros_like")
"""Are made anew of a shape, and no gradient goes through them."""


def unknown_operations(program: Program) -> list[str]:
    """Names of operations that make new floats of others and are not described here: what they save is not known."""
    names = (one.op for one in program.instructions if one.op not in _CALLS and _makes_floats(one))
    return sorted({name for name in names if name not in OPERATIONS and name not in _MADE})


def _makes_floats(one: Instruction) -> bool:
    """Whether something of an operation's operands may be saved: it is no view, and takes and makes floats."""
    first = one.outputs[0] if one.outputs else None
    if first is None or not any(operand is not None for operand in flat(one.inputs)):
        return False
    is_view = first.of is not None and first.of != first.slot
    return not is_view and "float" in first.dtype


def run_operation(call: Call, dtypes: Sequence[DType]) -> list[Tensor]:
    """The results of an operation that makes new tensors, of element types ``dtypes``."""
    outputs = call.instruction.outputs
    described = [(output.sizes, dtype) for output, dtype in zip(outputs, dtypes, strict=True)]
    if not call.dtype.is_floating or not call.floats:
        return [call.tape.tensor(*one) for one in described]
    if call.instruction.op in _MADE:
        return [call.tape.tensor(*one) for one in described]
    made = OPERATIONS[call.instruction.op](call)
    results = made if isinstance(made, list) else [made]
    assert results[0].shape == call.shape, (call.instruction, results[0].shape)
    return results
