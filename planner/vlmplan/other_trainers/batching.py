"""How other trainers say that samples are packed, or lie in a row without padding.

Sources: TRL 1.16 ``trainer/sft_trainer.py`` (``self.padding_free``), ms-swift 4.6 ``arguments/sft_args.py``
(``_check_padding_free``), LLaMA-Factory 0.9.5 ``data/processor/supervised.py`` and ``data/collator.py``
(``SFTDataCollatorWith4DAttentionMask``), axolotl 0.19 ``core/builders/causal.py`` (``build_collator``) and
``core/trainers/base.py`` (``_create_multipack_sampler``).
"""

from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import AttentionImplementation, Batching

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


def axolotl_batching(settings: Settings, attention: Value | None, *, sees_images: bool) -> Options:
    """``sample_packing`` makes one row of a micro batch with flash attention, and rows that are kept apart in other
    ways without; ``batch_flattening`` makes one of samples that are not packed."""
    packs = settings.flag("sample_packing", False)
    flattens = settings.text("batch_flattening", "false").casefold() if "batch_flattening" in settings else "false"
    settings.only("multipack_real_batches", f"rows that are packed each by itself: {NOT_PLANNED}")
    if packs and attention != FLASH:
        settings.refuse("sample_packing", "it is planned with attn_implementation: flash_attention_2 alone")
    elif packs and sees_images:
        settings.refuse("sample_packing", f"of samples with images: {NOT_PLANNED}")
    if packs:
        if flattens == "true":
            settings.refuse("batch_flattening", "and sample_packing is set too; axolotl takes one of the two")
        return {"batching": Batching.PACKED.value}
    is_auto = flattens == "auto"
    if flattens == "false" or sees_images or (is_auto and attention != FLASH):
        return {}
    if attention != FLASH:
        settings.refuse("batch_flattening", "axolotl takes it with attn_implementation: flash_attention_2 alone")
    is_alone = is_auto and settings.count("micro_batch_size", 1, least=1) == 1
    return {} if is_alone else {"batching": Batching.PADDING_FREE.value}
