"""How other trainers say that samples are packed, or lie in a row without padding.

Sources: TRL 1.16 ``trainer/sft_trainer.py`` (``self.padding_free``), ms-swift 4.6 ``arguments/sft_args.py``
(``_check_padding_free``), LLaMA-Factory 0.9.5 ``data/processor/supervised.py`` and ``data/collator.py``
(``SFTDataCollatorWith4DAttentionMask``).
"""

from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe_choices import AttentionImplementation, Batching

Options = dict[str, Value]
FLASH = AttentionImplementation.FLASH_ATTENTION_2.value


def trl_batching(settings: Settings, *, sees: bool) -> Options:
    """Packing by best fit is without padding, whatever ``padding_free`` says; ``wrapped`` rows are of one piece."""
    packs, flattens = settings.flag("packing", False), settings.flag("padding_free", False)
    strategy = settings.text("packing_strategy", "bfd") if "packing_strategy" in settings else "bfd"
    if not packs and not flattens:
        return {}
    if sees:
        settings.refuse("packing" if packs else "padding_free", "TRL refuses it for data with images")
        return {}
    if packs and strategy == "wrapped":
        settings.note(
            "packing_strategy wrapped: rows are cut anywhere, and samples of a row see each other, as it is planned"
        )
        return {}
    return {"batching": (Batching.PACKED if packs else Batching.PADDING_FREE).value}


def ms_swift_batching(settings: Settings, attention: Value | None, *, sees: bool) -> Options:
    """``packing`` and ``padding_free`` of ms-swift, both without padding and for flash attention alone."""
    packs, flattens = settings.flag("packing", False), settings.flag("padding_free", False)
    if not packs and not flattens:
        return {}
    if attention is None and "attn_impl" in settings:
        return {}  # that is refused already
    if attention != FLASH:
        settings.refuse("packing" if packs else "padding_free", "ms-swift takes it with attn_impl flash_attn alone")
        return {}
    if packs and sees:
        settings.note("packing: planned as samples of the full length, without padding; images of a row may be more")
        return {"batching": Batching.PADDING_FREE.value}
    return {"batching": (Batching.PACKED if packs else Batching.PADDING_FREE).value}


def llama_factory_batching(settings: Settings, attention: Value | None, micro_batch: Value, *, packs: bool) -> Options:
    """``neat_packing`` keeps the samples of a row apart, ``packing`` alone does not."""
    if not settings.flag("neat_packing", False):
        if settings.flag("packing", packs):
            settings.note("packing: rows of cutoff_len tokens, whose samples see each other, as it is planned")
        return {}
    settings.ignore(("packing",))
    if attention != FLASH:
        settings.refuse(
            "neat_packing", f"without flash_attn: fa2 it makes a mask of its own for every row: {NOT_PLANNED}"
        )
    elif micro_batch != 1:
        settings.refuse("neat_packing", "with flash_attn: fa2 LLaMA-Factory takes per_device_train_batch_size: 1 alone")
    return {"batching": Batching.PACKED.value}
