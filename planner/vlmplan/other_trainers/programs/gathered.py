"""The values of a training run, gathered call by call, and what is found."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from vlmplan.errors import InputError
from vlmplan.notes import Caveat, listed
from vlmplan.other_trainers.evaluated import METRICS, PATIENCE, THRESHOLD
from vlmplan.other_trainers.idle_kinds import FLAGS
from vlmplan.other_trainers.programs.calls import Call, Keyword, Program
from vlmplan.other_trainers.programs.parsed_arguments import ARGUMENTS, fields_of
from vlmplan.other_trainers.programs.source import ProgramSource
from vlmplan.other_trainers.record import Unwritten
from vlmplan.recipe.choices import ALL_LINEAR

SFT_TRAINERS: Final = ("SFTTrainer", "UnslothTrainer", "UnslothSFTTrainer")
DPO_TRAINERS: Final = ("DPOTrainer", "UnslothDPOTrainer")
REWARD_TRAINERS: Final = ("RewardTrainer",)
KTO_TRAINERS: Final = ("KTOTrainer",)
GRPO_TRAINERS: Final = ("GRPOTrainer",)
UNSLOTH_GRPO: Final = "UnslothGRPOTrainer"
OF_TRAINER: Final = ("max_seq_length", "max_length", "packing", "model_init_kwargs")
"""Keywords of trainers that older versions of TRL have in place of their arguments'."""
OTHERWISE: Final = "; vlmplan rehearse -- python FILE runs it as it is, without a GPU"
"""On a program of which not everything is read."""
RESIZES: Final = "resize_token_embeddings"
"""Of a model: for tokens that the tokenizer is given."""
STOPS: Final = "EarlyStoppingCallback"
ANY_TEXT: Final = ("output_dir",)
"""Keywords of which it only matters that they are there."""
OF_EVALUATION: Final = frozenset(
    """eval_strategy evaluation_strategy eval_steps per_device_eval_batch_size load_best_model_at_end
    metric_for_best_model greater_is_better do_eval""".split()
)
"""Keywords that programs decide by whether they have samples to evaluate."""
OF_BF16: Final = ("bfloat16", True)
"""Values of keys by which a program computes in bf16."""
AS_WITH_BF16: Final = "is taken as on a GPU that computes in bf16"
ARGUMENTS_KEY: Final = "arguments"
"""The class of the arguments, which no keyword says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """What a program trains: ``values`` by key, ``keywords`` where each stands, ``calls`` by the part that has it."""

    trainer: str
    values: Mapping[str, Any]
    keywords: Mapping[str, Keyword]
    trains: Call
    """That makes the trainer."""
    loads: Call | None
    adapts: Call | None
    arguments: Call | None
    source: ProgramSource = field(repr=False)
    notes: tuple[str, ...] = ()
    own_keys: frozenset[str] = frozenset()
    """Fields of a class of the program's own that is made of the trainer's arguments: those that these do not have
    mean nothing to the trainer."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that it sets itself."""
    loads_language_alone: bool = False
    """Whether a class of language models loads its model, of one that sees, too, the language model alone."""


@dataclass(slots=True, kw_only=True)
class Gathered:
    """The values of the run that ``trainer`` is."""

    program: Program
    trainer: Call
    all_calls: list[Call]
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    keywords: dict[str, Keyword] = field(default_factory=dict[str, Keyword])
    only: dict[str, str] = field(default_factory=dict[str, str])
    """Expressions that are taken for the only call of a name."""
    evaluated: list[str] = field(default_factory=list[str])
    """Conditions of evaluations that are taken to hold."""
    switched_on: list[str] = field(default_factory=list[str])
    """Calls that switch checkpoints on where the arguments do not."""
    stops: list[str] = field(default_factory=list[str])
    """Sentences on a callback that ends the run."""

    @property
    def is_dpo(self) -> bool:
        return self.trainer.name in DPO_TRAINERS

    @property
    def is_grpo(self) -> bool:
        return self.trainer.name in (*GRPO_TRAINERS, UNSLOTH_GRPO)

    def take(self, keywords: Mapping[str, Keyword]) -> None:
        for name, keyword in keywords.items():
            self.keywords[name] = keyword
            value = self._unknown(name, keyword) if keyword.worth is None else keyword.worth.value
            # A program's arguments are not looked at, where those of a command and a file have to be true or false.
            self.values[name] = bool(value) if name in FLAGS and isinstance(value, (int, float)) else value

    def _unknown(self, name: str, keyword: Keyword) -> Any:
        """What stands for a value that only running the program tells; of evaluations that it makes where it has
        samples for them, what it says then."""
        node = keyword.node
        node = (self.program.bound(node) or node) if isinstance(node, ast.Name) else node
        has_samples = _asks_for_samples(node.test) if name in OF_EVALUATION and isinstance(node, ast.IfExp) else None
        if has_samples is not None and isinstance(node, ast.IfExp):
            found = self.program.value_of(node.body if has_samples else node.orelse)
            if found is not None:
                self.evaluated.append(self.program.text_of(node.test))
                return found
        return self._unwritten(name, keyword.text)

    def _unwritten(self, name: str, text: str) -> str:
        if name in ANY_TEXT:
            return text
        found, needed = Unwritten(text), self.program.required_options
        found.advice = (
            f"; {', '.join(needed)} may say it: a shell script that holds the command is read" if needed else ""
        )
        return found

    def only_call(self, names: Sequence[str], text: str) -> Call | None:
        """The one call of these that the program has, for an object that only running it hands on, which is said."""
        calls = [call for call in self.all_calls if call.name in names]
        if len(calls) != 1:
            return None
        if text not in self.only:
            self.only[text] = calls[0].name
        return calls[0]

    def arguments(self) -> Call | None:
        """The call that makes the trainer's arguments; None where it takes its defaults."""
        given = self.trainer.keywords.get("args")
        if given is None:
            return None
        found = self.program.call_of(given.node) or self.only_call(ARGUMENTS, given.text)
        if found is None or found.name not in ARGUMENTS:
            raise InputError(
                f"{self.program.source}: the arguments of {self.trainer.name} are not written as one call of "
                f"{', '.join(ARGUMENTS[:6])}; only running the program tells them{OTHERWISE}"
            )
        return found

    def of_training(self, arguments: Call | None) -> dict[str, Keyword]:
        """The keywords of the arguments, and those that older trainers have in their place."""
        found = {name: self.trainer.keywords[name] for name in OF_TRAINER if name in self.trainer.keywords}
        if arguments is not None:
            self.values[ARGUMENTS_KEY] = arguments.name
            found |= self.made(arguments)
        return found

    @property
    def own_keys(self) -> frozenset[str]:
        """Fields of the program's own among the arguments."""
        found = self.arguments()
        return frozenset() if found is None else frozenset(fields_of(self.program.tree, found.own_name))

    def made(self, call: Call) -> dict[str, Keyword]:
        """What the object has that a call makes, when the trainer takes it: keywords, and what it is given later."""
        return self.named(call, ()) | self.program.given_later(call, self.trainer)

    def named(self, call: Call, positions: tuple[str, ...]) -> dict[str, Keyword]:
        """The keywords of a call, those without a name by their place."""
        if call.unpacked:
            raise InputError(
                f"{self.program.source}: {call.name} takes **{call.unpacked[0]}, which only running the program tells; "
                f"write its values{OTHERWISE}"
            )
        found = dict(call.keywords)
        for name, node in zip(positions, call.node.args, strict=False):
            found[name] = self.program.keyword(name, node, self.program.span(node), is_removable=False)
        return found

    def last_before(self, calls: list[Call]) -> Call | None:
        """The last of these before the trainer is made; the only one, where that stands in a function before it."""
        before = [call for call in calls if call.span < self.trainer.span]
        return before[-1] if before else calls[0] if len(calls) == 1 else None

    def take_metrics(self) -> None:
        """Take which functions the trainer is given that decide what an evaluation keeps."""
        given = {key: self.trainer.keywords[key].worth for key in METRICS if key in self.trainer.keywords}
        self.values |= {key: True for key, worth in given.items() if worth is None or worth.value is not None}

    def take_stops(self) -> None:
        """Take how many evaluations without a better one end the run, where its result is that of the best.

        Raises InputError where transformers stops because nothing says what is best (``on_train_begin``)."""
        stops = next((call for call in self.all_calls if call.name == STOPS), None)
        if stops is None:
            return
        keeps, metric = (self.values.get(name) for name in ("load_best_model_at_end", "metric_for_best_model"))
        if not keeps and metric is None:
            raise InputError(
                f"{self.program.source}: {STOPS} needs load_best_model_at_end or metric_for_best_model, without which "
                f"it does not know what is best, and transformers stops; give one of the two"
            )
        own = self.named(stops, (PATIENCE, THRESHOLD))
        worths = {name: one.worth.value if one.worth is not None else one.text for name, one in own.items()}
        patience = worths.get(PATIENCE, 1)
        threshold = worths.get(THRESHOLD) or 0.0
        if keeps and isinstance(patience, int) and isinstance(threshold, (int, float)):
            self.values |= {PATIENCE: patience, **({THRESHOLD: threshold} if threshold else {})}
        else:
            self.stops.append(f"{STOPS}: time and cost are those of all steps, which is the most; it may end sooner")

    def notes(self) -> tuple[str, ...]:
        known = [one for one in self.keywords.values() if one.worth is not None]
        asks = [one.text for one in known if one.worth is not None and one.worth.asks_for_bf16]
        if any(self.values.get(name) in OF_BF16 for name in ("dtype", "torch_dtype", "bf16")):
            asks += [self.program.text_of(test) for test in self.program.literals.asked]
        options = [one.text for one in known if one.worth is not None and one.worth.is_default]
        notes = [f"{text} {AS_WITH_BF16}; --precision fp16 plans one that does not, such as a T4" for text in asks[:1]]
        if options:
            notes.append(f"options of the program are taken at their defaults: {', '.join(dict.fromkeys(options))}")
        listed_by = [one for one in known if one.worth is not None and one.worth.value == ALL_LINEAR]
        notes += [
            f"{one.text} is taken for {ALL_LINEAR}: its function lists what all Linears but the head are called"
            for one in listed_by
            if one.worth is not None and isinstance(one.worth.written, ast.Call)
            if isinstance(one.worth.written.func, ast.Name)
        ]
        notes += [f"{text} is taken for the only {name} that the program makes" for text, name in self.only.items()]
        if self.evaluated:
            notes.append(
                f"{self.evaluated[0]}: decided as where there are samples to evaluate; eval_strategy 'no', written "
                f"there, plans without"
            )
        if self.switched_on:
            notes.append(
                f"gradient_checkpointing is false, but {self.switched_on[0]} switches checkpoints on in the model, and "
                f"no trainer switches them off"
            )
        if any(call.name == RESIZES for call in self.all_calls):
            notes.append(
                f"{RESIZES}: embedding and head are planned with the checkpoint's rows; what it adds or takes away is "
                f"not counted"
            )
        notes += [*self.stops, *self.program.files.notes]
        if self.program.modules.files:
            names = listed([path.name for path in self.program.modules.files])
            notes.append(f"{self.program.source} imports from {names}: what it takes from there is read with it")
        own = next((name for name in self.program.subclasses if name == self.trainer.own_name), None)
        if own in self.program.computing:
            notes.append(
                Caveat(
                    f"{own} computes a loss of its own, which is not known: planned with that of {self.trainer.name}; "
                    f"what its own makes beside the model's outputs is in no number"
                )
            )
        elif own is not None:
            notes.append(f"{own} is planned as {self.trainer.name}, of which it changes no step")
        return tuple(notes)


def _asks_for_samples(test: ast.expr) -> bool | None:
    """Whether a condition holds where what it names is there: ``data is not None``, ``data``, ``len(data) > 0``; None
    for another."""
    if isinstance(test, (ast.Name, ast.Attribute)):
        return True
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        found = _asks_for_samples(test.operand)
        return None if found is None else not found
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.comparators[0], ast.Constant):
        return None
    (operator,), value = test.ops, test.comparators[0].value
    if value is None and isinstance(operator, (ast.Is, ast.IsNot)):
        return isinstance(operator, ast.IsNot)
    return True if value == 0 and isinstance(operator, ast.Gt) and isinstance(test.left, ast.Call) else None
