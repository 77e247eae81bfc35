"""What rehearsals found of the layers of a model that has no family: bytes that the generic layer does not count.

A layer is rehearsed with samples of two lengths. Its bytes are taken to grow with the tokens of a micro batch and with
their pairs (scores of attention): two unknowns, two measurements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vlmplan.architecture.tensor import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """``per_token`` bytes for each token and ``per_pair`` for each pair of tokens of one sample; neither below 0."""

    per_token: float
    per_pair: float

    def of(self, *, num_samples: int, num_tokens: int) -> int:
        """Bytes of a micro batch of ``num_samples`` with ``num_tokens`` each.

        >>> TokenBytes(per_token=10.0, per_pair=0.5).of(num_samples=2, num_tokens=8)
        224
        """
        return round(num_samples * num_tokens * (self.per_token + self.per_pair * num_tokens))


def token_bytes(measured: Mapping[int, int]) -> TokenBytes:
    """Through the bytes of one sample at two lengths: ``b = (y2/t2 - y1/t1) / (t2 - t1)``, ``a = y1/t1 - b t1``.

    Where that is no curve of such bytes (fewer for each token of the longer sample: a chunk that is padded, a window),
    they grow with the tokens as the longer sample says. Fewer bytes than the generic layer's count as none.

    >>> token_bytes({100: 6000, 200: 22000})
    TokenBytes(per_token=10.0, per_pair=0.5)
    """
    (short, less), (long, more) = sorted(measured.items())
    each, of_longer = max(0, less) / short, max(0, more) / long
    per_pair = (of_longer - each) / (long - short)
    per_token = each - per_pair * short
    if per_pair < 0 or per_token < 0:
        return TokenBytes(per_token=of_longer, per_pair=0.0)
    return TokenBytes(per_token=per_token, per_pair=per_pair)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """``kept``: saved for backward; ``passing``: allocated in backward besides, and freed in it."""

    kept: TokenBytes
    passing: TokenBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedLayers:
    """``kinds``: the kinds of the language model's layers, in the order in which they first come. Empty: nothing was
    rehearsed, and nothing is added."""

    kinds: Sequence[LayerBytes]

    def of(self, kind: int, x: Tensor) -> tuple[int, int]:
        """Bytes kept and passing of a layer for hidden states x (samples, tokens, width)."""
        if kind >= len(self.kinds):
            return 0, 0
        layer, (num_samples, num_tokens) = self.kinds[kind], x.shape[:2]
        sizes = {"num_samples": num_samples, "num_tokens": num_tokens}
        return layer.kept.of(**sizes), layer.passing.of(**sizes)


UNCORRECTED = RehearsedLayers(kinds=())
