"""What a checkpoint lacks of a language model, by the class that its config.json says it is of."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from vlmplan.architecture.config import Config

SCORES = "ForSequenceClassification"
QUESTIONS = "ForQuestionAnswering"
"""Whose weights have names of their own in some classes (``transformer`` in ``modeling_qwen2.py``), so that
transformers finds none of them for a language model (seen)."""
OTHER_HEADS = (SCORES, QUESTIONS, "ForTokenClassification", "ForMultipleChoice")
BASE = "Model"
"""How the names of classes without any head end, behind that of the model's type."""


def class_notes(name: str, config: Mapping[str, Any]) -> Iterator[str]:
    """A sentence on a checkpoint whose class has no output head of a language model: ``from_pretrained`` of
    transformers 5.23 ties the head to the embedding, or draws it, and leaves out what the checkpoint has instead."""
    classes: object = config.get("architectures")
    found = next(iter(cast(list[object], classes)), None) if isinstance(classes, list) else None
    if not isinstance(found, str) or "auto_map" in config:
        return
    has_other = found.endswith(OTHER_HEADS)
    if not has_other and found.casefold() != _squeezed(config) + BASE.casefold():
        return
    of_class = f"The checkpoint of {name} is that of {found}, without the output head of a language model"
    passed_over = "; its own head is left out" if has_other else ""
    if Config(config).get("tie_word_embeddings") is True and not found.endswith(QUESTIONS):
        yield f"{of_class}, which is its embedding here: transformers draws nothing at random{passed_over}."
        return
    alone = " (--task reward loads it as it is)" if found.endswith(SCORES) else ""
    yield (
        f"{of_class}: transformers draws the head at random{passed_over}, and the bundled trainer refuses that{alone}; "
        f"give a checkpoint with all weights."
    )


def _squeezed(config: Mapping[str, Any]) -> str:
    """The type as it stands in names of classes, but for capitals."""
    return str(config.get("model_type")).replace("_", "").replace("-", "").casefold()
