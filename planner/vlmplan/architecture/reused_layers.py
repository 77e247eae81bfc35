"""What a layer that is run once for all equal ones of its stack takes and gives (``first_layer``)."""

from collections.abc import Sequence
from sys import getrefcount

from vlmplan.architecture.first_layer import FirstLayer, UnequalLayersError
from vlmplan.architecture.storage import LayerInput
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.architecture.trace import Kind

ONE_HOLDER = 2
"""``sys.getrefcount`` of what one object refers to: its own argument counts."""


def first_layer_input(x: Tensor) -> Tensor:
    """``x`` as the first layer of a stack, the running section, gets it: its release is noted."""
    tape = x.tape
    tape.num_nodes += 1
    first = FirstLayer(tape.num_nodes)
    tape.watch(first)
    storage = LayerInput()
    storage.tape, storage.kind, storage.born = tape, x.storage.kind, first.start
    storage.num_bytes, storage.whole = x.storage.num_bytes, x.storage
    layer_input = Tensor(storage, x.shape, x.dtype, x.node)
    layer_input.output_index = x.output_index
    return layer_input


def reuse_layer(key: str, layer_input: Tensor, result: Tensor) -> None:
    """Reuse the layer that has just run for the later ones of section ``key``, if ``result`` is like its input.

    It is not where something else holds the result: then its own layer saves it, as no first layer saves its input.
    """
    if _is_like(layer_input, result) and getrefcount(result.storage) == ONE_HOLDER:
        tape = result.tape
        tape.reuse_layer_for(key, result.storage.num_bytes, result.storage.kind)
        if layer_input.node is not None:
            tape.note_source(layer_input.node)


def copy_of_result(result: Tensor, *, is_used_apart: bool) -> Tensor:
    """The result of a layer that was not run, made from ``result`` of the equal one that was.

    Where the caller alone holds it, it is a storage of its own, freed with its holder; the layer's section has
    counted its allocation already. ``is_used_apart``: something computes with it besides the next layer.
    """
    tape, node = result.tape, None
    if is_used_apart and result.node is not None:
        node = GraphNode((), (), (), _end_gradient, None)
        tape.num_nodes += 1
        node.sequence, node.section = tape.num_nodes, result.node.section
    if getrefcount(result.storage) != ONE_HOLDER:
        return result if node is None else Tensor(result.storage, result.shape, result.dtype, node)
    storage = tape.counted(result.storage.num_bytes)
    storage.kind, storage.born = result.storage.kind, result.storage.born
    return Tensor(storage, result.shape, result.dtype, node)


def _end_gradient(node: GraphNode, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
    """The gradient of a result that a layer that was not run has made: the section of the equal one that was says what
    becomes of it. Raises UnequalLayersError where that section does not hold it too."""
    if any(grad is not None and getrefcount(grad.storage) == ONE_HOLDER for grad in grads):
        raise UnequalLayersError
    return ()


def layers_result(x: Tensor) -> Tensor:
    """x, the result of a stack's last layer, where the head takes it as it is: its gradient, which the loss has charged
    to logits, is from here on what the gradients of other layers' results are."""
    with x.tape.section("result"):
        return Tensor(x.storage, x.shape, x.dtype, x.tape.node((x,), _as_activation))


def _as_activation(node: GraphNode, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
    (g,) = grads
    if g is not None:
        g.storage.charge_to(Kind.ACTIVATION)
    return (g,)


def _is_like(x: Tensor, y: Tensor) -> bool:
    """Whether a layer that takes x does the same with y; ZeRO-3 asks which module a gradient goes to."""
    if (x.shape, x.dtype, x.storage.num_bytes) != (y.shape, y.dtype, y.storage.num_bytes):
        return False
    if x.node is None or y.node is None:
        return x.node is y.node
    enclosing = x.tape.modules[-1:]
    return ([x.node.module] == enclosing) is ([y.node.module] == enclosing)
