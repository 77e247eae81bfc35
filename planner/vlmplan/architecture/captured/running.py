"""A captured program, run on symbolic tensors with the weights of a model's tree, adapted and packed as they are."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, attend_alone, heads_together, joins_calls
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.captured import tensors
from vlmplan.architecture.captured.layers import Chain, Layer, stretches
from vlmplan.architecture.captured.operations import Call, Operands, run_operation
from vlmplan.architecture.captured.program import Instruction, Operand, Output, Program, flat
from vlmplan.architecture.checkpointing import as_tuple, checkpoint
from vlmplan.architecture.modules import Module, Stack
from vlmplan.architecture.packed_lengths import PackedLengths
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.reused_layers import first_layer_input, reuse_layer
from vlmplan.architecture.tensor import ForwardTape, Tensor
from vlmplan.units import DType

STRETCHES = "stretches"
MODEL_DTYPE = "bfloat16"
"""The element type of the captured model, in the place of the model's own."""


class ProgramRun:
    """One run: ``values`` are the results that are alive, by their numbers."""

    def __init__(
        self, root: Module, program: Program, tape: ForwardTape, backend: AttentionBackend, *, dtype: DType
    ) -> None:
        """``root``: the tree whose modules the program names; ``dtype``: of its weights."""
        self.root, self.program, self.tape, self.backend, self.dtype = root, program, tape, backend, dtype
        self.values: dict[int, Tensor] = {}
        self.entering: list[tuple[Tensor, Instruction]] = []
        self._dtypes: dict[int, DType] = {}

    def run(self, pixels: Tensor) -> None:
        """Up to the language model's layers. ``entering`` then is what these and the embeddings take from the images,
        with the instruction that says how, in the order in which they do; ``pixels`` is the largest input."""
        inputs = self.program.inputs
        for name, slot in inputs.items():
            self.values[slot] = pixels if name == self.program.pixels else self._without_bytes(pixels)
        memo = self.program.memo
        if STRETCHES not in memo:
            memo[STRETCHES] = stretches(self.program, self._is_of_stack)
        for number, stretch in enumerate(memo[STRETCHES]):
            if isinstance(stretch, Chain):
                self._chain(stretch, number)
            elif isinstance(stretch, Layer):
                self._layer(stretch)
            else:
                with self.tape.section(f"images.{number}"):
                    self._steps(stretch)
        language = next(place for place, one in enumerate(self.program.instructions) if one.op == "language")
        for one in self.program.instructions[language:]:
            if one.op == "enter":
                self._step(one)

    def _without_bytes(self, like: Tensor) -> Tensor:
        """Another input, which the batch counts."""
        return Tensor(self.tape.tensor((0,), like.dtype).storage, like.shape, like.dtype)

    def leave(self) -> list[Tensor]:
        """The language model has returned: what was kept beside it goes, but for what its output holds."""
        freed = {slot for one in self.program.instructions for slot in one.freed} | set(self.program.inputs.values())
        kept = [value.detached() for slot, value in self.values.items() if slot not in freed]
        self.values.clear()
        self.entering.clear()
        return kept

    # -- layers ----------------------------------------------------------------------------------------------------

    def _is_of_stack(self, name: str) -> bool:
        return isinstance(self._module(name.rpartition(".")[0]), Stack)

    def _stack(self, layer: Layer) -> tuple[Stack, int]:
        """The stack that a layer is of, and its place."""
        parent, _, index = layer.name.rpartition(".")
        stack = self._module(parent)
        assert isinstance(stack, Stack)
        return stack, int(index)

    def _chain(self, chain: Chain, number: int) -> None:
        """Layers that take each other's results: of those of one form one is run, as ``Stack.run`` does it."""
        others = [slot for layer in chain.layers for slot in layer.taken if slot in self.values and slot != chain.x]
        if chain.x not in self.values or any(self.values[slot].requires_grad for slot in others):
            for layer in chain.layers:
                self._layer(layer)
            return
        tape, x = self.tape, self.values[chain.x]
        reuses = tape.reuses_layers and not chain.shares_x
        without_gradients: set[int] = set()
        begun: set[str] = set()
        taken = chain.x
        if not chain.shares_x:
            del self.values[taken]
        for place, (layer, form) in enumerate(zip(chain.layers, chain.forms, strict=True)):
            stack, index = self._stack(layer)
            later = f"{stack.label}.{number}.{form}" + (
                ".behind" if x.requires_grad and form in without_gradients else ""
            )
            key = later + (".first" if later not in begun else "")
            is_first = later not in begun
            begun.add(later)
            if not tape.replays(key, index):
                with tape.section(key, index):
                    is_repeated = is_first and reuses and form in chain.forms[place + 1 :]
                    if is_repeated:
                        x = first_layer_input(x)
                    result = self._through(layer, taken, x)
                    if is_repeated:
                        reuse_layer(later, x, result)
                    x = result
                    del result
            if not x.requires_grad:
                without_gradients.add(form)
            (taken,) = layer.results
        self._keep_at(taken, x)

    def _through(self, layer: Layer, taken: int, x: Tensor) -> Tensor:
        """x through a layer of a chain, which knows it as the result ``taken``."""
        outside = self.values
        shared = {slot: outside[slot] for slot in layer.taken if slot in outside}  # a checkpoint holds them

        def run(x: Tensor) -> Tensor:
            self.values = {**shared, taken: x}
            del x
            self._steps(layer.places)
            result = self.values[layer.results[0]]
            self.values = outside
            return result

        try:
            return checkpoint(run, x) if self._checkpoints(layer, [x]) else run(x)
        finally:
            self.values = outside

    def _checkpoints(self, layer: Layer, inputs: Sequence[Tensor]) -> bool:
        stack, index = self._stack(layer)
        if not (stack.checkpoints and stack.can_checkpoint) or self.tape.is_evaluating or not inputs:
            return False
        weights = stack.kinds[stack.pattern[index]].named_parameters()
        return any(x.requires_grad for x in inputs) or any(weight.requires_grad for _, weight in weights)

    def _layer(self, layer: Layer) -> None:
        """A layer by itself."""
        stack, index = self._stack(layer)
        taken = [slot for slot in layer.taken if slot in self.values]
        with self.tape.section(f"{stack.label}.{index}", index):
            if self._checkpoints(layer, [self.values[slot] for slot in taken]):
                self._checkpointed(layer.places, taken)
            else:
                self._steps(layer.places)
            self._free(self.program.instructions[layer.stop].freed)

    def _checkpointed(self, places: range, taken: Sequence[int]) -> None:
        """A layer that backward runs again. What it frees of what was there before it goes when it has run."""
        made = {output.slot for place in places for output in self.program.instructions[place].outputs}
        freed = {slot for place in places for slot in self.program.instructions[place].freed}
        results = [slot for slot in made if slot not in freed]
        outside, origins = self.values, self._dtypes

        def layer(*inputs: Tensor) -> tuple[Tensor, ...]:
            self.values = dict(zip(taken, inputs, strict=True))
            self._dtypes = dict(origins)
            self._steps(places)
            given = tuple([self.values[slot] for slot in results if slot in self.values])
            self.values = {}
            return given

        inputs = [outside[slot] for slot in taken]
        try:
            outputs = checkpoint(layer, *inputs)
        finally:
            self.values = outside
        del inputs
        outside.update(zip(results, as_tuple(outputs), strict=True))
        self._dtypes.update((slot, outside[slot].dtype) for slot in results)
        self._free(tuple(slot for slot in freed if slot not in made))

    # -- steps -----------------------------------------------------------------------------------------------------

    def _steps(self, places: range) -> None:
        for place in places:
            one = self.program.instructions[place]
            self._step(one)
            self._free(one.freed)

    def _free(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.values.pop(slot, None)

    def _step(self, one: Instruction) -> None:
        if one.op in ("begin", "end"):
            self._enter_module(one)
        elif one.op == "enter":
            slots = [slot for slot in one.inputs if isinstance(slot, int)]
            self.entering += [(self.values[slot], one) for slot in slots if slot in self.values]
        elif one.op == "call":
            self._keep(one.outputs[0], self._called(one))
        elif one.op == "linear":
            self._keep(one.outputs[0], self._product(one))
        elif one.op == "attend":
            self._keep(one.outputs[0], self._attended(one))
        elif one.outputs:
            self._computed(one)

    def _enter_module(self, one: Instruction) -> None:
        """A module with weights of its own begins, or is done: ZeRO-3 gathers them in between."""
        tape = self.tape
        if not tape.fetches_weights:
            return
        if one.op == "begin":
            module = self._module(one.values["module"])
            tape.modules.append(module)
            tape.begin_call(module)
        else:
            tape.release(tape.modules.pop())

    def _called(self, one: Instruction) -> Tensor:
        """A Linear, or what adapters and quantisation made of it."""
        x = self._operand(one.inputs[0])
        if not isinstance(x, Tensor):
            x = self.tape.tensor((*one.outputs[0].sizes[:-1], self._in_features(one)), self.dtype)
        if one.values.get("copies"):
            x = ops.copy(x)
        module: Any = self._module(one.values["module"])
        return module(x)

    def _product(self, one: Instruction) -> Tensor:
        """A product with a matrix that is no module's, or a part of a weight."""
        x, weight, bias = (*self._operands(one.inputs), None)[:3]
        assert weight is not None
        is_transposed = bool(one.values.get("is_transposed"))
        if not isinstance(x, Tensor):
            width = weight.shape[0] if is_transposed else weight.shape[-1]
            x = self.tape.tensor((*one.outputs[0].sizes[:-1], width), self.dtype)
        if one.values.get("copies"):
            x = ops.copy(x)
        return ops.linear(x, weight, bias, is_transposed=is_transposed)

    def _in_features(self, one: Instruction) -> int:
        return self._weight(f"{one.values['module']}.weight").shape[-1]

    def _attended(self, one: Instruction) -> Tensor:
        q, k, v, mask = (self._operand(operand) for operand in (*one.inputs, None)[:4])
        assert isinstance(q, Tensor)
        assert isinstance(k, Tensor)
        assert isinstance(v, Tensor)
        shape, lengths = one.outputs[0].sizes, one.values.get("lengths")
        if lengths is not None:
            runs = tuple([(int(length), int(number)) for length, number in lengths])
            return self._packed(q, k, v, PackedLengths(runs, self.program.samples)).view(*shape)
        backend, is_flash = self.backend, self.backend.implementation == "flash_attention_2"
        if is_flash and one.values.get("is_of_torch"):
            backend, is_flash = replace(backend, implementation="sdpa"), False
        masks = mask if isinstance(mask, Tensor) and not is_flash else None
        scores = Scores(dropout=float(one.values.get("dropout", 0.0)))
        out = attend(
            backend, q, k, v, is_causal=bool(one.values["is_causal"]), mask=masks, scores=scores, is_cached=False
        )
        if one.values.get("keeps_heads_together"):
            out = heads_together(backend, q, k, out, has_mask=masks is not None)
        return out.view(*shape)

    def _packed(self, q: Tensor, k: Tensor, v: Tensor, lengths: PackedLengths) -> Tensor:
        """Each of the sequences by itself: in one call of flash-attn, or in one call each, as ``PatchAttention``."""
        backend = self.backend
        if backend.implementation == "flash_attention_2":
            return attend(backend, q, k, v, is_causal=False, lengths=lengths)
        _, num_heads, num_tokens, _ = q.shape
        calls = lengths if joins_calls(backend, q, k, lengths) else None
        sizes = lengths.calls() if calls is None else [(num_tokens, 1)]
        sizes = list(sizes)
        parts = [
            ops.split(part, *[(1, times * part.shape[1], length, part.shape[-1]) for length, times in sizes])
            for part in (q, k, v)
        ]
        outs = [attend_alone(backend, *part, calls=calls) for part in zip(*parts, strict=True)]
        return ops.concatenate(outs, (1, num_tokens, num_heads * v.shape[-1]))

    def _computed(self, one: Instruction) -> None:
        operands = self._operands(one.inputs)
        first = one.outputs[0]
        if first.of is not None:
            self._shared(one, operands)
            return
        dtypes = [self._dtype(output.dtype) for output in one.outputs]
        if "like" in one.values:
            dtypes[0] = self._dtypes.get(one.values["like"], self.dtype)
        call = Call(self.tape, one, operands, dtypes[0])
        for output, made in zip(one.outputs, run_operation(call, dtypes), strict=False):
            self._keep(output, made)

    def _shared(self, one: Instruction, operands: Operands) -> None:
        """Results that share the storage of what they are made of: views, and what is written in place."""
        outputs = one.outputs
        base = self._operand(outputs[0].of)
        if outputs[0].slot == outputs[0].of:
            call = Call(self.tape, one, operands, self._dtype(outputs[0].dtype))
            if isinstance(base, Tensor) and base.dtype.is_floating:
                self._keep(outputs[0], run_operation(call, [call.dtype])[0])
            return
        if isinstance(base, Parameter):
            for output in outputs:
                self._keep(output, tensors.weight_view(base, output.sizes, self.tape))
            return
        if base is None:
            base = self.tape.tensor(outputs[0].sizes, self._dtype(outputs[0].dtype))
        for output, view in zip(outputs, _views(base, [output.sizes for output in outputs]), strict=True):
            self._keep(output, view)

    # -- operands --------------------------------------------------------------------------------------------------

    def _keep(self, output: Output, made: Tensor) -> None:
        self._keep_at(output.slot, made)

    def _keep_at(self, slot: int, made: Tensor) -> None:
        self.values[slot] = made
        self._dtypes[slot] = made.dtype

    def _dtype(self, name: str) -> DType:
        return self.dtype if name == MODEL_DTYPE else _DTYPES.get(name, DType.INT64)

    def _operands(self, inputs: Sequence[Operand]) -> Operands:
        return [self._operand(operand) for operand in flat(inputs)]

    def _operand(self, operand: Operand) -> Tensor | Parameter | None:
        if isinstance(operand, int):
            return self.values.get(operand)
        return self._weight(operand) if isinstance(operand, str) else None

    def _weight(self, name: str) -> Parameter:
        path, _, own = name.rpartition(".")
        module: Any = self._module(path)
        while own not in module.parameters_by_name and "base_layer" in module.modules_by_name:
            module = module.modules_by_name["base_layer"]  # of an adapter
        found = module.parameters_by_name.get(own)
        return getattr(module, own) if found is None else found

    def _module(self, path: str) -> Module:
        module = self.root
        for name in path.split(".") if path else ():
            module = (
                module.kinds[module.pattern[int(name)]] if isinstance(module, Stack) else module.modules_by_name[name]
            )
        return module


def _views(base: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    if len(shapes) > 1:
        return ops.split(base, *shapes)
    (shape,) = shapes
    view = Tensor(base.storage, shape, base.dtype)
    if view.numel == base.numel:
        return [base.view(*shape)]
    return [ops.part(base, *shape) if view.numel < base.numel else tensors.expand(base, *shape)]


_DTYPES = {dtype.torch_name: dtype for dtype in DType} | {"bool": DType.BOOL}
