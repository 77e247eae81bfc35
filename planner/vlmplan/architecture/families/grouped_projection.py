"""A projection whose rows are cut into groups, each with a block of the weight of its own: DeepSeek-V4's first output
projection.

Source: transformers 5.23 ``models/deepseek_v4/modeling_deepseek_v4.py`` (``DeepseekV4GroupedLinear``). Its class
derives from ``nn.Linear``, so that peft takes it for one and fails: the adapter of a whole Linear gives each group what
all groups together have.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.modules import DerivedLinear
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor


class GroupedLinear(DerivedLinear):
    """``DeepseekV4GroupedLinear``: x (batch, tokens, groups, in) to (batch, tokens, groups, out)."""

    def __init__(self, in_per_group: int, out_per_group: int, num_groups: int) -> None:
        super().__init__(in_per_group, num_groups * out_per_group)
        self.num_groups, self.out_per_group = num_groups, out_per_group
        self.weight.meets_autocast = False  # as a view, whose casts autocast does not keep

    def forward(self, x: Tensor) -> Tensor:
        batch, num_tokens, num_groups, _ = x.shape
        tape, inner, rank = x.tape, self.in_features, self.out_per_group
        weight, view_of = blocks(self.weight, (num_groups, inner, rank), tape), self.weight
        if tape.autocast is not None:
            weight = ops.to(weight, tape.autocast)
            x = ops.to(x, tape.autocast)
            view_of = None if weight.dtype is not self.weight.dtype else self.weight
        out = ops.matmul(x, weight, (num_groups, batch * num_tokens, rank), inner, view_of=view_of)
        return out.view(batch, num_tokens, num_groups, rank)


def blocks(weight: Parameter, shape: tuple[int, int, int], tape: ForwardTape) -> Tensor:
    """``weight.view(groups, out, in).transpose(1, 2)``: a view; its gradient is copied into the order of the weight."""
    node = tape.node((weight,), _blocks_backward, meta=weight.shape)
    return Tensor(tape.tensor((0,), weight.dtype).storage, shape, weight.dtype, node)


def _blocks_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    out = g.tape.gradient(node.meta, g.dtype)
    g.tape.move(2 * out.num_bytes)
    return (out,)
