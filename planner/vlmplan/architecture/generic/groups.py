"""The modules of a model without a family of its own, and how weights of unknown use enter the computation.

A group knows the Linears and norms that it runs itself; ``layers`` says in which order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from vlmplan.architecture import ops
from vlmplan.architecture.families.moe import grouped_linear
from vlmplan.architecture.indexing import take_rows
from vlmplan.architecture.modules import Module
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.parameter_adapters import AdaptableModule
from vlmplan.architecture.tensor import GraphNode, Operand, Tensor
from vlmplan.units import DType


class Role(Enum):
    ATTENTION = "attention"
    EXPERTS = "experts"
    EXPERT_LIST = "list of experts"
    LIST = "list"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class LinearOrNorm:
    """A Linear, or a norm (``in_width`` equal to ``out_width``, 0 for any), by its path below a group."""

    path: tuple[str, ...]
    is_norm: bool
    in_width: int
    out_width: int


class BareNorm(Module):
    """A norm without weights, in float32 (OLMo)."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = ops.to(x, DType.FLOAT32)
        variance = ops.mean_last(ops.power(hidden))
        return ops.to(ops.mul(hidden, ops.unary(ops.shift(variance), saves_output=True)), x.dtype)


class Group(AdaptableModule):
    """A module with modules inside. They are known by name only, because any attribute of ours may be a name there.

    ``steps`` are the Linears and norms that it runs itself, ``blocks`` the names of the groups that it runs.
    """

    def __init__(
        self,
        children: Mapping[str, Module],
        parameters: Mapping[str, Parameter],
        role: Role,
        steps: Sequence[LinearOrNorm],
    ) -> None:
        self.modules_by_name.update(children)
        self.parameters_by_name.update(parameters)
        self.role, self.steps = role, tuple(steps)
        self.blocks = tuple(name for name, child in children.items() if isinstance(child, Group) and child.computes)

    @property
    def computes(self) -> bool:
        """Whether there is a product inside."""
        return bool(self.blocks) or self.role is Role.EXPERTS or any(not step.is_norm for step in self.steps)

    def replace(self, name: str, module: Module) -> None:
        self.modules_by_name[name] = module

    def at(self, path: Sequence[str]) -> Module:
        """The module at a path of names."""
        module: Module = self
        for name in path:
            module = module.modules_by_name[name]
        return module


class EmbeddingGroup(Group):
    """An embedding with modules inside, such as a norm of its rows."""

    def __init__(self, children: Mapping[str, Module], parameters: Mapping[str, Parameter]) -> None:
        super().__init__(children, parameters, Role.OTHER, ())

    @property
    def weight(self) -> Parameter:
        return self.parameters_by_name["weight"]

    def forward(self, ids: Tensor) -> Tensor:
        x = ops.embedding(ids, self.weight)
        return use_rest(x, self, {id(self)})


class ExpertsGroup(Group):
    """The MLPs of many experts in three-dimensional weights (experts, out, in), the last of which leads back."""

    def __init__(self, parameters: Mapping[str, Parameter], *, experts_per_token: int, activation: str) -> None:
        super().__init__({}, parameters, Role.EXPERTS, ())
        self.experts_per_token, self.activation = experts_per_token, activation
        for weight in self._stacked().values():
            weight.meets_autocast = False  # of grouped products, and a loop's are of slices, which are no leaves

    def _stacked(self) -> dict[str, Parameter]:
        return {name: weight for name, weight in self.parameters_by_name.items() if len(weight.shape) == 3}

    def forward(self, x: Tensor) -> Tensor:
        """The experts' MLPs over the tokens sent to them."""
        width = x.shape[-1]
        num_rows = x.numel // width * self.experts_per_token
        flat, rows = x.view(x.numel // width, width), x.tape.tensor((num_rows,), DType.INT64)
        weights = self._stacked()
        *first, last = weights
        selected = take_rows(flat, rows, (num_rows, width))
        made = [grouped_linear(selected, self.weight_of(name)) for name in first]
        del selected
        gated = joined(made, weights[last].shape[2], x, self.activation)
        out = ops.resample(grouped_linear(gated, self.weight_of(last)), *x.shape, saves_input=True)
        rest = [weight for weight in self.parameters_by_name.values() if len(weight.shape) != 3]
        return use(out, *rest, *made)


# -- joining what is left over ---------------------------------------------------------------------------------------


def use(x: Tensor, *operands: Operand) -> Tensor:
    """x as a result of ``operands`` too: they get gradients of their size, and nothing is saved."""
    if not operands:
        return x
    node = x.tape.node((x, *operands), _use_backward, meta=[(operand.shape, operand.dtype) for operand in operands])
    return Tensor(x.storage, x.shape, x.dtype, node)


def _use_backward(node: GraphNode, grads: Grads) -> Grads:
    g = ops.only(grads)
    results: list[Tensor | None] = [g if node.needs[0] else None]
    for needed, edge, described in zip(node.needs[1:], node.inputs[1:], node.meta, strict=True):
        make = g.tape.gradient if isinstance(edge, Parameter) else g.tape.tensor
        results.append(make(*described) if needed else None)
    return results


def keep_bytes(x: Tensor, num_kept: int, num_passing: int) -> Tensor:
    """x, for which so many bytes more are saved for backward, and so many allocated in backward alone."""
    if not num_kept and not num_passing:
        return x
    kept = x.tape.tensor((num_kept,), DType.UINT8) if num_kept else None
    node = x.tape.node((x,), _keep_backward, saved=(kept,), meta=num_passing)
    return x if node is None else Tensor(x.storage, x.shape, x.dtype, node)


def _keep_backward(node: GraphNode, grads: Grads) -> Grads:
    g = ops.only(grads)
    passing = g.tape.tensor((node.meta,), DType.UINT8)
    del passing
    return [g]


def use_rest(x: Tensor, module: Module, used: set[int]) -> Tensor:
    """x, with every weight inside ``module`` that was not used yet joined to it."""
    for _, part in module.named_modules():
        x = use_own(x, part, used)
    return x


def use_own(x: Tensor, module: Module, used: set[int]) -> Tensor:
    """x, with the module's own weights joined to it unless they were used."""
    weights = [] if id(module) in used else list(module.parameters_by_name.values())
    used.add(id(module))
    if weights:
        tape = x.tape
        tape.modules.append(module)
        tape.fetch(module)
        x = use(x, *weights)
        tape.release(module)
        tape.modules.pop()
    return x


def joined(made: list[Tensor], width: int, x: Tensor, activation: str) -> Tensor:
    """What the last Linear of an MLP reads, ``width`` wide: an activation times a value, or the activation alone.

    Takes what it uses out of ``made``. Where nothing fits, it is of x's rows.
    """
    act = ops.ACTIVATIONS.get(activation, ops.silu)
    equal = [index for index, tensor in enumerate(made) if tensor.shape[-1] == width]
    if len(equal) > 1:
        value = made.pop(equal[1])
        return ops.mul(act(made.pop(equal[0])), value)
    if equal:
        return act(made.pop(equal[0]))
    wider = [index for index, tensor in enumerate(made) if tensor.shape[-1] > width]
    if not wider:
        return ops.resample(x, *x.shape[:-1], width)
    both = made.pop(wider[0])
    half = (*both.shape[:-1], width)
    if both.shape[-1] == 2 * width:
        gate, value = ops.split(both, half, half)
        return ops.mul(act(gate), value)
    return act(ops.part(both, *half))
