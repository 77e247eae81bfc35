"""The module tree: the building blocks that families assemble, named as in transformers.

One tree yields the parameters and their names, the Linears that adapters and quantisation replace, what autograd
saves, and the floating point operations. ``Module`` works like ``torch.nn.Module`` as far as that needs: attributes
that are parameters or modules are registered in order.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Concatenate, TypeVar

from vlmplan.architecture import ops
from vlmplan.architecture.checkpointing import as_tuple, checkpoint, checkpoint_part
from vlmplan.architecture.containers import call_container
from vlmplan.architecture.first_layer import LayerReuse
from vlmplan.architecture.layer_calls import call_of
from vlmplan.architecture.parameter import Parameter, WeightUser
from vlmplan.architecture.reused_layers import copy_of_result, first_layer_input, reuse_layer
from vlmplan.architecture.tensor import Tensor
from vlmplan.architecture.tiled_mlp import tiled
from vlmplan.architecture.trace import FIRST
from vlmplan.errors import InputError
from vlmplan.units import DType

Made = TypeVar("Made", bound="Module")


class Module(WeightUser):
    """A node of the tree. Subclasses set parameters and modules as attributes and define ``forward``."""

    ROTARY_MODULES: Sequence[str] = ()
    """Names of the modules inside that make rotary positions, which have no weights and are in no list of places."""
    can_be_tiled = False
    """Whether it is an MLP of the language model without weights of its own, see ``tiled_mlp``."""
    is_checkpointed = False
    """Whether it keeps its input alone and runs again in backward (``CheckpointKind.PARTS``)."""
    masks_all_images = False
    """Whether it has the images of a micro batch in one row under a mask, whose attention takes the square of it."""
    takes_keywords = False
    """Whether its caller names its input: the hook that would tell that its backward is over is put on positional
    inputs alone (``_post_backward_module_hook`` in ``zero/parameter_offload.py``)."""

    modules_by_name: dict[str, "Module"]

    def __new__(cls: type[Made], *args: Any, **kwargs: Any) -> Made:
        """A module has its tables before any ``__init__`` runs, so that subclasses have nothing to call first."""
        made = object.__new__(cls)
        made.parameters_by_name, made.modules_by_name = {}, {}
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self.parameters_by_name[name] = value
        elif isinstance(value, Module):
            self.modules_by_name[name] = value
        object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_checkpointed and not args[0].tape.is_evaluating:
            return checkpoint_part(self._call_once, args, kwargs, is_trained=_is_trainable(self))
        return self._call_once(args, kwargs)

    def _call_once(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.parameters_by_name:
            return self._call_empty(args, kwargs)
        tape = _tape_of(args)
        if not tape.fetches_weights:
            return self.forward(*args, **kwargs)
        if self.modules_by_name:
            has_input_grad = any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
            has_input_grad = has_input_grad and not self.takes_keywords
            return call_container(tape, self, partial(self.forward, *args, **kwargs), has_input_grad=has_input_grad)
        tape.modules.append(self)
        tape.begin_call(self)
        out = self.forward(*args, **kwargs)
        outs: tuple[Any, ...] = out if isinstance(out, tuple) else (out,)  # pyright: ignore[reportUnknownVariableType]
        tape.end_call(self, has_backward=any(isinstance(one, Tensor) and one.requires_grad for one in outs))
        tape.modules.pop()
        return out  # pyright: ignore[reportUnknownVariableType]

    def _call_empty(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else None
        run = partial(tiled, self) if self.can_be_tiled and args[0].tape.tiles_mlps else self.forward
        if not isinstance(x, Tensor) or not x.tape.fetches_weights:
            return run(*args, **kwargs)
        outer = x.tape.enter_empty_call()
        out = run(*args, **kwargs)
        x.tape.empty_call = outer
        return out

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(type(self).__name__)

    def children(self) -> Iterator[tuple[str, "Module"]]:
        yield from self.modules_by_name.items()

    def replace(self, name: str, module: "Module") -> None:
        """Put ``module`` where the child ``name`` is."""
        setattr(self, name, module)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, "Module"]]:
        """All modules with their dotted names, in torch's order, layers of a stack written out."""
        yield prefix, self
        for name, child in self.children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """All parameters with their dotted names in torch's order. Shared ones (tied, replicated layers) repeat."""
        for name, parameter in self.parameters_by_name.items():
            yield (f"{prefix}.{name}" if prefix else name), parameter
        for name, child in self.children():
            yield from child.named_parameters(f"{prefix}.{name}" if prefix else name)


def _tape_of(args: Iterable[Any]) -> Any:
    for argument in args:
        if isinstance(argument, Tensor):
            return argument.tape
    raise AssertionError("a module with weights is called with a tensor")


LayerCall = Callable[Concatenate[Any, Tensor, ...], Tensor]
"""A layer with x and what it takes besides."""


class Stack(Module):
    """An ``nn.ModuleList`` of layers of which many are equal.

    ``kinds`` are the distinct layers and ``pattern`` the kind of each position. Equal layers share one ``Module``: the
    tape runs the first layer of each kind and reuses its trace, unless its input is not like that of later ones (it may
    need no gradient): then one of those is run as well.
    ``can_checkpoint`` is False for layers that are no ``GradientCheckpointingLayer`` in transformers: they ignore
    ``gradient_checkpointing_enable``. ``takes_keywords``: layers get nothing by position, x neither.
    """

    def __init__(
        self, kinds: Sequence[Module], pattern: Sequence[int], *, label: str, can_checkpoint: bool = True
    ) -> None:
        self.kinds, self.pattern, self.label = list(kinds), tuple(pattern), label
        self.can_checkpoint = can_checkpoint
        self.checkpoints = self.takes_keywords = False
        self.alike: Sequence[int] = range(len(self.kinds))
        """What each kind is alike to: kinds with weights of their own in one structure have one number."""

    @classmethod
    def of(cls, layer: Module, num_layers: int, *, label: str) -> "Stack":
        return cls([layer], [0] * num_layers, label=label)

    def children(self) -> Iterator[tuple[str, Module]]:
        for index, kind in enumerate(self.pattern):
            yield str(index), self.kinds[kind]

    def distinct_children(self) -> Iterator[tuple[str, Module]]:
        """One layer of each kind, named by its last place."""
        last = {kind: index for index, kind in enumerate(self.pattern)}
        for kind, index in sorted(last.items(), key=lambda item: item[1]):
            yield str(index), self.kinds[kind]

    def replace(self, name: str, module: Module) -> None:
        self.kinds[self.pattern[int(name)]] = module

    def run(
        self,
        x: Tensor,
        call: LayerCall,
        *,
        beside: Sequence[Tensor] = (),
        start: int = 0,
        stop: int | None = None,
        shares_input: bool = False,
    ) -> Tensor:
        """x through the layers from ``start`` to ``stop``; ``call(layer, x, *beside)`` passes a layer what it takes
        besides. Of ``Calls`` each layer has one of its own. ``beside``: what has no gradient and goes by position: a
        checkpoint saves it as it does x, while what goes by keyword is part of the function that it runs again. It is
        one argument, as Python holds x for a caller that unpacks several until the last layer has run.

        A stretch that starts behind layer 0 must begin with a kind that no layer before it has. ``shares_input``: x is
        used by something else too, so that the first layer is not reused for others.
        """
        tape = x.tape
        reuses_layers = tape.reuses_layers and not shares_input
        # A frozen kind among trained ones: its layers in front of the first trained layer have no gradients.
        without_gradients: set[int] = set()
        begun: set[str] = set()
        for index in range(start, len(self.pattern) if stop is None else stop):
            kind = self.pattern[index]
            later = f"{self.label}.{kind}"
            if x.requires_grad and kind in without_gradients:
                later += ".behind"
            elif index > start and not x.requires_grad:
                without_gradients.add(kind)
            is_first = later not in begun
            begun.add(later)
            key = later + (FIRST if is_first else "")
            if tape.replays(key, index):
                continue
            layer = self.kinds[kind]
            needs_grad = not tape.is_evaluating and (x.requires_grad or _is_trainable(layer))
            checkpoints = self.checkpoints and self.can_checkpoint and needs_grad
            run = partial(_run_to_end, call_of(call, layer), layer)
            run = partial(checkpoint, run, by_keyword=self.takes_keywords) if checkpoints else run
            with tape.section(key, index):
                if is_first and reuses_layers and kind in self.pattern[index + 1 : stop]:
                    x = first_layer_input(x)
                    result = run(x, *beside)
                    reuse_layer(later, x, result)
                    x = result
                    del result
                else:
                    x = run(x, *beside)
            if not x.requires_grad:
                without_gradients.add(kind)
        return x

    def run_each(
        self,
        x: Tensor,
        call: Callable[..., Tensor],
        *shared: Tensor,
        sharing: Iterable[int] = (),
        skipped: Container[int] = (),
        results: dict[int, Tensor] | None = None,
        used_apart: Container[int] = (),
        own_inputs: Callable[[int], Sequence[Tensor]] = lambda index: (),
    ) -> Tensor:
        """x through all layers but ``skipped``, where they are not all alike: ``shared`` are further inputs with a
        gradient, which the layers of the ``sharing`` kinds sum up; ``call(layer, x, *shared)``.
        ``own_inputs``: what the layer of an index gets before ``shared``, made in its section.

        Of equal layers one is run (``LayerReuse``). ``results``: filled with every layer's, where
        something holds them until all have run; ``used_apart``: those of them that it computes with.
        """
        tape = x.tape
        indices = [at for at in range(len(self.pattern)) if at not in skipped]
        reuse = LayerReuse(self.pattern, indices, used_apart, sharing=sharing, keeps_last=results is not None)
        replayed: dict[int, int] = {}
        for index in reuse.indices:
            known = reuse.equal_layer(index, needs_grad=x.requires_grad) if tape.reuses_layers else None
            if known is not None and tape.replays(f"{self.label}.{known}", index):
                replayed[index] = known
                continue
            with tape.section(f"{self.label}.{index}", index):
                (x,) = self._run_layer(index, call, (x, *own_inputs(index), *shared))
                reuse.has_run(index, needs_grad=x.requires_grad)
                if results is not None:
                    results[index] = x
        if results is not None:
            for index, known in replayed.items():
                results[index] = copy_of_result(results[known], is_used_apart=index in used_apart)
        return x

    def run_one(self, index: int, call: Callable[..., Any], *inputs: Tensor) -> tuple[Tensor, ...]:
        """The layer of an index by itself, where it gives more than x: ``call(layer, *inputs)`` returns a tuple."""
        with inputs[0].tape.section(f"{self.label}.{index}", index):
            return self._run_layer(index, call, inputs)

    def _run_layer(self, index: int, call: Callable[..., Any], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        layer = self.kinds[self.pattern[index]]
        needs_grad = any(operand.requires_grad for operand in inputs) or _is_trainable(layer)
        checkpoints = self.checkpoints and self.can_checkpoint and needs_grad and not inputs[0].tape.is_evaluating
        run = partial(_run_to_end, call_of(call, layer), layer)
        return as_tuple(checkpoint(run, *inputs) if checkpoints else run(*inputs))


def _run_to_end(call: Callable[..., Any], layer: Module, *inputs: Tensor) -> Any:
    """What a layer returns; what it had in local variables goes."""
    result = call(layer, *inputs)
    inputs[0].tape.layer_locals.clear()
    return result


def _is_trainable(module: Module) -> bool:
    return any(parameter.requires_grad for _, parameter in module.named_parameters())


class Linear(Module):
    """``nn.Linear``: weight (out, in)."""

    copies_gradient = False
    """Whether gradients of its results lie in another order than rows: they are copied into rows for its products."""
    copies_input = False
    """Whether its inputs do: they are copied for the weight's gradient."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(out_features, in_features)
        self.bias: Parameter | None = Parameter(out_features) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        out = ops.linear(x, self.weight, self.bias, copies_input=self.copies_input)
        return ops.part(out, *out.shape) if self.copies_gradient else out


class DerivedLinear(Linear):
    """A class derived from ``nn.Linear``: LoRA takes it for one, but bitsandbytes leaves it in 16 bit.

    Source: transformers 5.23 ``integrations/bitsandbytes.py`` packs where ``type(module) is nn.Linear``.
    """


class Conv1D(Linear):
    """transformers' ``Conv1D`` (GPT-2): a Linear whose weight is stored (in, out). It calls ``torch.addmm``, which
    DeepSpeed does not replace as it does ``F.linear``: the input of a frozen one is not kept under ZeRO-3."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=True)
        self.weight = Parameter(in_features, out_features)

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias, is_transposed=True)


class Embedding(Module):
    """``nn.Embedding``: weight (rows, width)."""

    def __init__(self, num_embeddings: int, width: int) -> None:
        self.weight = Parameter(num_embeddings, width)

    def forward(self, ids: Tensor) -> Tensor:
        return ops.embedding(ids, self.weight)


def require_positions(num_tokens: int, num_positions: int, *, option: str = "--seq-len") -> None:
    """Raise InputError for a sequence that runs over the rows of a table of positions, where torch would."""
    if num_tokens > num_positions:
        raise InputError(
            f"{option} is {num_tokens}, but the model has learned positions for {num_positions} tokens; "
            f"give at most that many"
        )


class PatchEmbedding(Module):
    """A convolution whose stride is its kernel: one product per patch.

    Input (patches, in_channels * kernel area), result (patches, width). Its weight is (width, in_channels, *kernel).
    """

    KERNEL_AXES = 2

    def __init__(self, patch_numel: int, width: int, *, bias: bool) -> None:
        self.weight = Parameter(width, patch_numel)
        self.weight.num_axes = 2 + self.KERNEL_AXES
        self.bias: Parameter | None = Parameter(width) if bias else None

    def forward(self, pixels: Tensor) -> Tensor:
        return ops.convolution(pixels, self.weight, self.bias, (*pixels.shape[:-1], self.weight.shape[0]))


class LayerNorm(Module):
    """``nn.LayerNorm`` with weight, and a bias unless told otherwise."""

    def __init__(self, width: int, *, bias: bool = True) -> None:
        self.weight = Parameter(width)
        self.bias: Parameter | None = Parameter(width) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias)


class RMSNorm(Module):
    """``LlamaRMSNorm`` and its copies: float32 inside, the weight applied in the input's type."""

    is_fused = False
    """Whether it is Liger's kernel."""
    is_compiled = False
    """Whether inductor has made one kernel of it."""

    def __init__(self, width: int) -> None:
        self.weight = Parameter(width)

    def forward(self, x: Tensor) -> Tensor:
        if self.is_fused or self.is_compiled:
            return ops.liger_rms_norm(x, self.weight, in_place=self.is_fused)
        dtype = x.dtype
        hidden = ops.to(x, DType.FLOAT32)
        variance = ops.mean_last(ops.power(hidden))
        hidden = ops.mul(hidden, ops.unary(ops.shift(variance), saves_output=True))
        return ops.mul(ops.to(hidden, dtype), self.weight, y_is_first=True)


class WideRMSNorm(RMSNorm):
    """``GptOssRMSNorm``, ``Olmo2RMSNorm``: the weight is applied in float32, before the cast back."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = ops.to(x, DType.FLOAT32)
        variance = ops.mean_last(ops.power(hidden))
        hidden = ops.mul(hidden, ops.unary(ops.shift(variance), saves_output=True))
        return ops.to(ops.mul(hidden, self.weight, y_is_first=True), x.dtype)


class GemmaRMSNorm(Module):
    """``GemmaRMSNorm``: everything in float32, ``1 + weight`` as the factor, cast back at the end."""

    def __init__(self, width: int) -> None:
        self.weight = Parameter(width)

    def forward(self, x: Tensor) -> Tensor:
        output = ops.weightless_rms_norm(ops.to(x, DType.FLOAT32))
        output = ops.mul(output, ops.shift_weight(self.weight, DType.FLOAT32, x.tape))
        return ops.to(output, x.dtype)
