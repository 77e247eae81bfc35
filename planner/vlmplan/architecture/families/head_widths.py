"""Heads that transformers refuses, whatever width they have of their own: classes of configurations want as many as
divide the width of their layers.

Source: transformers 5.23, ``validate_architecture`` of each class.
"""

from vlmplan.architecture.config import CONFIG, Config
from vlmplan.errors import InputError

DIVIDING_TYPES = frozenset(
    """arcee aria_text clip_vision_model cwm deepseek_ocr2_text deepseek_v2 exaone gemma2 gemma3_text gemma3n_text
    gpt_neox hyperclovax internlm3 iquestcoder jais2 llama minicpm3 muse_glimmer_text vaultgemma""".split()
)
"""Types, of parts too, whose class looks whether its heads divide its width."""


def refuse_uneven_heads(config: Config) -> None:
    """Raises InputError where transformers makes no configuration of the file, or a part of it."""
    for part in (config, *config.sections()):
        if part.model_type not in DIVIDING_TYPES:
            continue
        width, num_heads = part.integer("hidden_size"), part.integer("num_attention_heads")
        if width % num_heads:
            prefix = f"{part.path}." if part.path else ""
            raise InputError(
                f"{CONFIG}: {prefix}hidden_size is {width:,}; transformers takes a multiple of "
                f"{prefix}num_attention_heads, {num_heads:,}, for a {part.model_type}, whatever its head_dim is"
            )
