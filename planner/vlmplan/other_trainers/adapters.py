"""LoRA's keys that other trainers have alike: each gives them to peft, with defaults of its own."""

from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings

TASK_TYPES = ("SEQ_CLS", "SEQ_2_SEQ_LM", "CAUSAL_LM", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION")
"""peft's ``TaskType``."""
EMBEDDINGS = frozenset(("embed_tokens", "lm_head"))
PACKED_TYPES = ("uint8", "int8", "bfloat16", "float16", "float32", "float64")


def lora_options(
    settings: Settings, *, rank: int, alpha: int | None, dropout: float, rank_key: str = "lora_rank"
) -> dict[str, Value]:
    """The options of the adapters' sizes and kind; ``alpha`` None: twice the rank where nothing is said."""
    said_rank = settings.count(rank_key, rank, least=1)
    return {
        "lora_rank": said_rank,
        "lora_alpha": settings.count("lora_alpha", 2 * said_rank if alpha is None else alpha, least=1),
        "lora_dropout": settings.number("lora_dropout", dropout, most=1.0),
        "use_rslora": settings.flag("use_rslora", False),
        "use_dora": settings.flag("use_dora", False),
    }


def copied_embeddings(settings: Settings, key: str, names: frozenset[str] = EMBEDDINGS) -> dict[str, Value]:
    """The option of modules that peft copies and trains beside adapters, by ``key``: embedding and head alone."""
    copies = settings.names(key)
    if copies and not names.issuperset(copies):
        settings.refuse(key, f"copies of {', '.join(copies)}: {NOT_PLANNED}")
    return {"train_embeddings": True} if copies and names.issuperset(copies) else {}


def packed_storage(settings: Settings) -> str:
    """In which type 4-bit weights are kept, which decides nothing but whether FSDP2 shards them."""
    name = settings.text("bnb_4bit_quant_storage", "uint8").removeprefix("torch.")
    if name not in PACKED_TYPES:
        settings.refuse("bnb_4bit_quant_storage", f"one of {', '.join(PACKED_TYPES)} is needed")
    return name
