"""Every operation of a forward that comes from images, as instructions that the planner runs on its own tensors.

What comes from tokens alone is left out: the planner knows the language model. Where something of the images meets
something of the tokens, it *enters*. Results that are small and come from no weight and no pixel (positions, counts)
are left out too. Bytes live as long as Python refers to them: each instruction says what was freed behind it.
"""

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from vlmplan_trainer.rehearse.dispatch import Rehearsal
from vlmplan_trainer.rehearse.ledger import Ledger

SMALL_BYTES, SMALL_INTEGERS = 1 << 14, 1 << 18
"""Bytes of each sample up to which results that come from no weight and no pixel are left out, and integers whatever
they come from. A choice: a hundredth of what one layer of the smallest tower keeps, and of what all of them do."""
MODEL_DTYPE = torch.bfloat16
"""The element type of the captured model: whatever has it has the model's own in a plan."""
EMBEDDING_BAGS = ("_embedding_bag", "_embedding_bag_forward_only")
IGNORED = ("prim::device", "aten::_local_scalar_dense", "aten::is_pinned")

Shapes = frozenset[tuple[int, ...]]
Operand = int | str | None | list["int | str | None"]
"""The number of a result, the name of a weight, nothing (what is left out), or a list of them."""


@dataclass(slots=True)
class Output:
    """A result by its number. ``of``: the operand whose storage it shares."""

    slot: int
    shape: tuple[int, ...]
    dtype: str
    of: int | str | None = None


@dataclass(slots=True)
class Instruction:
    """``op``: the name of an operation of torch, or ``call``, ``attend``, ``enter``, ``begin``, ``end``, ``layer``,
    ``end_layer``, ``language``."""

    op: str
    inputs: list[Operand] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    freed: list[int] = field(default_factory=list)


class Capture(Rehearsal):
    """``names``: of the model's weights by ``id``; None of its buffers, which need no gradient."""

    def __init__(
        self, fake_mode: FakeTensorMode, ledger: Ledger, ids_shape: tuple[int, int], constants: Shapes = frozenset()
    ) -> None:
        """``ids_shape``: samples, tokens of each; ``constants``: shapes of what one sample has by itself (``made``)."""
        super().__init__(fake_mode, ledger, lambda: "")
        self._num_samples, self._num_tokens = ids_shape
        self._constants = constants
        self.made: set[tuple[int, ...]] = set()
        """Shapes of results that come from no pixel. Those that are so of one sample are of any number (the masks of
        Swin's windows), and their bytes are no sample's."""
        self.names: dict[int, str | None] = {}
        self.instructions: list[Instruction] = []
        self.is_on = False
        self.is_in_language = False
        self.num_language_layers = 0
        """Of the language model that have begun."""
        self.depth = 0
        """Of calls that are one instruction, whatever is computed inside."""
        self._slots: dict[int, int] = {}
        self._num_slots = 0
        self._of_tokens: set[int] = set()
        self._left_out: set[int] = set()
        self._of_images: set[int] = set()
        self.has_met = False
        """Whether anything that comes from images has met anything of the tokens."""
        self._upcast_from: dict[int, int] = {}

    # -- results ---------------------------------------------------------------------------------------------------

    def slot(self, tensor: torch.Tensor) -> int:
        """The number of a result, a new one when it is seen for the first time."""
        found = self._slots.get(id(tensor))
        if found is None:
            found = self._slots[id(tensor)] = self._num_slots
            self._num_slots += 1
            weakref.finalize(tensor, self._freed, id(tensor), found)
        return found

    def _freed(self, key: int, slot: int) -> None:
        if self._slots.get(key) == slot:
            del self._slots[key]
        if self.is_on and self.instructions and slot not in self._left_out and slot not in self._of_tokens:
            self.instructions[-1].freed.append(slot)

    def give_tokens(self, tensor: torch.Tensor) -> None:
        """``tensor`` is of the tokens, and so is whatever comes from it."""
        self._of_tokens.add(self.slot(tensor))

    def give_images(self, tensor: torch.Tensor) -> None:
        """``tensor`` is of the images, and so is whatever comes from it."""
        self._of_images.add(self.slot(tensor))

    def is_of_tokens(self, tensor: torch.Tensor) -> bool:
        return self._slots.get(id(tensor)) in self._of_tokens

    def operand(self, tensor: torch.Tensor) -> int | str | None:
        if id(tensor) in self.names:
            return self.names[id(tensor)]
        slot = self._slots.get(id(tensor))
        return None if slot is None or slot in self._left_out else slot

    def add(self, op: str, inputs: Sequence[Operand] = (), outputs: Sequence[Output] = (), **values: Any) -> None:
        if any(operand in self._of_images for operand in _flat(inputs)):
            self._of_images.update(output.slot for output in outputs)
        self.instructions.append(Instruction(op, list(inputs), list(outputs), values))

    def output(self, tensor: torch.Tensor, of: int | str | None = None) -> Output:
        return Output(self.slot(tensor), tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), of)

    # -- operations ------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if self.is_on and not self.depth and func._schema.name not in IGNORED:
            self._note(func, (*args, *(kwargs or {}).values()), result)
        return result

    def bounded(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Which experts tokens go to is not known, and changes nothing of the images: none, in the language model."""
        if self.is_in_language and func is torch.ops.aten.nonzero.default:
            return torch.empty((0, args[0].dim()), dtype=torch.int64)
        return super().bounded(func, args, kwargs)

    def _note(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        inputs = list(_tensors(args))
        outputs = list(_tensors((result,)))
        name = func._schema.name.removeprefix("aten::")
        is_of_images = any(self._slots.get(id(tensor)) in self._of_images for tensor in inputs)
        if self._meets_tokens(name, inputs, outputs):
            self.has_met |= is_of_images
            return
        if is_of_images:
            self._of_images.update(self.slot(tensor) for tensor in outputs)
        operands = [self._operand_of(item) for item in args if _holds_tensors(item)]
        live = [operand for operand in _flat(operands) if operand is not None]
        if self._is_left_out(live, outputs, is_of_images=is_of_images):
            self._left_out.update(self.slot(tensor) for tensor in outputs)
            return
        self._revive(outputs, inputs)
        shared = {t.untyped_storage()._cdata: self.operand(t) for t in reversed(inputs)}
        if all(shared.get(t.untyped_storage()._cdata, "") is None for t in outputs):
            self._left_out.update(self.slot(tensor) for tensor in outputs)
            return
        made = [self.output(t, shared.get(t.untyped_storage()._cdata)) for t in outputs]
        self.add(name, operands, made, **self._values(name, args, inputs, made))

    def _is_left_out(self, live: Sequence[int | str], outputs: Sequence[torch.Tensor], *, is_of_images: bool) -> bool:
        """Integers and masks of nothing but positions are the language model's where one is of each token."""
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in outputs)
        shapes = {tuple(tensor.shape) for tensor in outputs}
        if not is_of_images:
            self.made |= shapes
        if is_of_images or not shapes <= self._constants:
            num_bytes /= self._num_samples
        if not any(tensor.is_floating_point() for tensor in outputs):
            is_of_positions = not live and not is_of_images
            is_of_tokens = is_of_positions and all(self._num_tokens in tensor.shape for tensor in outputs)
            return num_bytes <= SMALL_INTEGERS or is_of_tokens
        return not live and num_bytes <= SMALL_BYTES

    def _meets_tokens(self, name: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
        """Whether an operation is of tokens; then what else it takes enters, and its results are of tokens."""
        of_tokens = [tensor for tensor in inputs if self.is_of_tokens(tensor)]
        if not of_tokens and not self.is_in_language:
            return False
        self.enter([tensor for tensor in inputs if not self.is_of_tokens(tensor)], by=name, into=of_tokens)
        for tensor in outputs:
            self.give_tokens(tensor)
        return True

    def enter(self, tensors: Sequence[torch.Tensor], *, by: str, into: Sequence[torch.Tensor]) -> None:
        """What comes from images meets what comes from tokens."""
        of_images = [tensor for tensor in tensors if self._slots.get(id(tensor)) in self._of_images]
        self.has_met |= bool(of_images)
        operands = [self.operand(tensor) for tensor in of_images if tensor.is_floating_point() and tensor.dim()]
        entering = [operand for operand in operands if isinstance(operand, int)]
        if entering:
            rows = [tensor.shape[1] for tensor in into if tensor.dim() > 1]
            ids = (self._num_samples, self._num_tokens)
            is_picked = bool(into) and not any(tensor.shape[:2] == ids for tensor in into)
            more = {"rows": max(rows, default=0), "is_picked": is_picked, "layers": self.num_language_layers}
            self.add("enter", entering, by=by, is_in_language=self.is_in_language, **more)

    def _operand_of(self, item: Any) -> Operand:
        if isinstance(item, torch.Tensor):
            return self.operand(item)
        return [self.operand(part) if isinstance(part, torch.Tensor) else None for part in item]

    def _revive(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """What was left out and is written to now is made here."""
        for tensor in outputs:
            slot = self._slots.get(id(tensor))
            if slot in self._left_out and any(tensor is other for other in inputs):
                self._left_out.discard(slot)
                self.add("zeros", [], [self.output(tensor)])

    def _values(self, name: str, args: tuple[Any, ...], inputs: Sequence[torch.Tensor], made: Sequence[Output]) -> Any:
        """What the planner has to know of an operation beside shapes."""
        values: dict[str, Any] = {}
        origins = [self._upcast_from[slot] for t in inputs if (slot := self._slots.get(id(t))) in self._upcast_from]
        if name == "_to_copy" and inputs and made:
            source = self._slots.get(id(inputs[0]))
            if inputs[0].dtype == MODEL_DTYPE and made[0].dtype == "float32" and source is not None:
                self._upcast_from[made[0].slot] = source
            elif made[0].dtype == str(MODEL_DTYPE).removeprefix("torch.") and origins:
                values["like"] = origins[0]
        elif origins:
            self._upcast_from.update((output.slot, origins[0]) for output in made)
        if name == "convolution":
            values["groups"] = int(args[8])
        if name in EMBEDDING_BAGS:
            values["ids_per_bag"] = args[1].numel() // args[2].numel()
        return values


def _tensors(items: Any) -> Iterator[torch.Tensor]:
    for item in items:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from _tensors(item)


def _holds_tensors(item: Any) -> bool:
    return isinstance(item, torch.Tensor) or (
        isinstance(item, list | tuple) and any(isinstance(part, torch.Tensor) for part in item)
    )


def _flat(operands: Sequence[Operand]) -> Iterator[int | str | None]:
    for operand in operands:
        if isinstance(operand, list):
            yield from operand
        else:
            yield operand
