"""Samples of a text in memory: as those of ``--data``, but that no file is opened which they name.

Images are counted, and taken to be of one size.
"""

from pathlib import Path

from vlmplan.chats.downscaling import Size
from vlmplan.chats.formats import RawSample, raw_sample
from vlmplan.chats.references import Reference
from vlmplan.chats.samples import ImagePart, Sample, TextPart, Turn, nothing_to_train_on, values_of
from vlmplan.dataset.counting import TokenCounter
from vlmplan.dataset.record import MAX_SENTENCES, Dataset, PairTokens, SampleSize
from vlmplan.errors import InputError
from vlmplan.files.data_file import Record, records_of

UNSEEN = Path("unseen")


def dataset_of_text(name: str, content: bytes, counter: TokenCounter, image_size: Size) -> Dataset:
    """The samples of a file ``name`` that would hold ``content``, every image of ``image_size``.

    Raises InputError for what is broken, or without any sample.
    """
    read: list[tuple[int, str, Sample]] = []
    bad: dict[int, str] = {}
    for place, record in enumerate(records_of(name, content)):
        try:
            read.append((place, *_sample(record, image_size)))
        except InputError as error:
            bad[place] = str(error)
    sizes: list[SampleSize] = []
    forms: dict[str, int] = {}
    counts = counter.counts([sample for _, _, sample in read])
    for (place, form, sample), tokens in zip(read, counts, strict=True):
        if isinstance(tokens, InputError):
            bad[place] = str(tokens)
            continue
        forms[form] = forms.get(form, 0) + 1
        text, answer = (tokens.prompt, tokens.answer) if isinstance(tokens, PairTokens) else (tokens.text, 0)
        sizes.append(SampleSize(text, (image_size,) * len(sample.images), answer_tokens=answer))
    sentences = [bad[place] for place in sorted(bad)]
    if not sizes:
        raise nothing_to_train_on(name, len(bad), sentences)
    return Dataset(
        source=name,
        samples=tuple(sizes),
        forms=forms,
        num_bad=len(bad),
        sentences=tuple(sentences[:MAX_SENTENCES]),
        counting=counter.about,
        is_exact=counter.is_exact,
    )


def _sample(record: Record, image_size: Size) -> tuple[str, Sample]:
    raw = raw_sample(values_of(record), source=record.source)
    return raw.form, Sample(
        source=record.source,
        turns=_turns(raw, image_size),
        num_prompt_turns=raw.num_prompt_turns,
        is_plain=raw.is_plain,
        tools=raw.tools,
    )


def _turns(raw: RawSample, image_size: Size) -> tuple[Turn, ...]:
    image = ImagePart(source=UNSEEN, width=image_size[0], height=image_size[1])
    return tuple(
        Turn(
            role=turn.role,
            content=tuple(
                image if isinstance(part, Reference) else TextPart(text=part) for part in turn.content if part
            ),
            more=turn.more,
            is_learnt=turn.is_learnt,
        )
        for turn in raw.turns
    )
