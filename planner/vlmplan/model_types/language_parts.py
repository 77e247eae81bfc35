"""Vision-language models of which ``AutoModelForCausalLM`` loads the language model alone.

Source: transformers 5.23 ``models/auto/modeling_auto.py`` (``MODEL_FOR_CAUSAL_LM_MAPPING_NAMES``) and
``auto_factory.py``: where the class is one of the ``text_config``, that section is all it is made of, with its own
``tie_word_embeddings``. Of other vision-language models the mapping has the whole class (Gemma 3) or none (Qwen2.5-VL).
"""

from collections.abc import Mapping
from typing import cast

from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict

SECTION = "text_config"
AUTO_CLASS = "AutoModelForCausalLM"
SUFFIX = ":text"
"""Behind a model's name: its language model alone."""
CLASSES: Mapping[str, str] = {
    "dots3_note": "Dots3NoteForCausalLM",
    "emu3": "Emu3ForCausalLM",
    "llama4": "Llama4ForCausalLM",
    "mllama": "MllamaForCausalLM",
    "qwen3_5": "Qwen3_5ForCausalLM",
    "qwen3_5_moe": "Qwen3_5MoeForCausalLM",
    "qwen4_exp": "Qwen4ExpForCausalLM",
}
"""Of the language model, by the whole model's model_type."""
LANGUAGE_TYPES: Mapping[str, str] = {
    name: f"{name}_text_model" if name in ("emu3", "mllama") else f"{name}_text" for name in CLASSES
}
KEPT = ("dtype", "torch_dtype", "quantization_config", "transformers_version")
"""Of the whole checkpoint: what its files are like."""
NOT_PLANNED = frozenset({"mllama"})
"""Its language model keeps the layers that attend to images, which never run then."""


def language_config(config: Mapping[str, object], *, name: str) -> JsonDict:
    """The language model's configuration as a config.json of its own; ``name``: the whole model's, for errors.

    Raises InputError for a model of which no class loads the language model alone, or one that is not planned.
    """
    model_type = str(config.get("model_type"))
    section = config.get(SECTION)
    if model_type not in CLASSES or not isinstance(section, Mapping):
        raise InputError(
            f"{name}{SUFFIX}: transformers has no class that loads the language model of a {model_type} alone; it has "
            f"for {', '.join(CLASSES)}"
        )
    if model_type in NOT_PLANNED:
        raise InputError(
            f"{AUTO_CLASS} makes {CLASSES[model_type]} of {name}, its language model alone: vlmplan has no memory "
            f"model of it; AutoModelForImageTextToText loads the whole model, which is planned"
        )
    kept = {key: config[key] for key in KEPT if key in config}
    return {**kept, **cast(JsonDict, section), "model_type": LANGUAGE_TYPES[model_type]}


def language_note(name: str, model_type: str) -> str:
    """What the user should know of a model whose language model alone is planned."""
    return (
        f"Of {name} the language model alone is planned ({CLASSES[model_type]}), as {AUTO_CLASS} loads it; what sees "
        f"is neither loaded nor counted."
    )
