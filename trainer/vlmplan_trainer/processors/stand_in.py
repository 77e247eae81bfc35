"""A tokenizer in the place of a checkpoint's, for counting tokens: a word is one token, and so is a special one."""

import re
from typing import Any

from transformers import PythonBackend

WORDS = re.compile(r"\]<\][a-z ]+\[>\[|<[^<>\s]+>|\[[A-Z_]+\]|\|[A-Z_]+\||[^\s<\[\]|]+|[<\[\]|]|\n+|\s")
"""Special tokens as checkpoints write them (``]<]start of image[>[``, ``<image>``, ``<|vision_start|>``, ``[IMG]``,
``|SPEAKER|``), words, line breaks behind each other, which published tokenizers join, and single characters."""
FIRST_ID = 5
"""Behind the ids of the tokens that every tokenizer has."""


class _Vocabulary(dict[str, int]):
    """Knows every word that it is asked for."""

    def __missing__(self, token: str) -> int:
        return self.setdefault(token, len(self) + FIRST_ID)


class StandInTokenizer(PythonBackend):
    """Gives every word an id when it comes for the first time, and names the special tokens that processors ask for."""

    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, *asked: str) -> None:
        """``asked``: names of special tokens that it has from the beginning."""
        self.ids = _Vocabulary()
        self.asked = set(asked)
        names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
        patterns = {"special_tokens_pattern": "none", "token_type_ids_pattern": "all_zeros"}
        super().__init__(**names, **patterns)

    @property
    def vocab_size(self) -> int:
        return len(self.ids) + FIRST_ID

    def get_vocab(self) -> dict[str, int]:
        return self.ids

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        return WORDS.findall(text)

    def _convert_token_to_id(self, token: str) -> int:
        return self.ids[token]

    def _convert_id_to_token(self, index: int) -> str:
        return next((token for token, known in self.ids.items() if known == index), "<unk>")

    def __getattr__(self, name: str) -> Any:
        """A special token of the model's own, ``image_token``, and its id once the token itself was asked for:
        processors look whether there is an id before they name a token themselves."""
        if name.endswith("_token"):
            self.asked.add(name)
            return f"<{name.removesuffix('_token')}>"
        if name.endswith("_token_id") and (name != "image_token_id" or "image_token" in self.asked):
            return self.convert_tokens_to_ids(getattr(self, name.removesuffix("_id")))
        raise AttributeError(name)
