"""How long axolotl's rows are, how samples are packed and cut, and how large images are (0.19.0).

Sources: ``core/builders/causal.py`` for collators, ``utils/data/utils.py`` for what is cut,
``processing_strategies.py`` for images.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, cast

from vlmplan.data_rules import NOT_KNOWN, OF_AXOLOTL, DataRules, Learnt, LearntRule
from vlmplan.other_trainers.assembled import largest_image
from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.meaning import sees
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.workload import ModelFiles

PADS_TO: Final = 64
"""``HFCausalTrainerBuilder.build``: rows are padded to a multiple of so many tokens unless the file says otherwise."""


CHAT_TEMPLATE: Final = "chat_template"
OF_LEARNING: Final = frozenset(
    "roles_to_train train_on_eos train_on_eot message_field_training message_field_training_detail".split()
)
"""Keys of a data set that say what of it is learnt."""


def sees_images(settings: Settings, model: ModelFiles | None) -> bool:
    """Whether images are collated: ``build_collator`` does with ``processor_type`` alone."""
    return sees(model) and "processor_type" in settings


def samples(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """How long a row is: padded to a multiple, with ``pad_to_sequence_len`` to the whole length."""
    length = settings.count("sequence_len", 512, least=1)
    if sees_images(settings, model):
        settings.ignore(("pad_to_sequence_len", "pad_to_multiple_of"))
        settings.note("samples with images are not cut at sequence_len; they are planned to be as long: --seq-len")
        return {"seq_len": length, **_image_size(settings, model)}
    settings.ignore(("image_size", "processor_kwargs"))
    pads_to = _pads_to(settings, length)
    row = pads_to * math.ceil(length / pads_to)
    if row != length:
        settings.note(f"rows are padded to a multiple of {pads_to}: {row:,} tokens, where sequence_len is {length:,}")
    return {"seq_len": row, **({"images_per_sample": 0} if sees(model) else {})}


def _pads_to(settings: Settings, length: int) -> int:
    multiple = settings.count("pad_to_multiple_of", PADS_TO, least=1)
    packs = bool(settings.maybe_flag("sample_packing"))
    said = settings.maybe_flag("pad_to_sequence_len")
    if said is None and not packs:
        return multiple
    return 1 if said is False else multiple * math.ceil(length / multiple)


def _image_size(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """Every image is brought to ``image_size``: a square that it is padded to, or width and height; else to that of the
    checkpoint's vision encoder, where config.json says one (``load_model_config``)."""
    own = settings.table("processor_kwargs")
    for key in own:
        if key not in ("max_pixels", "min_pixels"):
            settings.refuse("processor_kwargs", f"{key}: {NOT_PLANNED}")
    vision: object = None if model is None else model.config.get("vision_config")
    usual = cast("Mapping[str, Any]", vision).get("image_size") if isinstance(vision, Mapping) else None
    size = settings.raw("image_size") if "image_size" in settings else usual
    sides = cast(list[Any], size) if isinstance(size, list) else [size, size]
    if len(sides) == 2 and all(type(side) is int and side > 0 for side in sides):
        return {"image_size": f"{sides[0]}x{sides[1]}"}
    if "image_size" in settings:
        settings.refuse("image_size", "pixels of a square, or [width, height], are needed")
    largest = own.get("max_pixels")
    return {"image_size": largest_image(largest)} if isinstance(largest, int) and largest > 0 else {}


def data_rules(settings: Settings, model: ModelFiles | None) -> DataRules:
    """Samples over ``sequence_len`` are dropped unless ``excess_length_strategy`` says truncate
    (``handle_long_seq_in_dataset``); of images none is (``MultiModalChatDataCollator``). Packed rows are padded to the
    whole length (``hint_sample_packing_padding``)."""
    has_images = sees_images(settings, model)
    packs = bool(settings.maybe_flag("sample_packing"))
    strategy = settings.text("excess_length_strategy", "drop").casefold()
    pads_to = 1 if has_images else _pads_to(settings, settings.count("sequence_len", 512, least=1))
    return DataRules(
        pads_to=pads_to,
        packs=packs,
        drops_long=not has_images and strategy != "truncate",
        fills_rows=not has_images and settings.maybe_flag("pad_to_sequence_len") is not False,
        learns=NOT_KNOWN if has_images else learnt_of(settings),
    )


def learnt_of(settings: Settings) -> LearntRule:
    """What its strategy of that name learns (``prompt_strategies/chat_template.py``, ``_tokenize_single_prompt``):
    the
    assistant's turns, of any with ``train_on_inputs``, each with the token that ends a text where one follows. What
    other types of data sets, and keys of one on what is learnt, make of samples is not counted."""
    sets: list[Any] = settings.value("datasets") if isinstance(settings.value("datasets"), list) else []
    for one in sets:
        own = cast("dict[str, Any]", one) if isinstance(one, dict) else {}
        if own.get("type", CHAT_TEMPLATE) != CHAT_TEMPLATE or OF_LEARNING.intersection(own):
            return NOT_KNOWN
    if settings.idle_flag("train_on_inputs", False):
        return LearntRule(what=Learnt.CONTENTS)
    return OF_AXOLOTL
