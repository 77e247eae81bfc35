"""Models that read with an encoder and write the answer with a decoder: which are planned and trained so.

Their prompt may have ``--seq-len`` tokens and their answer ``--target-len``, what transformers' examples for
``Seq2SeqTrainer`` call ``max_source_length`` and ``max_target_length``, with the same defaults
(``examples/pytorch/summarization/run_summarization.py``: 1024 and 128). The encoders of some read an image alone:
their samples have no prompt, and no ``--seq-len``.
"""

from collections.abc import Mapping
from typing import Any, Final

BART_TYPES: Final = frozenset(("bart", "blenderbot", "blenderbot-small", "marian", "mbart", "pegasus", "plbart"))
"""Those that one family describes."""
HEARING_TYPES: Final = frozenset(("whisper",))
"""Those whose encoder hears a sound, always padded to thirty seconds, and reads no prompt."""
IMAGE_ENCODER_TYPES: Final = frozenset(("pix2struct", "pp_formulanet", "vision-encoder-decoder"))
"""Those whose encoder reads an image and no text (Donut and TrOCR are vision-encoder-decoder)."""
ONE_IMAGE_TYPES: Final = IMAGE_ENCODER_TYPES | {"florence2"}
"""Those whose encoder reads one image in each sample, whatever else it reads."""
TRACED_READERS: Final = frozenset(
    (
        "bigbird_pegasus",
        "led",
        "longt5",
        "m2m_100",
        "mt5",
        "mvp",
        "pegasus_x",
        "prophetnet",
        "t5",
        "t5gemma",
        "t5gemma2",
        "umt5",
    )
)
"""Those that read text, and are planned from rehearsals."""
OWN_LOSS_TYPES: Final = frozenset(("prophetnet",))
"""Those whose decoder predicts each token several times, from as many places before it, by a loss of their class."""
ENCODER_DECODER_TYPES: Final = BART_TYPES | HEARING_TYPES | ONE_IMAGE_TYPES | TRACED_READERS
DEFAULT_TARGET_LEN = 128
"""Tokens of an answer where ``--target-len`` says nothing. A choice."""


def is_encoder_decoder(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of one of these types, with both parts: the decoder alone is another model, which those
    that see have not.

    >>> is_encoder_decoder({"model_type": "bart"}), is_encoder_decoder({"model_type": "llama"})
    (True, False)
    """
    model_type = config.get("model_type")
    has_both = model_type in ONE_IMAGE_TYPES or config.get("is_encoder_decoder") is not False
    return model_type in ENCODER_DECODER_TYPES and has_both


def hears_prompt(config: Mapping[str, Any]) -> bool:
    """Whether it is of one whose encoder hears a sound, the only one of a sample, in the place of a prompt."""
    return config.get("model_type") in HEARING_TYPES and is_encoder_decoder(config)
