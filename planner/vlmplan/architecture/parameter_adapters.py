"""LoRA on weights that are no Linear: routers and experts whose weights lie in one parameter.

Sources: peft 0.21 ``tuners/lora/layer.py`` (``ParamWrapper``) and ``utils/transformers_weight_conversion.py``, which
under transformers 5 turns the names that experts had in transformers 4, and ``all-linear``, into parameters. An
adapter of a parameter cannot be factored out of the product: the adapted weight, as large as all experts together, is
computed anew in each forward and kept for backward, which then has a gradient of its size.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.adapter_names import TARGETS_OPTION, Place, places_of, target_names
from vlmplan.architecture.model import Model
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.read_weights import ReadingModule
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Operand, Tensor
from vlmplan.errors import InputError
from vlmplan.recipe.choices import ALL_LINEAR
from vlmplan.recipe.lora_targets import layer_targets


class AdaptableModule(Module):
    """A module that uses parameters of its own and reads them through ``weight_of``, so that they can be adapted."""

    is_transposed = False
    """Whether stacked weights are (experts, in, out), in place of (experts, out, in)."""

    adapted_weights: Mapping[str, Callable[[], Tensor]] = {}

    def weight_of(self, name: str) -> Operand:
        """The parameter ``name``, or the result of the adapter around this module."""
        adapted = self.adapted_weights.get(name)
        return self.parameters_by_name[name] if adapted is None else adapted()


STACK_DIMENSIONS = 3
"""Of the weights of all experts in one: (experts, out, in), or (experts, in, out)."""


def has_stacked_experts(model: Model) -> bool:
    modules = (module for _, module in model.distinct_modules() if isinstance(module, AdaptableModule))
    return any(len(one.shape) == STACK_DIMENSIONS for module in modules for one in module.parameters_by_name.values())


class LoraParameter(ReadingModule):
    """``peft.tuners.lora.ParamWrapper``: around a module of which one parameter is adapted, or another wrapper.

    ``lora_A`` and ``lora_B`` hold the factors of all experts, ``rank`` for each. It calls neither, and reads them and
    the parameter itself (``get_param``, ``get_delta_factors``): ZeRO-3 gathers all three with it, also where adapters
    are switched off, and the parameter again with its owner, which has it back when backward comes to it.
    """

    def __init__(self, base: Module, owner: AdaptableModule, name: str, rank: int) -> None:
        self.base_layer: Any = base
        parameter = owner.parameters_by_name[name]
        *experts, out_features, in_features = parameter.shape
        if owner.is_transposed:
            in_features, out_features = out_features, in_features
        self.num_experts = experts[0] if experts else 1
        self.rank = rank
        self.lora_A = Linear(in_features, rank * self.num_experts)
        self.lora_B = Linear(rank * self.num_experts, out_features)
        for factor in (self.lora_A, self.lora_B):  # of several experts peft casts them itself (``get_delta_factors``)
            factor.weight.meets_autocast = not experts
        # The owner is the base layer or lies inside it; as an attribute it would be walked a second time.
        self.target = (owner, name)

    def used_parameters(self) -> dict[str, Parameter]:
        owner, name = self.target
        return {name: owner.parameters_by_name[name], "A": self.lora_A.weight, "B": self.lora_B.weight}

    def forward(self, x: Tensor, *args: Any) -> Any:
        owner, name = self.target
        tape = x.tape
        if tape.switches_adapters_off:
            return self.base_layer(x, *args)
        parameter = owner.parameters_by_name[name]
        dtype = parameter.dtype if self.num_experts > 1 or tape.autocast is None else tape.autocast
        factors = [ops.cast_weight(factor.weight, dtype, tape) for factor in (self.lora_A, self.lora_B)]
        # register_parametrization computes the weight once to check its shape.
        self._adapted(parameter, factors, tape)
        cached: list[Tensor] = []  # torch.nn.utils.parametrize.cached: computed at the first use, held to the end

        def adapted() -> Tensor:
            cached.append(self._adapted(parameter, factors, tape, is_kept=True))
            return cached[0]

        before, owner.adapted_weights = owner.adapted_weights, {**owner.adapted_weights, name: adapted}
        try:
            return self.base_layer(x, *args)
        finally:
            owner.adapted_weights = before
            del adapted
            cached.clear()

    def _adapted(
        self, weight: Parameter, factors: Sequence[Operand], tape: ForwardTape, *, is_kept: bool = False
    ) -> Tensor:
        """``baddbmm(weight, B, A)``: saves the factors, of several experts as views."""
        kept = tuple(factor if isinstance(factor, Parameter) else factor.detached() for factor in factors)
        flops = 2 * weight.numel * self.rank
        meta = (weight.shape, factors[0].dtype, [factor.shape for factor in factors], flops)
        node = tape.node((*factors, weight), _adapted_backward, kept, meta)
        if node is not None and is_kept and self.num_experts > 1:
            for factor in kept:
                if isinstance(factor, Parameter):
                    tape.hold_view(node, factor)
        out = tape.tensor(weight.shape, weight.dtype, node)
        tape.matmul(flops, 2 * out.num_bytes, factors[0].dtype)
        return out


def _adapted_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    _, dtype, shapes, flops = node.meta
    tape = g.tape
    results: list[Tensor | None] = []
    for shape, needed in zip(shapes, node.needs, strict=False):
        results.append(tape.gradient(shape, dtype) if needed else None)
        tape.matmul(flops, g.num_bytes, dtype)
    return [*results, g if node.needs[2] else None]


def adapted_parameters(
    targets: Mapping[str, str], names: Collection[str] | None, rank: int
) -> tuple[Collection[str] | None, dict[str, int]]:
    """What ``names`` (None: all linear layers) mean where ``targets`` maps old layer names to parameters.

    Returns the names that still mean layers, and the rank by parameter: that of a parameter which two old layers were
    fused into is twice as high. Raises InputError where only one of them is named.
    """
    fused: dict[str, list[str]] = {}
    for name, parameter in targets.items():
        fused.setdefault(parameter, []).append(name)
    ranks: dict[str, int] = {}
    for parameter, members in fused.items():
        asked = [name for name in members if names is None or any(means_old_name(one, name) for one in names)]
        if asked and len(asked) < len(members):
            missing = ", ".join(name for name in members if name not in asked)
            raise InputError(f"--lora-targets {', '.join(asked)} needs {missing} too: both are fused into {parameter}")
        if asked:
            ranks[parameter] = rank * len(members)
    if names is None:
        return None, ranks
    return [name for name in names if not any(means_old_name(name, old) for old in targets)], ranks


def absent_targets(model: Model, targets: str) -> tuple[str, ...]:
    """The names among ``targets`` that mean nothing in the model. peft fails where all are such, and says nothing of
    some (``inject_adapter`` in peft 0.21 ``tuners/tuners_utils.py``: ``unmatched_modules``)."""
    named = target_names(layer_targets(targets) or ALL_LINEAR, TARGETS_OPTION, attention=model.attention_linears)
    if named is None or named.tells_layers_apart:
        return ()
    found = frozenset[str]().union(*(named.match(place.name) for place in places_of(model)))
    old = [name for name in named.names if any(means_old_name(name, one) for one in model.PARAMETER_TARGETS)]
    return tuple(name for name in named.suffixes if name not in found and name not in old)


def means_old_name(target: str, old_name: str) -> bool:
    """Whether peft takes ``target`` for what a layer of experts was called, wherever else a layer has that name
    (``_convert_peft_config_moe``)."""
    return target == old_name or target.endswith(f".{old_name}")


def wrap_parameters(places: Iterable[Place], ranks: Mapping[str, int]) -> int:
    """Wrap the modules that hold parameters of ``ranks``, named by suffix; returns how many adapters were made."""
    num_adapted = 0
    for place in places:
        child = place.child
        if not isinstance(child, AdaptableModule):
            continue
        module: Module = child
        for name in child.parameters_by_name:
            rank = next((r for suffix, r in ranks.items() if f"{place.name}.{name}".endswith("." + suffix)), None)
            if rank is not None:
                module = LoraParameter(module, child, name, rank)
                num_adapted += 1
        if module is not child:
            place.parent.replace(place.child_name, module)
    return num_adapted
