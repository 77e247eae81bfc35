"""The module tree of a model that has no family, from transformers' own list of its parts (``layout``).

Exact: parameters, their names and order, which Linears there are, what is tied, which layers can be checkpointed.
Generic: what happens between the Linears of a layer (``layers``), and what rehearsals found it to lack
(``layer_bytes``). Images are not described: vision towers and projectors have their parameters but do not run. Layers
that keep states instead of attending are refused where they were not rehearsed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.captured.capture import ImageCapture
from vlmplan.architecture.captured.running import ProgramRun
from vlmplan.architecture.captured.tensors import into, picked
from vlmplan.architecture.families.group_router import OLD_EXPERT_NAMES
from vlmplan.architecture.generic.building import NORMS, TreeBuilder
from vlmplan.architecture.generic.groups import Group, Role, keep_bytes, use, use_own
from vlmplan.architecture.generic.layer_bytes import UNCORRECTED, RehearsedLayers
from vlmplan.architecture.generic.layers import GenericContext, GenericShape, LayerRun, output_step
from vlmplan.architecture.generic.layout import ModelLayout, recurrent_classes, unmultiplied_classes
from vlmplan.architecture.generic.stacks import PLAIN_STACKS, StackFacts
from vlmplan.architecture.model import Batch, Input, Model, Part
from vlmplan.architecture.modules import Linear, Module, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.notes import Caveat
from vlmplan.recipe.lora_targets import unpacked_linears
from vlmplan.units import DType

ENCODER, DECODER = "encoder", "decoder"
"""Names of the two stacks of a model that has both."""
STATES_DIMENSIONS = 3
"""Of the states that an encoder hands on: samples, places, width."""
MEETING = ("attend", "call")
"""How tokens meet what comes of images where they attend to it."""
OLD_EXPERTS: Mapping[str, Mapping[str, str]] = {"beam": OLD_EXPERT_NAMES}
"""Model types without a family of which peft turns the names that experts had into parameters
(``_MODEL_TO_CONVERSION_PATTERN`` in transformers 5.23 ``conversion_mapping.py``)."""
GENERIC_TERMS = "activations, FLOPs and time are those of a generic decoder"
"""What a note says of the numbers of such a tree, as long as nothing better is known."""


class GenericModel(Model):
    """A model described by its layout. ``build_generic`` makes a subclass for each, with its paths and parts."""

    encodes_before_generating = False  # which takes a look at its class

    def __init__(
        self,
        layout: ModelLayout,
        shape: GenericShape,
        tree: Group,
        rehearsed: RehearsedLayers | None,
        images: ImageCapture | None,
    ) -> None:
        self.layout, self.shape, self.rehearsed, self.images = layout, shape, rehearsed, images
        self.modules_by_name.update(tree.modules_by_name)
        self.parameters_by_name.update(tree.parameters_by_name)

    def module(self, path: str) -> Any:
        module: Module = self
        for name in path.split("."):
            module = module.modules_by_name[name]
        return module

    def replace(self, name: str, module: Module) -> None:
        self.modules_by_name[name] = module

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        self._refuse_recurrence()
        used = {id(part) for part in (self.head, self.input_embeddings) for _, part in part.named_modules()}
        outside = [module for _, module in self._outside_stacks() if not isinstance(module, Stack)]
        with ids.tape.section("embedding"):
            x = self.input_embeddings(ids)
            if x.shape[-1] != self.shape.hidden_size:
                x = self._projected(x, self.shape.hidden_size, outside, used)
        seen = None if pixels is None else self._seen(batch, pixels, backend)
        states = self._states(seen) if batch.encodes_images and seen is not None else None
        if seen is not None:
            x = self._with_images(ids, x, seen)
        with ids.tape.section("positions"):
            context = GenericContext(self._backend(backend), self.shape, *self._positions(x), states=states)
        x = self._written(batch, x, context) if batch.target_tokens else self._through_layers(x, context)
        if seen is not None:
            ids.tape.outputs.tensors += seen.leave()
        with ids.tape.section("norm"):
            for module in outside:
                if isinstance(module, NORMS) and id(module) not in used and _fits(module, x):
                    x = module(x)
                    used.add(id(module))
            head_width = self.head.weight.shape[1]
            if x.shape[-1] != head_width:
                x = self._projected(x, head_width, outside, used)
            for module in outside:
                x = use_own(x, module, used)
            return x

    def id_inputs(self, batch: Batch) -> Sequence[Input]:
        """The inputs of an encoder that reads an image alone: what the decoder is given and what it is to write."""
        return [(batch.token_shape, DType.INT64)] * 2 if batch.encodes_images else super().id_inputs(batch)

    def pixel_shape(self, batch: Batch) -> tuple[int, ...] | None:
        if self.images is None:
            return None
        return next(iter(self.images.input_shapes(batch.micro_batch).values()))[0]

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        if self.images is None:
            return ()
        _, *others = self.images.input_shapes(batch.micro_batch).values()
        of_floats = (batch.pixel_dtypes or (self.head.weight.dtype,))[-1]
        others = [(shape, of_floats if dtype.is_floating else dtype) for shape, dtype in others]
        return [*others, *[(batch.token_shape, DType.INT64) for _ in self.images.token_inputs]]

    def _seen(self, batch: Batch, pixels: Tensor, backend: AttentionBackend) -> ProgramRun:
        """The images of the micro batch through everything in front of the language model."""
        assert self.images is not None
        backend = self._backend(backend)
        program = self.images.program(batch.micro_batch, backend.implementation)
        run = ProgramRun(self, program, pixels.tape, backend, dtype=self.head.weight.dtype)
        run.run(pixels)
        return run

    def _states(self, seen: ProgramRun) -> Tensor | None:
        """What an encoder has made of an image, (samples, states, width), for a decoder that attends to it in every
        layer; nothing of it enters the embeddings."""
        found = [value for value, _ in seen.entering if len(value.shape) == STATES_DIMENSIONS]
        seen.entering.clear()
        return found[-1] if found else None

    def _with_images(self, ids: Tensor, x: Tensor, seen: ProgramRun) -> Tensor:
        """The embeddings with what comes of images in the place of their tokens."""
        tape = ids.tape
        with tape.section("scatter"):
            while seen.entering:
                features, how = seen.entering.pop(0)
                by = str(how.values.get("by"))
                if by in MEETING:
                    x = use(x, features)
                elif by.endswith("_"):
                    x = into(x, features, replaces=True)
                else:
                    mask, features = tape.tensor(ids.shape, DType.BOOL), ops.to(features, x.dtype)
                    if by == "add" and how.values.get("is_picked"):
                        features = ops.add(picked(x, mask, features.shape), features)
                    x = ops.masked_scatter(x, mask, features)
                    del mask
                del features
        return x

    def _refuse_recurrence(self) -> None:
        """What mixers with states save depends on the kernels that are installed, by factors of ten: no guess."""
        mixers = recurrent_classes(self.layout)
        if mixers and self.rehearsed is None:
            kinds = " and ".join(mixers[:3])
            raise InputError(
                f"{self.layout.class_name} has layers of {kinds}, whose memory is known from a rehearsal alone: "
                f"pip install 'vlmplan[train]'"
            )

    @property
    def layers(self) -> Stack | None:
        """The language model's layers: its longest list of layers that share modules; None without any."""
        stacks = [module for _, module in self._outside_stacks() if isinstance(module, Stack)]
        return max(stacks, key=lambda stack: len(stack.pattern), default=None)

    def _written(self, batch: Batch, x: Tensor, context: GenericContext) -> Tensor:
        """What a decoder makes of the answers, with what an encoder has made of x, the prompts, in sight."""
        tape = x.tape
        states = self._through_layers(x, replace(context, is_causal=False), part=ENCODER)
        tape.locals.append(states.detached())
        with tape.section("embedding.again"):
            answers = self.input_embeddings(tape.tensor((batch.micro_batch, batch.target_tokens), DType.INT64))
        num_streams, width = 1 + self.shape.stacks.num_predictions, answers.shape[-1]
        if num_streams == 1:
            return self._through_layers(answers, replace(context, states=states), part=DECODER)
        answers = ops.resample(answers, batch.micro_batch, num_streams * batch.target_tokens, width)
        made = self._through_layers(answers, replace(context, states=states), part=DECODER)
        return ops.part(made, batch.micro_batch, (num_streams - 1) * batch.target_tokens, width)

    def _through_layers(self, x: Tensor, context: GenericContext, part: str | None = None) -> Tensor:
        """x through all layers of the language model, or of the ``part`` that has this name in theirs."""
        layers, rehearsed = self.layers, self.rehearsed or UNCORRECTED
        kinds = (
            {} if layers is None else {id(layer): kind for kind, layer in zip(layers.alike, layers.kinds, strict=True)}
        )

        def run(layer: Group, hidden: Tensor) -> Tensor:
            out = LayerRun(context).layer(layer, hidden)
            kind = kinds.get(id(layer))
            return out if kind is None else keep_bytes(out, *rehearsed.of(kind, hidden))

        def look(layer: Group, hidden: Tensor, states: Tensor) -> Tensor:
            return use(LayerRun(replace(context, states=states)).layer(layer, hidden), states)

        for name, module in self._outside_stacks():
            if part is not None and part not in name.split("."):
                continue
            if isinstance(module, Stack) and context.states is not None:
                x = module.run_each(x, look, context.states, sharing=range(len(module.kinds)))
            elif isinstance(module, Stack):
                x = module.run(x, run)
            elif isinstance(module, Group) and module.role is Role.LIST:
                for block in module.blocks:
                    layer = module.modules_by_name[block]
                    assert isinstance(layer, Group)
                    with x.tape.section(f"{name}.{block}"):
                        x = LayerRun(context).layer(layer, x)
        return x

    def _outside_stacks(self) -> Iterator[tuple[str, Module]]:
        """The modules of the language model in order with their names, those inside stacks and lists left out."""
        pending: list[tuple[str, Module]] = [("", self)]
        while pending:
            prefix, module = pending.pop()
            yield prefix, module
            if isinstance(module, Stack) or (isinstance(module, Group) and module.role is Role.LIST and module.blocks):
                continue
            named = [(f"{prefix}.{name}" if prefix else name, child) for name, child in module.children()]
            pending += [(name, child) for name, child in reversed(named) if self.part_of(name) is Part.LANGUAGE]

    def _projected(self, x: Tensor, width: int, outside: Sequence[Module], used: set[int]) -> Tensor:
        """x through the Linear that leads to ``width``; a new tensor where there is none."""
        for module in outside:
            linear = module if isinstance(module, Linear) else None
            if linear is not None and (linear.in_features, linear.out_features) == (x.shape[-1], width):
                used.add(id(linear))
                return linear(x)
        return ops.resample(x, *x.shape[:-1], width)

    def _backend(self, backend: AttentionBackend) -> AttentionBackend:
        """The asked for implementation, or eager where the model does not take it, as transformers chooses then."""
        is_supported = backend.implementation in self.layout.attention
        return backend if is_supported else replace(backend, implementation="eager")

    def _positions(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if not self.shape.has_rotary:
            return None, None
        shape = (1, 1, x.shape[1], self.shape.head_dim)
        return x.tape.tensor(shape, x.dtype), x.tape.tensor(shape, x.dtype)


def _fits(norm: Module, x: Tensor) -> bool:
    widths = [parameter.shape[0] for parameter in norm.parameters_by_name.values()]
    return not widths or widths[0] == x.shape[-1]


def build_generic(
    layout: ModelLayout,
    rehearsed: RehearsedLayers | None = None,
    images: ImageCapture | None = None,
    *,
    model_type: str = "",
    stacks: StackFacts = PLAIN_STACKS,
) -> GenericModel:
    """The tree of ``layout``, with what rehearsals found of its layers, and what was captured of its images. Its
    ``model_type`` says whether names of experts mean parameters, and which Linears are never packed. ``stacks``: what
    config.json says of an encoder and a decoder besides.

    Raises InputError where its dimensions cannot be told, or its head has weights beside a Linear's (Dory).
    """
    shape = replace(generic_shape(layout), stacks=stacks)
    old_experts = OLD_EXPERTS.get(model_type, {})
    builder = TreeBuilder(layout, shape, unpacked=unpacked_linears(model_type))
    tree = builder.group("")
    names = {
        "EMBEDDINGS": layout.embeddings,
        "HEAD": layout.head,
        "PARTS": builder.parts(),
        "attention_linears": builder.attention_linears(),
        "PARAMETER_TARGETS": old_experts,
    }
    model = type(layout.class_name, (GenericModel,), names)(layout, shape, tree, rehearsed, images)
    if isinstance(model.head, Group):
        raise InputError(f"the head of {layout.class_name} has weights beside a Linear's, so it cannot be planned")
    return model


def generic_shape(layout: ModelLayout) -> GenericShape:
    """The dimensions of the layers. Raises InputError without a hidden size or a number of heads that fits it."""
    hidden_size = layout.integer("hidden_size")
    if hidden_size is None:
        raise InputError(f"config.json says no hidden_size of {layout.class_name}, so its layers cannot be described")
    num_heads = layout.integer("num_attention_heads") or 1
    return GenericShape(
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=layout.integer("num_key_value_heads") or num_heads,
        head_dim=layout.integer("head_dim") or max(1, hidden_size // num_heads),
        experts_per_token=layout.integer("num_experts_per_tok") or 1,
        activation=str(layout.dimensions.get("hidden_act", "")),
        is_parallel=bool(layout.dimensions.get("is_parallel")),
        attention_dropout=_fraction(layout.dimensions.get("attention_dropout")),
        has_rotary=any("Rotary" in module.class_name for module in layout.modules),
        merges_states=any("MergedAttention" in module.class_name for module in layout.modules),
    )


def has_attention(model: GenericModel) -> bool:
    """Whether attention runs in any layer of the language model."""
    groups = [(name, module) for name, module in model.distinct_modules() if isinstance(module, Group)]
    return any(
        group.role is Role.ATTENTION and output_step(group.steps, model.shape.hidden_size) is not None
        for name, group in groups
        if model.part_of(name) is Part.LANGUAGE
    )


def _fraction(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1 else 0.0


def generic_notes(layout: ModelLayout, model_type: str) -> tuple[str, ...]:
    """What the user should know of numbers that come from such a tree."""
    mixers, stacked = recurrent_classes(layout), unmultiplied_classes(layout)
    exact = f"its parameters and Linears are exact, as transformers {layout.transformers_version} builds them"
    if mixers:
        kinds = " and ".join(mixers[:3])
        return (
            Caveat(
                f"vlmplan does not describe {model_type}: {exact}; what {kinds} need is that of transformers' own "
                f"torch code, as rehearsed, and kernels of other packages need less. FLOPs and time are those of its "
                f"Linears."
            ),
        )
    notes: list[str] = [Caveat(f"vlmplan does not describe {model_type}: {exact}; {GENERIC_TERMS}.")]
    if stacked:
        notes.append(Caveat(f"Of {' and '.join(stacked[:3])} only the weights are counted, not their products."))
    if not has_attention(build_generic(layout)):
        notes.append(Caveat("No attention was recognised in it, so what attention needs is missing."))
    if "sdpa" not in layout.attention:
        notes.append("It has no sdpa attention, so the larger scores of eager attention are counted.")
    return tuple(notes)
