"""What a sample may say beside its turns, and nobody reads here: it is refused by name, where it would change what is
learnt or what stands in the text."""

from vlmplan.json_reader import JsonObject

LEARNT_KEYS = ("weight", "loss", "loss_scale")
"""How OpenAI and ms-swift say of a turn whether, or how much, it is learnt."""
THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")
PLACEHOLDERS = ("<ref-object>", "<bbox>")
"""In whose place ms-swift writes what ``objects`` of a sample has."""


def refuse_unread_of_turn(message: JsonObject) -> None:
    """Raise InputError for a turn of the assistant that is not to be learnt, or with thoughts beside its content."""
    for key in LEARNT_KEYS:
        value = message.maybe(key, message.raw)
        if value is not None and value != 1:
            message.complain(key, "every turn of the assistant is learnt, one as much as the other")
    for key in THOUGHT_KEYS:
        if message.maybe(key, message.raw) not in (None, ""):
            message.complain(key, "thoughts are read as a part of the content, as the model writes them (<think>)")


def refuse_unread_of_sample(sample: JsonObject, texts: str) -> None:
    """Raise InputError where ``texts`` of the sample have places that its ``objects`` are to be written into."""
    has_places = any(place in texts for place in PLACEHOLDERS)
    if has_places and sample.maybe("objects", sample.raw) not in (None, {}, []):
        sample.complain("objects", f"they are not written in place of {' and '.join(PLACEHOLDERS)}; write the text out")
