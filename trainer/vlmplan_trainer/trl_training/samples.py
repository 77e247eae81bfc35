"""What tasks train on: read and checked before the model is loaded, then handed to TRL row by row.

Images stay where they are until a micro batch needs them, and are then opened and made smaller as in supervised
fine-tuning.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlmplan.chats.labelled import LabelledAnswer, read_labelled
from vlmplan.chats.preferences import NO_TOOLS_BESIDE_IMAGES, Preference, Prompt, read_preferences, read_prompts
from vlmplan.chats.samples import ImagePart, ReadReport, Sample, TextPart, Turn
from vlmplan.errors import InputError
from vlmplan.launch.run_steps import prompts_at_once
from vlmplan.plan import Plan
from vlmplan.recipe.task import TrainingTask
from vlmplan.run.training import TrainerOptions
from vlmplan.units import counted
from vlmplan_trainer.data.downscaling import downscaled_image
from vlmplan_trainer.data.encode import Encoder
from vlmplan_trainer.data.images import opened
from vlmplan_trainer.data.read import SampleCounts, account_of, encoder_of
from vlmplan_trainer.data.scan import MAX_SENTENCES, DatasetScan, measured_prompt, scanned
from vlmplan_trainer.models.load import Processing, load_processing
from vlmplan_trainer.phases import say_phase

Row = dict[str, Any]
"""A row of TRL's dataset by column; under ``images`` are parts that say where they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData:
    """``rows`` are those that are trained on; ``sees``: some of them show images. ``eval_rows`` are those of
    --eval-data, which ``eval_account`` is of.

    Where a run is rehearsed, nothing is read: ``collator`` makes DPO's and KTO's micro batches in place of TRL's own,
    and ``dataset`` is in place of one that is made of ``rows``. ``evaluated`` is what is evaluated there.
    """

    processing: Processing
    encoder: Encoder | None
    rows: list[Row]
    account: SampleCounts
    lengths: list[int]
    eval_rows: Sequence[Row] = ()
    eval_account: SampleCounts | None = None
    collator: Any = None
    dataset: Any = None
    evaluated: Any = None

    @property
    def sees(self) -> bool:
        return any(row.get("images") for row in self.rows)


def gathered_rows(plan: Plan, options: TrainerOptions, task: TrainingTask) -> TaskData:
    """Read and check everything. Raises InputError, UnavailableError or MissingPackageError with what to do."""
    assert options.train_data is not None
    found = _read(options.train_data, options, task)
    evaluated = None if options.eval_data is None else _read(options.eval_data, options, task)
    processing = load_processing(plan, random_weights=options.random_weights)
    encoder = encoder_of(plan, options, processing)
    if task.is_grpo:
        encoder.seq_len -= task.answer_tokens(plan.workload.seq_len)
    rows, account, lengths = _looked_at(found, options.train_data, encoder, plan, task)
    needed = prompts_at_once(plan, task) if task.is_grpo else plan.samples_per_step
    what_needs = "one generation of the plan answers" if task.is_grpo else "one step of the plan takes"
    _refuse_too_few(account, needed, what_needs)
    data = TaskData(processing=processing, encoder=encoder, rows=rows, account=account, lengths=lengths)
    if evaluated is None:
        return replace(data, rows=_alike(rows, is_vision=processing.is_vision))
    assert options.eval_data is not None
    eval_rows, eval_account, _ = _looked_at(evaluated, options.eval_data, encoder, plan, task)
    eval_account = replace(eval_account, is_evaluation=True)
    try:
        _refuse_too_few(
            eval_account,
            plan.recipe.samples_evaluated_at_once(plan.hardware.num_gpus),
            "one batch of an evaluation takes",
        )
    except InputError as error:
        raise InputError(f"--eval-data {options.eval_data}: {error}") from None
    return _with_evaluation(data, options, eval_rows, eval_account, is_written=not task.is_grpo)


def _with_evaluation(
    data: TaskData, options: TrainerOptions, eval_rows: list[Row], eval_account: SampleCounts, *, is_written: bool
) -> TaskData:
    """``data`` with what it is evaluated on, which TRL reads as it does the rows that are trained on."""
    if any(row.get("images") for row in eval_rows) and not data.sees:
        raise InputError(
            f"--eval-data {options.eval_data} has images and --train-data {options.train_data} has none; "
            f"TRL reads both as it does what is trained on"
        )
    _refuse_unlike(f"{options.train_data} or {options.eval_data}", [*data.rows, *eval_rows], is_written=is_written)
    alike = _alike([*data.rows, *eval_rows], is_vision=data.processing.is_vision)
    num_trained = len(data.rows)
    return replace(data, rows=alike[:num_trained], eval_rows=alike[num_trained:], eval_account=eval_account)


def _read(file: Path, options: TrainerOptions, task: TrainingTask) -> tuple[list[Any], ReadReport]:
    """Preferences, marked answers or prompts, before anything that is large is loaded."""
    say_phase(f"reading {file}")
    read = read_preferences if task.has_pairs else read_labelled if task.is_kto else read_prompts
    return read(file, skips_bad=options.skip_bad_samples, image_root=options.image_folder)


def _looked_at(
    found: tuple[list[Any], ReadReport], file: Path, encoder: Encoder, plan: Plan, task: TrainingTask
) -> tuple[list[Row], SampleCounts, list[int]]:
    """Rows, an account of them, and the tokens of each."""
    samples, report = found
    say_phase(f"looking at {counted(report.num_samples, 'sample')}")
    if task.has_pairs:
        rows, scan = _preference_rows(encoder, samples, cuts=task.is_dpo)
    else:
        rows, scan = (_labelled_rows if task.is_kto else _prompt_rows)(encoder, samples)
    account = account_of(str(file), report, scan, seq_len=plan.workload.seq_len)
    _refuse_unlike(str(file), rows, is_written=not task.is_grpo)
    return rows, account, scan.lengths


def _preference_rows(
    encoder: Encoder, found: Sequence[Preference], *, cuts: bool = True
) -> tuple[list[Row], DatasetScan]:
    """Rows, and an account of the pairs by the longer one of both. Pairs that are too long are left out unless TRL
    ``cuts`` them (``_prepare_dataset`` in ``reward_trainer.py`` 1.16 filters them)."""
    chosen = scanned(encoder, [pair.chosen for pair in found])
    rejected = scanned(encoder, [pair.rejected for pair in found])
    skipped = chosen.skipped | rejected.skipped
    long = set[str]() if cuts else (chosen.truncated | rejected.truncated) - skipped
    skipped |= long
    why = [
        f"{source}: an answer ends behind --seq-len {encoder.seq_len}, where TRL leaves its pair out" for source in long
    ]
    kept = [pair for pair in found if pair.source not in skipped]
    lengths = [_lengths_by_source(scan) for scan in (chosen, rejected)]
    scan = DatasetScan(
        samples=[pair.chosen for pair in kept],
        lengths=[max(by_source[pair.source] for by_source in lengths) for pair in kept],
        truncated=(chosen.truncated | rejected.truncated) - skipped,
        skipped=skipped,
        num_images_reduced=chosen.num_images_reduced,
        sentences=tuple(dict.fromkeys((*chosen.sentences, *rejected.sentences, *sorted(why)[:MAX_SENTENCES]))),
    )
    return [_preference_row(pair, is_vision=encoder.is_vision) for pair in kept], scan


def _lengths_by_source(scan: DatasetScan) -> Mapping[str, int]:
    return {sample.source: length for sample, length in zip(scan.samples, scan.lengths, strict=True)}


def _labelled_rows(encoder: Encoder, found: Sequence[LabelledAnswer]) -> tuple[list[Row], DatasetScan]:
    scan = scanned(encoder, [answer.sample for answer in found])
    kept = [answer for answer in found if answer.sample.source not in scan.skipped]
    return [_answer_row(one.sample, is_vision=encoder.is_vision) | {"label": one.is_desirable} for one in kept], scan


def _answer_row(sample: Sample, *, is_vision: bool) -> Row:
    """A prompt with its answer under ``completion``."""
    if sample.is_plain:
        return {"prompt": sample.turns[0].text, "completion": sample.turns[1].text}
    first = sample.num_prompt_turns or 0
    row: Row = {
        "prompt": _messages(sample.turns[:first], in_parts=is_vision and bool(sample.images)),
        "completion": _messages(sample.turns[first:], in_parts=False),
    }
    row |= {"images": list(sample.images)} if sample.images else {}
    return row | ({"tools": [json.loads(tool) for tool in sample.tools]} if sample.tools else {})


def _preference_row(pair: Preference, *, is_vision: bool) -> Row:
    row = _answer_row(pair.chosen, is_vision=is_vision)
    rejected = _answer_row(pair.rejected, is_vision=is_vision)["completion"]
    return row | {"chosen": row.pop("completion"), "rejected": rejected}


def _prompt_rows(encoder: Encoder, found: Sequence[Prompt]) -> tuple[list[Row], DatasetScan]:
    scan = scanned(encoder, [prompt.sample for prompt in found], measured_prompt)
    rows = [
        {**prompt.others, **_prompt_row(prompt.sample)} for prompt in found if prompt.sample.source not in scan.skipped
    ]
    return rows, scan


def _prompt_row(sample: Sample) -> Row:
    if sample.is_plain:
        return {"prompt": sample.turns[0].text}
    row: Row = {"prompt": _messages(sample.turns, in_parts=bool(sample.images))}
    return row | ({"images": list(sample.images)} if sample.images else {})


def _messages(turns: Sequence[Turn], *, in_parts: bool) -> list[dict[str, Any]]:
    """``in_parts``: images stand in them, TRL's placeholder for each in its place."""
    return [turn.message(_parts(turn) if in_parts else turn.text) for turn in turns]


def _parts(turn: Turn) -> list[dict[str, str]]:
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
        for part in turn.content
    ]


def _alike(rows: list[Row], *, is_vision: bool) -> list[Row]:
    """The rows with the same columns, as TRL looks at the first for them: None where a row has nothing, and no images
    for one without."""
    if is_vision and any("images" in row for row in rows):
        rows = [row if "images" in row else row | {"images": []} for row in rows]
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def _refuse_unlike(name: str, rows: Sequence[Row], *, is_written: bool) -> None:
    """Raise InputError for rows that TRL, which looks at the first of them, would not read alike."""
    if len({type(row["prompt"]) for row in rows}) > 1:
        raise InputError(f"{name} has prompts that are texts and others that are messages; TRL reads all as the first")
    if is_written and any("images" in row for row in rows) and any("tools" in row for row in rows):
        raise InputError(f"{name} has samples with images and others with tools; {NO_TOOLS_BESIDE_IMAGES}")


def text_dataset(datasets: Any, rows: Sequence[Row]) -> Any:
    """``rows`` as a ``datasets.Dataset``. Messages that say more than role and content, and tools, are kept as JSON:
    as structures of Arrow every one would have the keys of all, with None where it says nothing."""
    answers = ("prompt", "chosen", "rejected", "completion")
    messages = [one for row in rows for key in answers if isinstance(row.get(key), list) for one in row[key]]
    says_more = any("tools" in row for row in rows) or any(message.keys() - {"role", "content"} for message in messages)
    if not says_more:
        return datasets.Dataset.from_list(rows)
    columns = dict.fromkeys(name for row in rows for name in row)
    kinds = {name: datasets.List(datasets.Json()) for name in columns}
    kinds |= {"label": datasets.Value("bool")} if "label" in columns else {}
    features = datasets.Features(kinds)
    return datasets.Dataset.from_list(rows, features=features)


def _refuse_too_few(account: SampleCounts, needed: int, what_needs: str) -> None:
    if account.num_samples < needed:
        left_out = "".join(f"; the first that is left out: {sentence}" for sentence in account.sentences[:1])
        use = "evaluated" if account.is_evaluation else "trained"
        raise InputError(
            f"{counted(account.num_samples, 'sample')} can be {use} on, but {what_needs} {needed}{left_out}"
        )


class RowReader:
    """Rows by their numbers, with images opened: the transform of a ``datasets.Dataset`` of numbers.

    ``datasets`` names a dataset by its transform as pickle has it; nothing of this one is in the name, because rows
    live in this process alone and what is made of them is not kept.
    """

    def __init__(self, rows: Sequence[Row], encoder: Encoder) -> None:
        self._rows, self._encoder = rows, encoder

    def __getstate__(self) -> None:
        return None

    def __call__(self, batch: Mapping[str, Sequence[int]]) -> dict[str, list[Any]]:
        """{"number": numbers} → the columns of these rows."""
        found = [self._read(self._rows[number]) for number in batch["number"]]
        return {name: [row[name] for row in found] for name in found[0]} if found else {}

    def _read(self, row: Row) -> Row:
        if "images" not in row:
            return row
        return row | {"images": [self._image(part) for part in row["images"]]}

    def _image(self, part: ImagePart) -> Any:
        image = opened(part.source, name=f"the image {part.source}" if not isinstance(part.source, bytes) else "image")
        return downscaled_image(image, self._encoder.fit(image.size))
