"""An MLP on a tile of the tokens at a time: forward keeps its input alone, and backward runs each tile again.

Source: deepspeed 0.19.8, ``TiledMLP`` in ``runtime/sequence_parallel/ulysses_sp.py``. There are as many tiles as the
tokens of a sample are wide, ceil(tokens / width), as Arctic Long Sequence Training has them, so that a tile is at most
as long as it is wide (Bekman et al. 2025, arXiv 2506.13996, section 3.1.1). What that does, with T tokens of width h,
inner width f, n tiles and 16-bit elements:

- forward, without a graph: the results of all tiles and their concatenation (4hT), and of one tile at a time what the
  MLP makes of it, instead of about 6fT;
- kept for backward: the input;
- backward: the gradient of the input (2hT), filled tile by tile. Every tile runs forward again, with a graph, so that
  under activation checkpointing an MLP runs forward three times;
- gradients of weights: each tile makes whole ones, which are added to that of the first tile. DeepSpeed's hooks take no
  notice until the last one (``ds_grad_is_ready``);
- under ZeRO-3 every tile fetches and releases the weights, forward and backward. Frozen ones that are fetched while
  backward runs stay until the backward of the MLP is over (``update_recompute_parameters``).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from vlmplan.architecture.ops import only
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.architecture.trace import WHOLE, GradientPart
from vlmplan.recipe.choices import num_tiles

RUN_FIRST, RUN_LAST = 2, 2
"""Tiles that are not like others, see ``_run_tiles``."""


def tiled(mlp: Any, x: Tensor) -> Tensor:
    """``TiledMLP.apply`` of a module whose ``forward`` takes x (samples, tokens, width) and returns its like."""
    tape = x.tape
    batch, num_tokens, width = x.shape
    count = num_tiles(num_tokens, width)
    if count == 1:
        return mlp.forward(x)
    trained = next((weight for _, weight in mlp.named_parameters() if weight.requires_grad), None)
    # An input without a gradient gets one where the MLP is trained, or its weights would not (the trainer's tiling.py).
    source = x if x.requires_grad else trained
    tape.enter_block()
    parts: list[Tensor] = []
    outside, tape.has_no_graph = tape.has_no_graph, True

    def run(num_rows: int) -> None:
        parts.append(mlp.forward(Tensor(x.storage, (batch, num_rows, width), x.dtype)))

    more = _run_tiles(tape, num_tokens, count, lambda place, num_rows: run(num_rows))
    others = tape.counted(more * parts[0].num_bytes) if more else None
    tape.has_no_graph = outside
    node = tape.node((source,), _tiled_backward, meta=(mlp, count))
    out = tape.tensor(x.shape, x.dtype, node)
    tape.move(2 * out.num_bytes)
    parts.clear()
    del others
    tape.save(node, x)
    tape.leave_block()
    return out


def _run_tiles(tape: Any, num_rows: int, count: int, run: Callable[[int, int], None]) -> int:
    """``run(place, rows)`` for each tile; how many of them were counted as often as one that ran.

    The first makes gradients, the second is the first behind another, the last is shorter, and beside the one before it
    most results are there. Those between are all alike: one is run for them, unless every storage is followed.
    """
    sizes = [stop - start for start, stop in _tiles(num_rows, count)]
    alike = range(RUN_FIRST, len(sizes) - RUN_LAST)
    repeats = len(alike) > 1 and not tape.runs_every_call
    for place, size in enumerate(sizes):
        if repeats and place == alike.start:
            tape.repeat(partial(run, place, size), len(alike))
        elif not repeats or place not in alike:
            run(place, size)
    return len(alike) - 1 if repeats else 0


def _tiles(num_rows: int, count: int) -> Iterator[tuple[int, int]]:
    """The begin and end of each tile, as ``torch.chunk`` cuts."""
    step = -(-num_rows // count)
    return ((start, min(start + step, num_rows)) for start in range(0, num_rows, step))


def _tiled_backward(node: GraphNode, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
    g = only(grads)
    mlp, count = node.meta
    (x,) = node.saved
    assert isinstance(x, Tensor)
    tape: Any = g.tape
    grad_x = tape.tensor(x.shape, x.dtype)
    tape.move(grad_x.num_bytes)
    width, num_rows = x.shape[-1], x.numel // x.shape[-1]
    last = len(list(_tiles(num_rows, count))) - 1
    held: list[Tensor] = []

    def run(place: int, size: int) -> None:
        shape = (size, width)
        leaf = GraphNode((), (), (), _added, grad_x)
        leaf.section, leaf.sequence = node.section, -1
        with tape.graph_of_its_own() as attached:
            out = mlp.forward(Tensor(x.storage, shape, x.dtype, leaf))
        held[:] = [out.detached(), *attached]  # the result of the tile before, and its graph, live until here
        del attached
        root, index = out.node, out.output_index
        del out
        tape.gradient_part = GradientPart(is_first=place == 0, is_last=place == last)
        tape.backpropagate(root, [Tensor(g.storage, shape, g.dtype)], index)
        tape.gradient_part = WHOLE

    outside, tape.frees_saved = tape.frees_saved, False
    with tape.holding_frozen_weights():
        _run_tiles(tape, num_rows, count, run)
    tape.frees_saved = outside
    return (None if isinstance(node.inputs[0], Parameter) else grad_x,)


def _added(node: GraphNode, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
    """The gradient of a tile is added to its place in that of the input."""
    g = only(grads)
    g.tape.move(3 * g.num_bytes)
    return ()
