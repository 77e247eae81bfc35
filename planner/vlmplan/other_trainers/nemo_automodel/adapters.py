"""LoRA as NeMo AutoModel has it: which Linears its patterns mean.

Source: Automodel@36044ad3 ``nemo_automodel/components/_peft/lora.py`` (``PeftConfig``) and ``module_matcher.py``. They
are in the type of the weights beside them, unless ``lora_dtype`` says another.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from vlmplan.architecture.families import has_family
from vlmplan.architecture.families.build import build_model
from vlmplan.architecture.modules import Linear
from vlmplan.other_trainers.nemo_automodel.keys import NOT_PLANNED
from vlmplan.other_trainers.nemo_automodel.models import FROZEN_NAMES
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import Method
from vlmplan.workload import ModelFiles

DEFAULT_TARGETS: Final = ("*_proj",)


def has_adapters(settings: Settings) -> bool:
    return any(key.startswith("peft.") for key in settings.keys)


def adapter_options(settings: Settings, model: ModelFiles | None, *, freezes_vision: bool) -> dict[str, Value]:
    """``dropout`` beside adapters that keep their input alone, and lengths of DoRA, have no plan."""
    settings.only("peft.use_dora", f"DoRA of its own: {NOT_PLANNED}")
    settings.only(
        "peft.lora_dtype", f"adapters in a type of their own: {NOT_PLANNED}; leave it out", "bfloat16", "bf16"
    )
    is_fused = settings.flag("peft.use_memory_efficient_lora", True)
    dropout = settings.number("peft.dropout", 0.0)
    if dropout > 0:
        settings.refuse("peft.dropout", f"dropout behind adapters: {NOT_PLANNED}; 0 is")
    settings.ignore(("peft.dropout_position",))
    return {
        "method": Method.LORA.value,
        "lora_rank": settings.count("peft.dim", 8, least=1),
        "lora_alpha": settings.count("peft.alpha", 32, least=1),
        "lora_targets": _targets(settings, model, freezes_vision=freezes_vision),
        **({"fused_adapters": True} if is_fused else {}),
    }


def _targets(settings: Settings, model: ModelFiles | None, *, freezes_vision: bool) -> str:
    """Names of modules by their last parts. Adapters that ``freeze_config`` freezes with the encoder, a part of a
    thousandth of its weights, are left out."""
    targets, excluded = settings.names("peft.target_modules"), settings.names("peft.exclude_modules")
    every = settings.flag("peft.match_all_linear", False)
    if len([one for one in (targets, excluded, every) if one]) > 1:
        settings.refuse_whole(
            "peft.target_modules, peft.exclude_modules and peft.match_all_linear: NeMo AutoModel takes one of them"
        )
    if not (targets or excluded or every):
        targets = [*DEFAULT_TARGETS]
    if model is None:
        return ",".join(targets)
    if not has_family(model.config):
        settings.refuse_whole(f"which modules of {model.id} its patterns mean is not known; --lora-targets names them")
        return ""
    return _named(settings, model, targets, excluded, freezes_vision=freezes_vision)


def _named(
    settings: Settings, model: ModelFiles, targets: Sequence[str], excluded: Sequence[str], *, freezes_vision: bool
) -> str:
    tree = build_model(model.config)
    names = [name for name, module in tree.named_modules() if isinstance(module, Linear)]
    if freezes_vision:
        names = [name for name in names if not any(word in name.lower() for word in FROZEN_NAMES)]
    meant = [name for name in names if _is_meant(name, targets, excluded)]
    last = dict.fromkeys(name.rpartition(".")[2] for name in meant)
    others = [name for name in names if name not in set(meant) and name.rpartition(".")[2] in last]
    if not meant or others:
        which = f"some of the modules called {', '.join(last)}" if others else "no module"
        settings.refuse_whole(f"peft means {which} of {model.id}: {NOT_PLANNED}; name all of a kind, as '*_proj' does")
    return ",".join(last)


def _is_meant(name: str, targets: Iterable[str], excluded: Iterable[str]) -> bool:
    patterns = [*targets]
    if patterns:
        return any(name == pattern or _matches(pattern, name) for pattern in patterns)
    return not any(name == pattern or _matches(pattern, name) for pattern in excluded)


def _matches(pattern: str, name: str) -> bool:
    """``wildcard_match``: a star means any characters, dots too.

    >>> _matches("*_proj", "model.layers.0.self_attn.q_proj"), _matches("q_proj", "model.layers.0.self_attn.q_proj")
    (True, False)
    """
    try:
        return re.match("^" + re.sub(r"(?<!\.)\*", ".*", pattern) + "$", name) is not None
    except re.error:
        return False
