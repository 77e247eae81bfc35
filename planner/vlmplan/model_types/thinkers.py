"""Models that hear, see, write and speak, of which the part that writes is trained: the thinkers of Qwen's Omni models.

Source: transformers 5.23 ``models/{qwen2_5_omni,qwen3_omni_moe}``: ``...ThinkerForConditionalGeneration`` loads the
``thinker_config`` and the weights ``thinker.*`` of a whole checkpoint, and the whole model's class has no loss.
"""

from collections.abc import Mapping
from typing import NamedTuple, cast

from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict, not_allowed

SECTION = "thinker_config"


class Thinker(NamedTuple):
    """The thinker of a model: its model_type, its class in transformers, and what else the whole model is made of."""

    model_type: str
    class_name: str
    others: str


THINKERS: Mapping[str, Thinker] = {
    "qwen2_5_omni": Thinker(
        "qwen2_5_omni_thinker", "Qwen2_5OmniThinkerForConditionalGeneration", "its talker and token2wav"
    ),
    "qwen3_omni_moe": Thinker(
        "qwen3_omni_moe_thinker", "Qwen3OmniMoeThinkerForConditionalGeneration", "its talker and code2wav"
    ),
}
"""By the whole model's model_type."""
NUMBERED: Mapping[str, tuple[str, ...]] = {"qwen3_omni_moe_thinker": ("0", "2")}
"""Names of the mergers' Linears, which lie in a list, of thinkers whose experts peft looks for by names: it takes all
Linears by the last parts of their names then, and these mean layers too."""
PATCH_CONVOLUTION = "patch_embed.proj"
"""A convolution that the name of a Linear means too, which peft cannot adapt where ZeRO-3 has sharded it."""
PATCH_CONVOLUTION_TYPES = frozenset({"glm4v_moe", *NUMBERED})
"""Model types whose convolution all Linears mean too: peft takes them by the last parts of their names, see above."""
KEPT = ("dtype", "torch_dtype", "quantization_config")
"""Of the whole checkpoint: what its thinker's files are like."""


def thinker_config(config: JsonDict, *, source: str) -> JsonDict:
    """The thinker's configuration as a config.json of its own; ``config`` itself of any other model.

    Raises InputError where the whole model's configuration has none.
    """
    if config["model_type"] not in THINKERS:
        return config
    section = config.get(SECTION)
    if section is None:
        raise InputError(f"{source} has no {SECTION}, and the thinker is what is trained of a {config['model_type']}")
    if not isinstance(section, Mapping):
        raise not_allowed(source, SECTION, section, "a mapping")
    kept = {key: config[key] for key in KEPT if key in config}
    return {**kept, **cast(JsonDict, section), "model_type": THINKERS[str(config["model_type"])].model_type}


def thinker_note(name: str, config: JsonDict) -> str:
    """What the user should know of a whole model of which the thinker is planned."""
    others = THINKERS[str(config["model_type"])].others
    return f"Of {name} the thinker is planned and trained; {others} are neither loaded nor counted."


def thinker_class(model_type: str) -> str | None:
    """The class that takes a thinker out of a whole checkpoint, for which no ``AutoModel`` of transformers has a class
    with a loss; None for a model that is no thinker."""
    return next((one.class_name for one in THINKERS.values() if one.model_type == model_type), None)
