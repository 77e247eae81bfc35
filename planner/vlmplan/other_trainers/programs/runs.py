"""The one training run that a program holds: the calls that load a model, put adapters on it and train it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vlmplan.errors import InputError
from vlmplan.other_trainers.programs.calls import Call, Keyword, Program
from vlmplan.other_trainers.programs.source import ProgramSource
from vlmplan.other_trainers.record import Unwritten

UNSLOTH_RUN: Final = "unsloth"
UNSLOTH_DPO_RUN: Final = "unsloth dpo"
LOADERS: Final = ("FastLanguageModel", "FastVisionModel", "FastModel", "FastTextModel")
"""Classes of Unsloth that load a model, and put adapters on it."""
LOADED: Final = tuple("model_name max_seq_length dtype load_in_4bit load_in_8bit load_in_16bit full_finetuning".split())
ADAPTED: Final = tuple("model r target_modules lora_alpha lora_dropout bias".split())
"""Positional arguments of ``from_pretrained`` and ``get_peft_model`` (``models/loader.py``, ``models/llama.py``)."""
SFT_TRAINERS: Final = ("SFTTrainer", "UnslothTrainer", "UnslothSFTTrainer")
DPO_TRAINERS: Final = ("DPOTrainer", "UnslothDPOTrainer")
OTHER_TRAINERS: Final[Mapping[str, str]] = {
    **{name: name for name in ("KTOTrainer", "ORPOTrainer", "CPOTrainer", "RewardTrainer", "PPOTrainer", "BCOTrainer")},
    **dict.fromkeys(("Trainer", "Seq2SeqTrainer", "SentenceTransformerTrainer"), "a trainer of another library"),
}
GRPO_TRAINERS: Final = ("GRPOTrainer", "UnslothGRPOTrainer")
PLAIN_ARGUMENTS: Final = ("TrainingArguments", "Seq2SeqTrainingArguments")
"""Of transformers, whose defaults stay."""
ARGUMENTS: Final = ("SFTConfig", "DPOConfig", *PLAIN_ARGUMENTS, "UnslothTrainingArguments")
OF_TRAINER: Final = ("max_seq_length", "max_length", "packing")
"""Keywords of ``SFTTrainer`` that older versions of TRL have in place of ``SFTConfig``'s."""
COLLATOR: Final = "UnslothVisionDataCollator"
OF_COLLATOR: Final = ("resize", "max_seq_length")
CLASS_KEY, ADAPTERS_KEY, ARGUMENTS_KEY = "class", "get_peft_model", "arguments"
"""Keys of what no keyword says: the class that loads, whether adapters are put on, the class of the arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """What a program trains: ``values`` by key, ``keywords`` where each stands, ``calls`` by the part that has it."""

    trainer: str
    values: Mapping[str, Any]
    keywords: Mapping[str, Keyword]
    loads: Call
    adapts: Call | None
    arguments: Call | None
    source: ProgramSource = field(repr=False)
    notes: tuple[str, ...] = ()


def run_of_program(program: ProgramSource, *, source: str) -> ProgramRun | None:
    """The run of a program that loads its model with Unsloth; None for another program. Raises InputError where it
    holds no run, or more than one, or a kind that is not read."""
    parsed = Program(program.code, source=source)
    calls = parsed.calls()
    loaders = [call for call in calls if _class_of(call, "from_pretrained") in LOADERS]
    if not loaders:
        return None
    trainer = _one_trainer(calls, source)
    loads = _last_before(loaders, trainer) or loaders[0]
    adapts = _last_before([call for call in calls if _class_of(call, "get_peft_model") in LOADERS], trainer)
    return _Reading(parsed, trainer, loads, adapts, calls).run(program)


def _class_of(call: Call, method: str) -> str | None:
    holder, _, name = call.name.rpartition(".")
    return holder if name == method else None


def _last_before(calls: list[Call], trainer: Call) -> Call | None:
    return next((call for call in reversed(calls) if call.span < trainer.span), None)


def _one_trainer(calls: list[Call], source: str) -> Call:
    kinds = (*SFT_TRAINERS, *DPO_TRAINERS, *GRPO_TRAINERS, *OTHER_TRAINERS)
    trainers = [call for call in calls if call.name in kinds]
    if not trainers:
        raise InputError(f"{source} holds no trainer; {SFT_TRAINERS[0]} and {DPO_TRAINERS[0]} are read")
    if len(trainers) > 1:
        names = ", ".join(call.name for call in trainers)
        raise InputError(f"{source} trains {len(trainers)} times ({names}); keep one of them in a file of its own")
    name = trainers[0].name
    if name in GRPO_TRAINERS:
        raise InputError(
            f"{source} trains with {name}, which is not read; --task grpo of vlmplan estimate and recommend plans it "
            f"by options"
        )
    if name in OTHER_TRAINERS:
        raise InputError(f"{source} trains with {name}, which is not read; {SFT_TRAINERS[0]} and {DPO_TRAINERS[0]} are")
    return trainers[0]


@dataclass(slots=True)
class _Reading:
    """The values of a run, gathered call by call."""

    program: Program
    trainer: Call
    loads: Call
    adapts: Call | None
    all_calls: list[Call]
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    keywords: dict[str, Keyword] = field(default_factory=dict[str, Keyword])

    def run(self, source: ProgramSource) -> ProgramRun:
        arguments = self._arguments()
        self.values[CLASS_KEY] = _class_of(self.loads, "from_pretrained")
        self._take(self._named(self.loads, LOADED))
        lengths = [self.keywords.get("max_seq_length")]
        if self.adapts is not None:
            self.values[ADAPTERS_KEY] = True
            own = self._named(self.adapts, ADAPTED)
            own.pop("model", None)
            own.pop("max_seq_length", None)  # 'not used anymore' (``models/llama.py``)
            self._take(own)
        of_trainer = {name: self.trainer.keywords[name] for name in OF_TRAINER if name in self.trainer.keywords}
        if arguments is not None:
            self.values[ARGUMENTS_KEY] = arguments.name
            of_trainer |= self._named(arguments, ())
        lengths.append(of_trainer.pop("max_seq_length", None))
        lengths.append(self._of_collator())
        self._take(of_trainer)
        self._take_length(lengths)
        return ProgramRun(
            trainer=UNSLOTH_DPO_RUN if self.trainer.name in DPO_TRAINERS else UNSLOTH_RUN,
            values=self.values,
            keywords=self.keywords,
            loads=self.loads,
            adapts=self.adapts,
            arguments=arguments,
            source=source,
            notes=self._notes(),
        )

    def _arguments(self) -> Call | None:
        given = next((one.value for one in self.trainer.node.keywords if one.arg == "args"), None)
        if given is None:
            return None
        found = self.program.call_of(given)
        if found is None or found.name not in ARGUMENTS:
            raise InputError(
                f"{self.program.source}: the arguments of {self.trainer.name} are not written as one call of "
                f"{', '.join(ARGUMENTS[:3])}; only running the program tells them"
            )
        return found

    def _of_collator(self) -> Keyword | None:
        """Take how large images may be from Unsloth's collator; returns the most tokens that it lets a sample have."""
        collators = [call for call in self.all_calls if call.name == COLLATOR]
        if not collators:
            return None
        keywords = collators[-1].keywords
        self._take({name: keywords[name] for name in OF_COLLATOR if name in keywords and name != "max_seq_length"})
        self.values[COLLATOR] = True
        return keywords.get("max_seq_length")

    def _named(self, call: Call, positions: tuple[str, ...]) -> dict[str, Keyword]:
        """The keywords of a call, those without a name by their place."""
        if call.unpacked:
            raise InputError(
                f"{self.program.source}: {call.name} takes **{call.unpacked[0]}, which only running the program tells; "
                f"write its values"
            )
        found = dict(call.keywords)
        for name, node in zip(positions, call.node.args, strict=False):
            found[name] = self.program.keyword(name, node, self.program.span(node), is_removable=False)
        return found

    def _take(self, keywords: Mapping[str, Keyword]) -> None:
        for name, keyword in keywords.items():
            self.keywords[name] = keyword
            self.values[name] = _value(keyword)

    def _take_length(self, lengths: Iterable[Keyword | None]) -> None:
        """The least of what loading, training and the collator allow (``models/rl.py``: 'We shall reduce it')."""
        known = [one for one in lengths if one is not None and (one.worth is None or one.worth.value is not None)]
        if not known:
            return
        unwritten = next((one for one in known if one.worth is None), None)
        least = unwritten or min(known, key=lambda one: _number(one.worth.value if one.worth else 0))
        self._take({"max_seq_length": least})

    def _notes(self) -> tuple[str, ...]:
        asks = [one for one in self.keywords.values() if one.worth is not None and one.worth.asks_for_bf16]
        if not asks:
            return ()
        return (
            f"{asks[0].text} is taken as on a GPU that computes in bf16; --precision fp16 plans one that does not, "
            f"such as a T4",
        )


def _value(keyword: Keyword) -> Any:
    return Unwritten(keyword.text) if keyword.worth is None else keyword.worth.value


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
