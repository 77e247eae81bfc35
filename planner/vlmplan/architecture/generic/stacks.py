"""What config.json says of an encoder and a decoder of an unknown family that the names of their modules do not.

That is attention of an encoder to the tokens around each, with the number of keys that its products are of as
transformers makes them, and dropout behind each block, which a checkpointed layer runs again with the product in front
of it. Sources: transformers 5.23 ``models/led/modeling_led.py`` (``_sliding_chunks_query_key_matmul``,
``_sliding_chunks_matmul_attn_probs_value``, ``_pad_to_window_size``), ``models/longt5/modeling_longt5.py``
(``_split_into_blocks``, ``_concatenate_3_blocks``, ``_create_global_aggregates``),
``models/prophetnet/modeling_prophetnet.py`` (``ProphetNetNgramSelfAttention``),
``models/pegasus_x/modeling_pegasus_x.py`` (``PegasusXGlobalLocalAttention.compute_local_attention_representations``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

LED_WINDOW, LONGT5_RADIUS, LONGT5_GLOBAL_BLOCK, NGRAM = 512, 127, 16, 2
PEGASUS_X_BLOCK, PEGASUS_X_GLOBAL = 512, 32
"""Defaults of the classes' configurations."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Attention in pieces: ``count`` of ``rows`` queries, each with ``keys`` keys."""

    count: int
    rows: int
    keys: int


@dataclass(frozen=True, slots=True)
class LocalAttention:
    """``rows`` queries of a piece, to a multiple of ``pads_to`` of which tokens are padded; ``overlaps``: queries of
    two pieces meet the keys of these two, and values those of three (LED), else both are of ``num_pieces``.
    ``global_block``: tokens that one further key stands for; 0 without such keys. ``global_keys``: further
    tokens that all see and that see all (Pegasus-X); ``staggers``: every other layer is cut half a piece off, which
    makes one more piece."""

    rows: int
    pads_to: int
    overlaps: bool = False
    global_block: int = 0
    num_pieces: int = 3
    global_keys: int = 0
    staggers: bool = False

    def chunks(self, num_tokens: int) -> Chunks:
        """The pieces of so many tokens. Where scores and values are of different numbers of keys, their mean.

        >>> LocalAttention(rows=256, pads_to=512, overlaps=True).chunks(1000)
        Chunks(count=4, rows=256, keys=768)
        >>> LocalAttention(rows=128, pads_to=128, global_block=16).chunks(1024)
        Chunks(count=8, rows=128, keys=448)
        >>> LocalAttention(rows=512, pads_to=512, num_pieces=1, global_keys=32, staggers=True).chunks(1024)
        Chunks(count=2, rows=512, keys=713)
        """
        padded = -(-num_tokens // self.pads_to) * self.pads_to
        count = padded // self.rows
        keys = self.num_pieces * self.rows + self.global_keys
        if self.global_keys:
            num_pairs = (2 * count + self.staggers) * self.rows * keys // 2
            num_pairs += self.global_keys * (padded + self.global_keys)
            keys = num_pairs // (count * self.rows)
        if self.overlaps:  # count - 1 products of 2 x 2 pieces, then count of 1 x 3
            keys = (4 * (count - 1) + 3 * count) * self.rows // (2 * count)
        return Chunks(count, self.rows, keys + (num_tokens // self.global_block if self.global_block else 0))


DROPOUT_KEYS: Mapping[str, str] = {
    **dict.fromkeys(("longt5", "mt5", "t5", "umt5"), "dropout_rate"),
    **dict.fromkeys(("bigbird_pegasus", "led", "m2m_100", "mvp", "pegasus_x", "prophetnet"), "dropout"),
}
"""The key of dropout behind a block, by model_type; T5Gemma has none by default."""
DROPOUT = 0.1
"""The default of all of these."""


@dataclass(frozen=True, slots=True)
class StackFacts:
    """``local``: how the encoder's tokens attend to those around them; None: to all. ``dropout``: behind each block.
    ``num_predictions``: how often the decoder predicts each token (ProphetNet's ``ngram``), in as many streams beside
    that of the answer, each of which attends to itself and to that; 0: the answer's own predicts."""

    local: LocalAttention | None = None
    dropout: float = 0.0
    num_predictions: int = 0

    def streams(self, num_tokens: int) -> Chunks:
        """Of ``num_tokens`` of all streams: in each, with as many keys as they have on average.

        >>> StackFacts(num_predictions=2).streams(300)
        Chunks(count=3, rows=100, keys=166)
        """
        count = 1 + self.num_predictions
        rows = num_tokens // count
        return Chunks(count, rows, (2 * count - 1) * rows // count)


PLAIN_STACKS = StackFacts()


def stack_facts(config: Mapping[str, Any]) -> StackFacts:
    """Those of a config.json."""
    key = DROPOUT_KEYS.get(str(config.get("model_type")))
    said = DROPOUT if key is None else config.get(key, DROPOUT)
    known = key is not None and isinstance(said, int | float) and 0 <= said < 1
    return StackFacts(
        local=local_attention(config),
        dropout=float(said) if known else 0.0,
        num_predictions=_count(config, "ngram", NGRAM) if config.get("model_type") == "prophetnet" else 0,
    )


def local_attention(config: Mapping[str, Any]) -> LocalAttention | None:
    """That of the encoder of a config.json; None where it attends to all tokens."""
    model_type = config.get("model_type")
    if model_type == "led":
        said = config.get("attention_window", LED_WINDOW)
        windows = cast(list[Any], said) if isinstance(said, list) else [said]
        window = max((one for one in windows if isinstance(one, int)), default=LED_WINDOW)
        return LocalAttention(rows=max(1, window // 2), pads_to=max(2, window), overlaps=True)
    if model_type == "longt5":
        block = _count(config, "local_radius", LONGT5_RADIUS) + 1
        has_global = config.get("encoder_attention_type") == "transient-global"
        size = _count(config, "global_block_size", LONGT5_GLOBAL_BLOCK) if has_global else 0
        return LocalAttention(rows=block, pads_to=block, global_block=size)
    if model_type == "pegasus_x":
        block = _count(config, "block_size", PEGASUS_X_BLOCK)
        more = _count(config, "num_global_tokens", PEGASUS_X_GLOBAL)
        staggers = config.get("stagger_local_blocks") is not False
        return LocalAttention(rows=block, pads_to=block, num_pieces=1, global_keys=more, staggers=staggers)
    return None


def _count(config: Mapping[str, Any], key: str, default: int) -> int:
    value = config.get(key)
    return value if isinstance(value, int) and value > 0 else default
