"""Files of what DPO, reward models and GRPO train on, in the forms of TRL 1.16 (``docs/source/dataset_formats``), one
object each.

    {"prompt": "text" or [messages], "chosen": ..., "rejected": ..., "images": [...], "tools": [...]}   a preference
    {"prompt": "text" or [messages], "images": [...], "anything": ...}                                  a prompt

``chosen`` and ``rejected`` are texts where the prompt is one, else messages; those of other trainers are of
``preference_forms``. Messages, tools and images are those of ``formats``. What a prompt has besides goes to the reward
functions under its own name, ``tools`` too: ``GRPOTrainer`` has its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlmplan.chats.data_files import DataFile
from vlmplan.chats.formats import RawSample, raw_sample
from vlmplan.chats.image_files import PixelBudget
from vlmplan.chats.named_columns import RANKING, NamedColumns
from vlmplan.chats.preference_forms import with_prompt
from vlmplan.chats.references import OWN_IMAGES, OWN_SOUNDS, OWN_VIDEOS, PREFERENCE_KEYS, REJECTED_BESIDE, Reference
from vlmplan.chats.samples import ReadReport, Sample, checked_sample, read_each, values_of
from vlmplan.errors import InputError
from vlmplan.files.data_file import Record
from vlmplan.files.json_reader import JsonDict

CHOSEN, REJECTED = PREFERENCE_KEYS
ANSWERED = "completion"
"""The key under which a sample's answer stands, which a prompt alone has not."""
NO_TOOLS_BESIDE_IMAGES = "TRL's collator of images gives the chat template no tools"
"""trl 1.16 ``DataCollatorForVisionPreference`` in ``trainer/dpo_trainer.py``."""
STAND_IN = "-"
"""An answer that a prompt is read with; any will do."""
SHOWN = (*OWN_IMAGES, *OWN_VIDEOS, *OWN_SOUNDS)
"""Keys under which a sample shows something."""
NO_VIDEOS, NO_SOUNDS = (
    f"TRL's trainers of DPO and GRPO show a model images and no {kind} (only supervised fine-tuning reads them)"
    for kind in ("videos", "sounds")
)
"""``images`` is the one column that they and their collators read (trl 1.16 ``trainer/dpo_trainer.py``,
``trainer/grpo_trainer.py``, ``prepare_multimodal_messages`` in ``data_utils.py``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """Two answers to one prompt: samples that begin with the same ``num_prompt_turns`` turns."""

    chosen: Sample
    rejected: Sample

    @property
    def source(self) -> str:
        return self.chosen.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """``sample`` has the turns of a prompt and no answer; ``others`` is what stands beside it."""

    sample: Sample
    others: Mapping[str, Any]


def read_preferences(
    path: Path, *, skips_bad: bool, image_root: Path | None = None
) -> tuple[list[Preference], ReadReport]:
    """The preferences of a file, as ``read_chats`` reads samples; raises what that does."""
    budget = PixelBudget()

    def read(record: Record, file: DataFile) -> tuple[str, Preference]:
        return preference_of(record, file.folders(image_root), budget, file=file.path, columns=file.columns)

    return read_each(path, read, skips_bad=skips_bad, takes=(RANKING,))


def preference_of(
    record: Record,
    folders: tuple[Path, ...],
    budget: PixelBudget,
    *,
    file: Path,
    columns: NamedColumns | None = None,
) -> tuple[str, Preference]:
    """The name of its form, and the preference, whose columns may have names of their own. Raises InputError, naming
    the record, for one that cannot be used."""
    values = values_of(record)
    values = values if columns is None else columns.standard(values, source=record.source)
    raw = raw_preference(values, source=record.source)
    chosen, rejected = (checked_sample(one, record, folders, budget, file=file) for one in raw)
    return raw[0].form, Preference(chosen=chosen, rejected=rejected)


def read_prompts(path: Path, *, skips_bad: bool, image_root: Path | None = None) -> tuple[list[Prompt], ReadReport]:
    """The prompts of a file, as ``read_chats`` reads samples; raises what that does."""
    budget = PixelBudget()

    def read(record: Record, file: DataFile) -> tuple[str, Prompt]:
        values = values_of(record)
        values = values if file.columns is None else file.columns.standard(values, source=record.source)
        raw = raw_prompt(values, source=record.source)
        others = {key: value for key, value in values.items() if key not in ("prompt", *SHOWN)}
        sample = checked_sample(raw, record, file.folders(image_root), budget, file=file.path)
        return raw.form, Prompt(sample=sample, others=others)

    return read_each(path, read, skips_bad=skips_bad)


def raw_preference(values: JsonDict, *, source: str) -> tuple[RawSample, RawSample]:
    """Prompt and chosen, prompt and rejected. Raises InputError, with ``source`` in front, for another form."""
    values = with_prompt(values, source=source)
    kept = {key: values[key] for key in ("prompt", "tools", "objects", *SHOWN) if key in values}
    chosen, rejected = (
        raw_sample(
            kept | {key: values[key]}, source=source, completion_key=key, no_videos=NO_VIDEOS, no_sounds=NO_SOUNDS
        )
        for key in (CHOSEN, REJECTED)
    )
    shows = any(isinstance(part, Reference) for turn in chosen.turns for part in turn.content)
    if chosen.tools and shows:
        raise InputError(f"{source}: the sample shows images and has tools; {NO_TOOLS_BESIDE_IMAGES}")
    if chosen.turns == rejected.turns:
        raise InputError(f"{source}: chosen and rejected are the same, so there is nothing to prefer")
    form = "prompt, chosen, rejected" + (" (texts)" if chosen.is_plain else " (messages)")
    return replace(chosen, form=form), replace(rejected, form=form)


def raw_prompt(values: JsonDict, *, source: str) -> RawSample:
    """A prompt, without an answer. Raises InputError, with ``source`` in front, for another form."""
    if "prompt" not in values:
        raise InputError(f"{source}: prompt is missing; --task grpo trains on prompts, which the model answers itself")
    kept = {key: values[key] for key in ("prompt", *SHOWN) if key in values}
    is_list = isinstance(values["prompt"], list)
    answer: object = [{"role": "assistant", "content": STAND_IN}] if is_list else STAND_IN
    raw = raw_sample(kept | {ANSWERED: answer}, source=source, no_videos=NO_VIDEOS, no_sounds=NO_SOUNDS)
    turns = raw.turns[: raw.num_prompt_turns]
    said = any(isinstance(part, Reference) or part.strip() for part in turns[-1].content)
    if turns[-1].role not in ("user", "tool") or not said:
        raise InputError(f"{source}: a prompt ends with a turn of the user, or of a tool, that is not empty")
    form = "prompt" + (" (text)" if raw.is_plain else " (messages)")
    return RawSample(form=form, turns=turns, num_prompt_turns=len(turns), is_plain=raw.is_plain)


PREFERENCES = frozenset((CHOSEN, REJECTED_BESIDE, "rejected_messages", "preferred_output"))
"""Keys that tell a preference."""


def raw_of(values: JsonDict, *, source: str) -> RawSample:
    """A sample, a preference's chosen one or a prompt: what a file of either kind has under ``values``."""
    if not PREFERENCES.isdisjoint(values):
        return raw_preference(values, source=source)[0]
    is_prompt = "prompt" in values and ANSWERED not in values
    return (
        raw_prompt(values, source=source)
        if is_prompt
        else raw_sample(values, source=source, no_videos=None, no_sounds=None)
    )
