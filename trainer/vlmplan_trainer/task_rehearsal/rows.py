"""Data of tasks as long as a plan says, and what stands for the tokenizer and the processor of its model.

Text goes through TRL's own tokenization: a word is a token. What a model that sees takes is made as for a plan's other
rehearsals (``rehearse.batch``), because processors of all families have files of their own, which a plan has not.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import BatchFeature, PreTrainedTokenizerFast, ProcessorMixin

from vlmplan_trainer.data.encode import TOKEN_KINDS
from vlmplan_trainer.rehearse.batch import micro_batch
from vlmplan_trainer.rehearse.samples import Samples

WORD, END, PAD, UNKNOWN = "w", "<end>", "<pad>", "<unknown>"
SEQUENCES = ("input_ids", "attention_mask")
IMAGE = "an image"
"""In place of one, which nobody opens."""
Fake = Callable[[torch.Tensor], torch.Tensor]
"""Makes a fake tensor of known value."""


def word_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are words. Its ends have the last ids of the vocabulary, which are never drawn."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {WORD: 5, UNKNOWN: 6, PAD: vocab_size - 2, END: vocab_size - 1}
    words = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token=END, pad_token=PAD, unk_token=UNKNOWN, model_max_length=10**9
    )


def text_of(num_tokens: int) -> str:
    return " ".join([WORD] * num_tokens)


class Batches:
    """Micro batches of a plan's samples, made anew for whoever asks: values are known, pixels have shapes alone.

    ``datasets`` names what a tokenizer or processor has made by the processor as pickle has it; nothing of these is in
    the name.
    """

    def __init__(self, config: Any, samples: Samples, fake: Fake) -> None:
        self._config, self._samples, self._fake = config, samples, fake

    def __getstate__(self) -> None:
        return None

    def of(self, num_rows: int, num_tokens: int) -> dict[str, torch.Tensor]:
        """Inputs of a model for so many rows, without labels."""
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():
            made = micro_batch(self._config, replace(self._samples, micro_batch=num_rows, num_tokens=num_tokens))
        return {name: tensor for name, tensor in made.made(self._fake).items() if name != "labels"}


class PairCollator:
    """DPO's micro batches of a model that sees: chosen answers, then rejected ones, each with its prompt and images
    (``DataCollatorForVisionPreference``, TRL 1.16)."""

    def __init__(self, batches: Batches, *, num_tokens: int, answer_tokens: int, fake: Fake) -> None:
        self._batches, self._num_tokens, self._answer_tokens, self._fake = batches, num_tokens, answer_tokens, fake

    def __call__(self, examples: Sequence[Any]) -> dict[str, torch.Tensor]:
        return self.rows(2 * len(examples))

    def rows(self, num_rows: int) -> dict[str, torch.Tensor]:
        """So many answers."""
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():
            scored = torch.zeros(num_rows, self._num_tokens, dtype=torch.int64)
            scored[:, -self._answer_tokens :] = 1
        return self._batches.of(num_rows, self._num_tokens) | {"completion_mask": self._fake(scored)}


class LabelledCollator:
    """KTO's micro batches of a model that sees, of which every other answer is good
    (``DataCollatorForVisionUnpairedPreference``, TRL 1.16). ``has_kl``: with answers to other prompts."""

    def __init__(self, pairs: PairCollator, *, has_kl: bool, fake: Fake) -> None:
        self._pairs, self._has_kl, self._fake = pairs, has_kl, fake

    def __call__(self, examples: Sequence[Any]) -> dict[str, torch.Tensor]:
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():
            labels = torch.tensor([place % 2 == 0 for place, _ in enumerate(examples)])
        made, other = self._pairs.rows(len(examples)), self._pairs.rows(len(examples))
        names = (*SEQUENCES, "completion_mask", *TOKEN_KINDS) if self._has_kl else ()
        again = {f"KL_{name}": other[name] for name in names if name in other}
        return made | again | {"label": self._fake(labels)}


class WordProcessor(ProcessorMixin):
    """Stands for the processor of a model that sees: prompts of ``prompt_tokens`` with their images."""

    def __init__(self, tokenizer: Any, batches: Batches, *, prompt_tokens: int, num_tiles: int) -> None:
        self.tokenizer, self._batches, self._prompt_tokens = tokenizer, batches, prompt_tokens
        self.image_processor = TileCounts(num_tiles)
        self.chat_template = None

    def __call__(self, images: Any = None, text: Any = None, **named: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if images is None:
            text = [text] if isinstance(text, str) else text  # of one text too there are rows
            return self.tokenizer(text, **{name: one for name, one in named.items() if name != "videos"})
        return BatchFeature(self._batches.of(len(images), self._prompt_tokens))

    def apply_chat_template(self, conversation: Any, **named: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The prompt as text, or of all prompts token ids as lists, and what the vision tower takes."""
        if not named.get("tokenize"):
            return WORD
        found = self._batches.of(len(conversation), self._prompt_tokens)
        rows = {name: found.pop(name).tolist() for name in (*SEQUENCES, *TOKEN_KINDS) if name in found}
        return rows | found

    def batch_decode(self, *arguments: Any, **named: Any) -> list[str]:
        return self.tokenizer.batch_decode(*arguments, **named)

    def save_pretrained(self, save_directory: Any, *arguments: Any, **named: Any) -> list[str]:
        """Write nothing: nothing of it is worth keeping."""
        return []


class TileCounts:
    """What TRL asks an image processor of pictures that are cut into tiles (``num_patches`` of InternVL, rows and
    columns of LFM2-VL)."""

    use_thumbnail = False
    merge_size = 2

    def __init__(self, num_tiles: int) -> None:
        self._num_tiles = num_tiles

    def __call__(self, images: Any, **named: Any) -> dict[str, torch.Tensor]:
        count = sum(len(image) for image in images)
        tiles = torch.tensor([self._num_tiles] * count)
        return {"num_patches": tiles, "image_rows": tiles, "image_cols": torch.ones_like(tiles)}


class Rows:
    """The transform of a ``datasets.Dataset`` of numbers whose rows are all ``row``.

    ``datasets`` names a dataset by its transform as pickle has it; nothing of this one is in the name.
    """

    def __init__(self, row: dict[str, Any]) -> None:
        self._row = row

    def __getstate__(self) -> None:
        return None

    def __call__(self, batch: Any) -> dict[str, list[Any]]:
        count = len(batch["number"])
        return {name: [value] * count for name, value in self._row.items()}


def rewards() -> list[Callable[..., list[float]]]:
    """A function that scores answers and takes no memory."""

    def nothing(completions: Sequence[Any], **columns: Any) -> list[float]:
        return [0.0] * len(completions)

    return [nothing]


def preference_row(num_tokens: int, answer_tokens: int, *, sees: bool) -> dict[str, Any]:
    """A preference of text, whose answers end with one token more than they have words; of images, which
    ``PairCollator`` reads nothing of."""
    if sees:
        return {"prompt": WORD, "chosen": WORD, "rejected": WORD, "images": []}
    answer = f" {text_of(answer_tokens - 1)}" if answer_tokens > 1 else ""
    return {"prompt": text_of(num_tokens - answer_tokens), "chosen": answer, "rejected": answer}


def labelled_row(num_tokens: int, answer_tokens: int, *, sees: bool) -> dict[str, Any]:
    """The better answer of a preference, with its label."""
    row = preference_row(num_tokens, answer_tokens, sees=sees)
    shown = {"images": row["images"]} if sees else {}
    return {"prompt": row["prompt"], "completion": row["chosen"], "label": True, **shown}


def prompt_row(prompt_tokens: int, images_per_sample: int) -> dict[str, Any]:
    """A prompt of text, or a turn of the user's with images, which the processor knows."""
    if not images_per_sample:
        return {"prompt": text_of(prompt_tokens)}
    turn = {"role": "user", "content": WORD}
    return {"prompt": [turn], "images": [IMAGE] * images_per_sample}


def same_rows(row: dict[str, Any], count: int) -> Any:
    """A dataset of ``count`` times ``row``, of which nothing is read."""
    return (
        importlib.import_module("datasets").Dataset.from_dict({"number": list(range(count))}).with_transform(Rows(row))
    )
