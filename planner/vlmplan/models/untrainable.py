"""Model types that transformers lists among language models and whose training is not that of one.

Source: transformers 5.23, ``models/*/modeling_*.py``.
"""

from collections.abc import Mapping

from vlmplan.errors import InputError

_DRAFT = "a draft model that reads another model's keys and values, so it cannot run alone"
UNTRAINABLE: Mapping[str, str] = {
    "diffusion_gemma": "it fills in a block of noised tokens behind a prompt, and its class takes no labels: the noise "
    "and the loss of its training are not in transformers",
    "evolla": "it answers questions about proteins, of which no sample of text or images has any",
    "gemma4_assistant": _DRAFT,
    "gemma4_unified_assistant": _DRAFT,
    "musicgen": "it writes codes of sound, not text",
    "musicgen_melody": "it writes codes of sound, not text",
    "pi0": "it writes the motions of a robot, not text",
}
"""Why each cannot be trained on samples of text and images."""
UNPLANNABLE: Mapping[str, str] = {
    "blt": "how many patches it makes of a sample's bytes is decided by the entropy of what its patcher predicts, "
    "which no plan knows",
}
"""Types that can be trained, and why nothing can be said before they are."""


def check_trainable(model_type: str) -> None:
    """Raise InputError for a type that is not trained as a language model, or of which nothing is known before."""
    if model_type in UNTRAINABLE:
        raise InputError(f"a model of model_type {model_type!r} cannot be trained here: {UNTRAINABLE[model_type]}")
    if model_type in UNPLANNABLE:
        raise InputError(f"a model of model_type {model_type!r} cannot be planned: {UNPLANNABLE[model_type]}")
