"""What the scripts of 2U1 for vision-language models have in common: the options of adapters.

Sources: ``find_target_linear_names`` and what is around it in ``src/train/train_sft.py`` of 2U1/Qwen-VL-Series-Finetune
(commit 93fef86), and of the three of ``other_series``.
"""

import ast
import re
from typing import Final, cast

from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import ALL_LINEAR, REGEX

SHARED_KEYS: Final = frozenset(
    """model_id freeze_vision_tower freeze_llm lora_enable vision_lora lora_namespan_exclude num_lora_modules
    disable_flash_attn2""".split()
)
"""Of all of these scripts."""
LORA_RANK, LORA_DROPOUT = 64, 0.05
EMBEDDINGS = ("lm_head", "embed_tokens")
OF_ADAPTERS: Final = (
    *("max_seq_length", "lora_rank", "lora_alpha", "lora_dropout", "use_dora"),
    *("lora_bias", "lora_namespan_exclude", "num_lora_modules", "vision_lora", "quant_type"),
)
WITHOUT_EFFECT: Final = "cache_dir data_path lazy_preprocess vision_lr lora_weight_path".split()


def adapts_tower(settings: Settings) -> bool:
    """Whether the tower has adapters; what the scripts and vlmplan do not take of the options beside is refused."""
    if not settings.flag("freeze_llm", False):
        settings.refuse_whole("lora_enable needs freeze_llm True: the script raises ValueError without")
    adapts = settings.flag("vision_lora", False)
    if adapts and not settings.flag("freeze_vision_tower", False):
        settings.refuse_whole("vision_lora needs freeze_vision_tower True: the script raises ValueError without")
    settings.only("num_lora_modules", f"adapters on the last modules alone: {NOT_PLANNED}", "-1")
    settings.only("lora_bias", NOT_PLANNED, "none")
    return adapts


def adapters_without(settings: Settings, words: list[str], closed: tuple[str, ...], alpha: int) -> dict[str, Value]:
    """Adapters on every Linear that no excluded word is in the name of; ``closed`` are those of whole parts."""
    missing = [word for word in EMBEDDINGS if word not in words]
    if missing:
        settings.refuse_whole(
            f"lora_namespan_exclude without {' and '.join(missing)} puts adapters on embeddings too: {NOT_PLANNED}"
        )
    others = [re.escape(word) for word in words if word not in (*EMBEDDINGS, *closed)]
    return {
        "lora_rank": settings.count("lora_rank", LORA_RANK, least=1),
        "lora_alpha": settings.count("lora_alpha", alpha, least=1),
        "lora_dropout": settings.number("lora_dropout", LORA_DROPOUT),
        "lora_targets": ALL_LINEAR,
        **({"lora_exclude": f"{REGEX}.*(?:{'|'.join(others)}).*"} if others else {}),
    }


def excluded_words(settings: Settings) -> list[str]:
    """``lora_namespan_exclude`` as Python reads it: a list of texts."""
    said = settings.raw("lora_namespan_exclude")
    words: object = [] if said is None else said
    if isinstance(words, str):
        try:
            words = ast.literal_eval(words)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            words = None
    texts = cast(list[object], words) if isinstance(words, list) else [words]
    if not all(isinstance(text, str) for text in texts) or not isinstance(words, list):
        settings.refuse("lora_namespan_exclude", "a list of texts as Python writes it is needed: ['lm_head']")
        return list(EMBEDDINGS)
    return [str(text) for text in texts]
