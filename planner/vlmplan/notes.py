"""Sentences about an answer: which stand in its headline, and which below it. A leaf: imports nothing of vlmplan.

A sentence is a ``Caveat``, printed under the verdict and listed as ``caveats`` in the JSON, where somebody who acts on
the headline without it is wrong:

- something that the job needs is in no number: what a model takes and vlmplan does not describe (``not_counted``),
  products of weights or attention that were not recognised;
- the numbers are those of a stand-in: a generic decoder, one published run that took twice as long, a price that may
  be gone;
- a method does not do what its name says: weights of a 4-bit model that stay in 16 bits;
- it holds only after something else has happened: memory of the GPU that other processes hold now.

Everything else is a note below the numbers: where a value is from, what a default was taken as, what an option does
not change, what the model was not made for although its bytes are right.
"""

from collections.abc import Iterable, Sequence


class Caveat(str):
    """A sentence that changes the answer."""

    __slots__ = ()


def caveats(sentences: Iterable[str]) -> list[str]:
    """The notes that belong in the headline, each once."""
    return list(dict.fromkeys(sentence for sentence in sentences if isinstance(sentence, Caveat)))


def footnotes(sentences: Iterable[str]) -> list[str]:
    """The notes that stand below the numbers."""
    return [sentence for sentence in sentences if not isinstance(sentence, Caveat)]


def listed(words: Sequence[str], last: str = "and") -> str:
    """Words as a part of a sentence.

    >>> listed(["vision", "projector", "language"]), listed(["images"])
    ('vision, projector and language', 'images')
    """
    return f" {last} ".join([*([", ".join(words[:-1])] if len(words) > 1 else []), *words[-1:]])
