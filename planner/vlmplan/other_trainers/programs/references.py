"""The reference that a program gives a trainer of preferences: planned is a copy of the model before its training.

Sources: ``ref_model`` in ``trl/trainer/dpo_trainer.py`` and ``kto_trainer.py`` (TRL 1.16).
"""

from collections.abc import Mapping
from typing import Final

from vlmplan.errors import InputError
from vlmplan.other_trainers.programs.calls import Call, Keyword
from vlmplan.other_trainers.programs.gathered import OTHERWISE, Gathered

REFERENCE: Final = "ref_model"
COPIES: Final = ("create_reference_model", "deepcopy")
"""Functions that make a copy of the model."""
NAME: Final = "pretrained_model_name_or_path"
OF_ITS_BYTES: Final = (NAME, "dtype", "torch_dtype", "load_in_4bit", "load_in_8bit", "quantization_config")
"""Keywords of loading that decide how large a model is."""


def reference_call(found: Gathered) -> Call | None:
    """The call that makes the reference, where the program has one."""
    given = found.trainer.keywords.get(REFERENCE)
    return None if given is None else found.program.call_of(given.node)


def refuse_another_reference(found: Gathered, loads: Call | None, *, has_adapters: bool) -> None:
    """Raise InputError for a reference that is not a copy of the model that ``loads`` loads, and for one beside
    adapters, which TRL keeps as a whole model more where it would switch the adapters off."""
    given = found.trainer.keywords.get(REFERENCE)
    if given is None or (given.worth is not None and given.worth.value is None):
        return
    start = f"{found.program.source}: {REFERENCE} of {found.trainer.name} is {given.text}"
    if has_adapters:
        raise InputError(
            f"{start}, a whole model beside that with adapters: not planned; without it TRL switches the adapters off "
            f"for the reference, which is{OTHERWISE}"
        )
    made = reference_call(found)
    if made is not None and made.name in COPIES:
        return
    if made is None or loads is None or not made.name.endswith(".from_pretrained"):
        raise InputError(
            f"{start}, of which only running the program tells what it is; leave it out, and TRL makes a copy of the "
            f"model{OTHERWISE}"
        )
    own, of_model = (found.named(call, (NAME,)) for call in (made, loads))
    other = next((key for key in OF_ITS_BYTES if said(own, key) != said(of_model, key)), None)
    if other is not None:
        other_text = own[other].text if other in own else f"loaded without {other}"
        text = of_model[other].text if other in of_model else f"without {other}"
        raise InputError(
            f"{start}, {other_text}, and the model is {text}: a copy of the model is planned; leave it out, "
            f"and TRL makes one{OTHERWISE}"
        )


def said(keywords: Mapping[str, Keyword], key: str) -> object:
    """What a keyword is worth, or its text where only running the program tells; None without it."""
    keyword = keywords.get(key)
    return None if keyword is None else keyword.text if keyword.worth is None else keyword.worth.value
