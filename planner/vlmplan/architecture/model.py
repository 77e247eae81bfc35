"""A whole trainable model: its parts, its parameters in order, and one micro batch through it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.batch import Batch
from vlmplan.architecture.first_layer import UnequalLayersError
from vlmplan.architecture.losses.axolotl_answers import axolotl_answers_loss
from vlmplan.architecture.losses.axolotl_odds import axolotl_pairs_loss
from vlmplan.architecture.losses.cross_entropy import chunked_loss, full_loss, whole_logits
from vlmplan.architecture.losses.fused_head import fused_loss
from vlmplan.architecture.losses.liger import liger_loss
from vlmplan.architecture.losses.log_softmax import AUTOCAST_LEFT, preference_loss, widened
from vlmplan.architecture.losses.openrlhf import openrlhf_loss, outputs_before
from vlmplan.architecture.losses.row import row_loss
from vlmplan.architecture.losses.selective import selective_preference_loss
from vlmplan.architecture.losses.selective_odds import selective_odds_loss
from vlmplan.architecture.losses.tempered import scored_hidden, tempered_answer_loss
from vlmplan.architecture.losses.unsloth import unsloth_loss
from vlmplan.architecture.losses.verl import verl_fused_loss, verl_loss, verl_quotient_loss
from vlmplan.architecture.modules import Module, Stack
from vlmplan.architecture.named_parameters import NamedParameter, collect_parameters
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.read_weights import ReadHead, begin_forward, end_forward
from vlmplan.architecture.reward_model import loss_of_pairs
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.tensor import Tensor
from vlmplan.architecture.trace import INPUTS, Trace
from vlmplan.recipe.choices import TEMPERED, LossKind, Part
from vlmplan.units import DType

Input = tuple[tuple[int, ...], DType]
"""Shape and type of a tensor of a batch."""
LOSSES_OUTSIDE = (
    *(LossKind.FULL, LossKind.VERL, LossKind.VERL_QUOTIENT, LossKind.LOG_SOFTMAX, LossKind.ROWS),
    *(LossKind.OPENRLHF, LossKind.SELECTIVE, LossKind.AXOLOTL, LossKind.AXOLOTL_ANSWERS, *TEMPERED),
)
"""Those of whole logits that the model has returned."""
LOSSES_OF_HIDDEN = (*(LossKind.TRL, LossKind.LIGER, LossKind.VERL_FUSED, LossKind.UNSLOTH, LossKind.BRADLEY_TERRY),)
"""Those of logits that are never all there."""


class Model(Module):
    """Base of the ``...ForCausalLM`` and ``...ForConditionalGeneration`` classes.

    Subclasses build the tree with transformers' attribute names and define ``last_hidden_state``.
    """

    PARTS: ClassVar[Mapping[str, Part]] = {}
    """Name prefixes of parts; the longest that matches decides, LANGUAGE where none does."""
    EMBEDDINGS: ClassVar[str] = "model.embed_tokens"
    """Path of the input embedding."""
    HEAD: str = "lm_head"
    """Path of the output head."""
    PARAMETER_TARGETS: ClassVar[Mapping[str, str]] = {}
    """Parameters, by suffix, that LoRA targets mean which were names of Linears once (experts in transformers 4)."""
    attention_linears: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    """Linears that ``--lora-targets attention`` adapts."""
    caps_logits = False
    """Whether logits pass through ``tanh`` (Gemma 2)."""
    scales_logits = False
    """Whether logits are divided by a number (Granite)."""
    widens_logits = False
    """Whether the model itself casts logits to float32 (Mamba-2)."""
    adds_to_logits = False
    """Whether a constant is added to logits (BART)."""
    tells_tied_head = True
    """Whether the class names the weights that a tied head shares, so that peft copies one of both to train it."""
    calls_head_inside = False
    """Whether a function inside makes the logits, whose last hidden state is gone when the loss is made."""
    encodes_before_generating = True
    """Whether ``generate`` runs the encoder of images itself (``encoder_first``)."""
    narrows_loss = False
    """Whether the model's own loss is of logits in their type (``CrossEntropyLoss`` of BART and Whisper)."""
    buffer_dtype = DType.BFLOAT16
    """Element type of tables that are no parameters, but are loaded with them."""
    reads_own_head = False
    """Whether its forward reads the weight of the head that it calls (Mamba-2)."""
    scores_rows = False
    """Whether its head makes one number of a row (``reward_model``)."""
    model_type = ""
    """That of its config.json, where it is of a family."""
    _stacks: list[tuple[Part, Stack]] | None = None

    def module(self, path: str) -> Any:
        """The module at a dotted path of attributes."""
        module: Any = self
        for name in path.split("."):
            module = getattr(module, name)
        return module

    @property
    def input_embeddings(self) -> Any:
        return self.module(self.EMBEDDINGS)

    @property
    def head(self) -> Any:
        return self.module(self.HEAD)

    @property
    def logit_changes(self) -> dict[str, Any]:
        """What becomes of logits behind the head."""
        changes = {"caps": self.caps_logits, "scales": self.scales_logits, "widens": self.widens_logits}
        return changes | {"adds": self.added_dtype}

    @property
    def added_dtype(self) -> DType | None:
        """Element type of the constant that is added to logits; None without one."""
        return self.buffer_dtype if self.adds_to_logits else None

    @cached_property
    def _readers(self) -> tuple[ReadHead, ReadHead]:
        """The model as what reads the weight of its head, and the same where it also runs with its adapters off: one
        object each. Adapters have to be in place."""
        return ReadHead(self.head), ReadHead(self.head, runs_without_adapters=True)

    def reader(self, tape: Tape) -> ReadHead:
        """The model as what reads the weight of its head."""
        return self._readers[tape.runs_without_adapters]

    @cached_property
    def calling_reader(self) -> ReadHead:
        """The reader of the head's weight that calls the head too."""
        return ReadHead(self.head, calls_head=True)

    def reader_of(self, tape: Tape, loss: LossKind | None) -> ReadHead | None:
        """What reads the head's weight in this loss; None where the head is called as a module and no more."""
        if loss is LossKind.TRL or (loss is LossKind.LIGER and tape.reads_head):
            return self.reader(tape)
        return self.calling_reader if self.reads_own_head else None

    def tie_weights(self) -> None:
        """Let the output head use the input embedding's weight."""
        self.head.weight = self.input_embeddings.weight

    @property
    def ties_weights(self) -> bool:
        return self.head.weight is self.input_embeddings.weight

    def part_of(self, name: str) -> Part:
        best, part = -1, Part.LANGUAGE
        for prefix, candidate in self.PARTS.items():
            if len(prefix) > best and (name == prefix or name.startswith(prefix + ".")):
                best, part = len(prefix), candidate
        return part

    def parameters(self) -> list[NamedParameter]:
        """Every parameter once, in the order of ``torch.nn.Module.parameters()``."""
        found: list[NamedParameter] = []
        collect_parameters(self, "", None, Part.LANGUAGE, self.PARTS, found)
        first: dict[tuple[int, int | None], NamedParameter] = {}
        for one in found:
            first.setdefault((id(one.parameter), one.layer), one)
        return list(first.values())

    def repeated_parameters(self) -> list[NamedParameter]:
        """Those that layers share, once for every layer but the first that holds them."""
        found: list[NamedParameter] = []
        collect_parameters(self, "", None, Part.LANGUAGE, self.PARTS, found)
        shared = [entry for entry in found if entry.parameter.shared_uses]
        first = {id(entry.parameter): entry for entry in reversed(shared)}
        return [entry for entry in shared if entry is not first[id(entry.parameter)]]

    def distinct_modules(self) -> Iterator[tuple[str, Module]]:
        """Every module object once: equal layers share one."""
        seen: set[int] = set()
        pending: list[tuple[str, Module]] = [("", self)]
        while pending:
            prefix, module = pending.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield prefix, module
            children = module.distinct_children() if isinstance(module, Stack) else module.children()
            pending += [(f"{prefix}.{name}" if prefix else name, child) for name, child in children]

    def distinct_parameters(self) -> Iterator[tuple[Part, Parameter]]:
        """Every parameter object once, with its part; a shared one belongs to the part that is seen first."""
        seen: set[int] = set()
        for prefix, module in self.distinct_modules():
            part = self.part_of(prefix)
            for name, parameter in module.parameters_by_name.items():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    own = f"{prefix}.{name}" if prefix else name
                    yield (self.part_of(own) if own in self.PARTS else part), parameter

    def stacks(self) -> list[tuple[Part, Stack]]:
        """Every stack with its part, found once: adapters and quantisation change what is inside of layers."""
        if self._stacks is None:
            modules = self.distinct_modules()
            self._stacks = [(self.part_of(name), module) for name, module in modules if isinstance(module, Stack)]
        return self._stacks

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        """The hidden states before the output head, shape (micro_batch, num_tokens, width)."""
        raise NotImplementedError(type(self).__name__)

    def id_inputs(self, batch: Batch) -> Sequence[Input]:
        """input_ids, labels and attention_mask, or position_ids where all are one row; and the places of tokens where
        ranks share samples, the same for all. Of an encoder and a decoder input_ids, attention_mask and the answers."""
        if batch.target_tokens:
            return [*[(batch.token_shape, DType.INT64)] * 2, ((batch.micro_batch, batch.target_tokens), DType.INT64)]
        inputs: list[Input] = [(batch.token_shape, DType.INT64)] * (2 if self.scores_rows else 3)
        inputs *= 1 + batch.has_kl_rows
        return inputs if batch.sequence_parallel == 1 else [*inputs, ((1, batch.num_tokens), DType.INT64)]

    def pixel_shape(self, batch: Batch) -> tuple[int, ...] | None:
        """Shape of the pixel values of the micro batch, None without a vision encoder."""
        return None

    def more_inputs(self, batch: Batch) -> Sequence[Input]:
        """The further inputs that the processor makes from images, such as pixel masks."""
        return ()

    def spectrogram_shape(self, batch: Batch) -> tuple[int, ...] | None:
        """Shape of the spectrograms of the micro batch's sounds, None without an audio tower."""
        return None

    def more_audio_inputs(self, batch: Batch) -> Sequence[Input]:
        """The further inputs that the processor makes from sounds, such as masks of frames."""
        return ()

    def run(self, tape: Tape, batch: Batch, backend: AttentionBackend, *, loss: LossKind) -> Trace:
        """Forward, loss and backward of one micro batch on ``tape``; the batch itself stays for the step."""
        try:
            return self._run(tape, batch, backend, loss=loss)
        except UnequalLayersError:
            return self._run(tape.again(), batch, backend, loss=loss)

    def inputs(self, tape: Tape, batch: Batch) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """The tensors of a batch: token ids, pixels as the model gets them where there are images, and the others.

        Spectrograms, as it gets them, are the tape's.
        """
        with tape.section(INPUTS):
            tape.keeps_logits = batch.keeps_logits
            tape.kept_outputs += outputs_before(tape, batch, self.head, self.input_embeddings)
            ids, *others = (tape.tensor(*described) for described in self.id_inputs(batch))
            dtypes = batch.pixel_dtypes or (self.compute_dtype(tape),)
            floats, integers = self._encoded_inputs(batch)
            of_floats = [None if shape is None else [tape.tensor(shape, dtype) for dtype in dtypes] for shape in floats]
            pixels, tape.spectrograms = (None if made is None else made.pop() for made in of_floats)
            others += [one for made in of_floats for one in made or ()]
            others += [tape.tensor(*described) for described in integers]
            if batch.has_kl_images:
                again = [(shape, dtype) for shape in floats if shape is not None for dtype in dtypes]
                others += [tape.tensor(*described) for described in (*again, *integers)]
        tape.cloned += self._clones(tape, batch)
        return ids, pixels, others

    def _encoded_inputs(self, batch: Batch) -> tuple[Sequence[tuple[int, ...] | None], list[Input]]:
        """Shapes of pixels and spectrograms, each None where there are none, and the inputs beside them."""
        floats: list[tuple[int, ...] | None] = [None, None]
        others: list[Input] = []
        if batch.num_images:
            floats[0] = self.pixel_shape(batch)
            others += self.more_inputs(batch)
        if batch.num_audios:
            floats[1] = self.spectrogram_shape(batch)
            others += self.more_audio_inputs(batch)
        return floats, others

    def sent_bytes(self, batch: Batch) -> list[int]:
        """Bytes of each tensor of a batch, which says its ``pixel_dtypes``, as it comes to the GPU."""
        floats, others = self._encoded_inputs(batch)
        of_floats = [(shape, batch.pixel_dtypes[0]) for shape in floats if shape is not None]
        described = [*self.id_inputs(batch), *(of_floats + others) * (1 + batch.has_kl_images)]
        return [math.prod(shape) * dtype.num_bytes for shape, dtype in described]

    def _run(self, tape: Tape, batch: Batch, backend: AttentionBackend, *, loss: LossKind) -> Trace:
        ids, pixels, others = self.inputs(tape, batch)
        reader = begin_forward(tape, self.reader_of(tape, loss))
        hidden: Tensor | None = self.run_without_head(batch, ids, pixels, batch.attention(backend))
        outputs, logits = None, None
        with tape.head():
            if loss is LossKind.CHUNKED:
                total = end_forward(reader, chunked_loss(hidden, self.head, adds=self.added_dtype), returns_it=False)
                tape.leave_model()
            elif loss in LOSSES_OF_HIDDEN:
                total = self.loss_of_hidden(tape, hidden, batch, loss, reader)
                tape.leave_model()
            else:
                scored = scored_hidden(hidden, batch, loss)
                total = logits = end_forward(reader, whole_logits(scored, self.head, **self.logit_changes))
                del scored
                outputs = logits.detached() if loss is LossKind.FULL else None
                tape.locals += self._beside_logits(hidden)
                if loss in LOSSES_OUTSIDE:
                    tape.leave_model()
            hidden = None
            if logits is None:
                tape.end_forward()
        if logits is not None:
            made = [logits]
            total = logits = None
            total = self.loss_behind_head(tape, made, loss, batch)
        if len(batch.pixel_dtypes) > 1:
            tape.cast_inputs += [one for one in (pixels, tape.spectrograms) if one is not None]
            pixels = tape.spectrograms = None
        tape.run_backward(total)
        tape.end_backward()
        del outputs, total
        tape.drop_outputs(keeps_leaves=batch.keeps_graph)
        trace = tape.trace()
        trace.kept_bytes = sum(one.num_bytes for one in tape.leaves) if batch.keeps_graph else 0
        del pixels, ids, others
        return trace

    def run_without_head(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        """The last hidden state; what the model without its head held is gone."""
        hidden = self.last_hidden_state(batch, ids, pixels, backend)
        ids.tape.outputs.leave_locals()
        return hidden

    def _clones(self, tape: Tape, batch: Batch) -> list[Tensor]:
        """Copies of all inputs, where a forward runs on such (``nested_detach`` of LLaMA-Factory)."""
        if not batch.is_cloned:
            return []
        floats, others = self._encoded_inputs(batch)
        dtype = batch.pixel_dtypes[-1] if batch.pixel_dtypes else self.compute_dtype(tape)
        with tape.section("clones"):
            of_floats = [tape.tensor(shape, dtype) for shape in floats if shape is not None]
            clones = of_floats + [tape.tensor(*described) for described in (*self.id_inputs(batch), *others)]
            tape.move(2 * sum(one.num_bytes for one in clones), len(clones))
        return clones

    def loss_behind_head(self, tape: Tape, made: list[Tensor], loss: LossKind, batch: Batch) -> Tensor:
        """The loss of whole logits, which are ``made`` and leave that list, in a section of its own: backward comes to
        the head when it has been through the loss."""
        if loss is LossKind.LOG_SOFTMAX:
            return preference_loss(tape, made, copies=batch.copies_logits)
        if loss is LossKind.OPENRLHF:
            return openrlhf_loss(tape, made)
        if loss is LossKind.SELECTIVE:
            return (selective_odds_loss if batch.learns_chosen else selective_preference_loss)(tape, made)
        if loss in TEMPERED:
            has_entropies = loss is LossKind.TEMPERED_ENTROPY
            return tempered_answer_loss(tape, made, by_token=batch.sequences is not None, with_entropy=has_entropies)
        if loss is LossKind.AXOLOTL:
            return axolotl_pairs_loss(tape, made, batch)
        if loss is LossKind.AXOLOTL_ANSWERS:
            return axolotl_answers_loss(tape, made)
        if loss is LossKind.ROWS and tape.autocast is not None:  # which accelerate's wrapper leaves before
            with tape.section(AUTOCAST_LEFT):
                tape.end_forward()
            with tape.section("loss"):
                return row_loss(widened(made))
        with tape.section("loss"):
            logits: Tensor | None = made.pop()
            total = self.loss_of_logits(logits, loss)
            logits = None
            if loss is LossKind.MODEL:
                tape.leave_model()
            tape.end_forward()
        return total

    def loss_of_hidden(
        self, tape: Tape, hidden: Tensor, batch: Batch, loss: LossKind, reader: ReadHead | None
    ) -> Tensor:
        """The loss of logits that are never all there."""
        if loss is LossKind.TRL:
            return fused_loss(hidden, self.reader(tape), scored_tokens=batch.scored_tokens)
        if loss is LossKind.BRADLEY_TERRY:
            return loss_of_pairs(hidden, self.head)
        if loss is LossKind.LIGER:
            return liger_loss(hidden, self.head, model=reader)
        if loss is LossKind.UNSLOTH:
            scored = hidden.shape[1] - 1 if batch.scored_tokens is None else batch.scored_tokens
            return unsloth_loss(hidden, self.reader(tape), scored_tokens=scored, packs=batch.image is None)
        return verl_fused_loss(hidden, self.head)

    def loss_of_logits(self, logits: Tensor, loss: LossKind | None, *, with_entropy: bool = False) -> Tensor:
        """The loss of whole logits; ``with_entropy``: of verl's quotient, which has a name here alone."""
        if loss is LossKind.VERL:
            return verl_loss(logits)
        if loss is LossKind.ROWS:
            return row_loss(logits)
        if loss is LossKind.VERL_QUOTIENT:
            return verl_quotient_loss(logits, with_entropy=with_entropy)
        return full_loss(logits, widens=not (self.narrows_loss and loss is LossKind.MODEL))

    def _beside_logits(self, hidden: Tensor) -> list[Tensor]:
        """What the function that makes the logits holds until the loss is made."""
        return [] if self.calls_head_inside else [hidden.detached()]

    def compute_dtype(self, tape: Tape) -> DType:
        if tape.autocast is not None:
            return tape.autocast
        return self.head.weight.dtype
