"""Files of what KTO trains on: answers that are marked as good or bad, one object each.

    {"prompt": "text" or [messages], "completion": ..., "label": true or false}      TRL
    {"messages": [...], "label": true}, or conversations, instruction, query         ms-swift and LLaMA-Factory
    {"prompt": ..., "chosen": ..., "rejected": ...}                                   a preference: two such answers

Of a chat the turns behind the last of the user's or of a tool's are the answer. ``kto_tag`` is another name of
``label``. A preference is what ``preferences`` reads, and is taken apart as TRL does it (``unpair_preference_dataset``
in trl 1.16 ``data_utils.py``): its chosen answer is good, its rejected one bad.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final

from vlmplan.chats.data_files import DataFile
from vlmplan.chats.formats import RawSample, raw_sample
from vlmplan.chats.image_files import PixelBudget
from vlmplan.chats.named_columns import KTO_TAG, RANKING, NamedColumns
from vlmplan.chats.preference_forms import BEFORE_ANSWERS
from vlmplan.chats.preferences import NO_SOUNDS, NO_TOOLS_BESIDE_IMAGES, NO_VIDEOS, PREFERENCES, preference_of
from vlmplan.chats.references import Reference
from vlmplan.chats.samples import ReadReport, Sample, checked_sample, read_each, values_of
from vlmplan.errors import InputError
from vlmplan.files.data_file import Record
from vlmplan.files.json_reader import JsonDict, JsonObject

LABEL: Final = "label"
LABELS: Final = (LABEL, KTO_TAG)
UNPAIRED_AT_ONCE: Final = 1000
"""Preferences of which all chosen answers come first: the batch of ``datasets.Dataset.map``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledAnswer:
    """``sample`` ends with the answer."""

    sample: Sample
    is_desirable: bool


def read_labelled(
    path: Path, *, skips_bad: bool, image_root: Path | None = None
) -> tuple[list[LabelledAnswer], ReadReport]:
    """The answers of a file, as ``read_chats`` reads samples; raises what that does, and InputError for preferences
    beside marked answers, of which TRL reads all as it does the first."""
    budget = PixelBudget()

    def read(record: Record, file: DataFile) -> tuple[str, tuple[LabelledAnswer, ...]]:
        return labelled_of(record, file.folders(image_root), budget, file=file.path, columns=file.columns)

    found, report = read_each(path, read, skips_bad=skips_bad, takes=(RANKING, KTO_TAG))
    counts = {len(answers) for answers in found}
    if len(counts) > 1:
        raise InputError(f"{path} has preferences and answers with a {LABEL}; TRL reads all as the first")
    return list(_unpaired(found)), replace(report, num_samples=sum(len(answers) for answers in found))


def _unpaired(found: Sequence[tuple[LabelledAnswer, ...]]) -> chain[LabelledAnswer]:
    """In the order in which TRL has them."""
    together = [found[place : place + UNPAIRED_AT_ONCE] for place in range(0, len(found), UNPAIRED_AT_ONCE)]
    return chain.from_iterable(answers for some in together for answers in zip(*some, strict=True))


def labelled_of(
    record: Record,
    folders: tuple[Path, ...],
    budget: PixelBudget,
    *,
    file: Path,
    columns: NamedColumns | None = None,
) -> tuple[str, tuple[LabelledAnswer, ...]]:
    """The name of its form, and the marked answer, or both of a preference. Raises InputError, naming the record, for
    one that cannot be used."""
    values = values_of(record)
    if not PREFERENCES.isdisjoint(values) or (columns is not None and columns.is_ranking):
        form, pair = preference_of(record, folders, budget, file=file, columns=columns)
        answers = ((pair.chosen, True), (pair.rejected, False))
        return form, tuple([LabelledAnswer(sample=one, is_desirable=label) for one, label in answers])
    values = values if columns is None else columns.standard(values, source=record.source)
    label, raw = raw_labelled(values, source=record.source)
    sample = checked_sample(raw, record, folders, budget, file=file)
    return raw.form, (LabelledAnswer(sample=sample, is_desirable=label),)


def raw_labelled(values: JsonDict, *, source: str) -> tuple[bool, RawSample]:
    """The label, and prompt and answer. Raises InputError, with ``source`` in front, for another form."""
    sample = JsonObject(values, source=source)
    given = [key for key in LABELS if key in sample]
    if len(given) != 1:
        found = f"it has {' and '.join(given)}" if given else "it has none"
        raise InputError(f"{source}: --task kto trains on answers with one {LABEL}, true or false; {found}")
    kept = {key: value for key, value in values.items() if key not in LABELS}
    raw = raw_sample(kept, source=source, no_videos=NO_VIDEOS, no_sounds=NO_SOUNDS)
    raw = replace(raw, form=f"{raw.form} with {LABEL}")
    shows = any(isinstance(part, Reference) for turn in raw.turns for part in turn.content)
    if raw.tools and shows:
        raise InputError(f"{source}: the sample shows images and has tools; {NO_TOOLS_BESIDE_IMAGES}")
    return sample.flag(given[0]), raw if raw.num_prompt_turns is not None else _with_answer(raw, source)


def _with_answer(raw: RawSample, source: str) -> RawSample:
    """A chat, whose answer is what follows the last turn of the user or of a tool."""
    first = 1 + max(place for place, turn in enumerate(raw.turns) if turn.role in BEFORE_ANSWERS)
    if first == len(raw.turns):
        raise InputError(f"{source}: the last turn is no answer of the assistant's, so there is nothing to mark")
    return replace(raw, num_prompt_turns=first)
