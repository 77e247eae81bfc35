"""What a sample may say beside its turns, and nobody reads here: it is refused by name, where it would change what is
learnt or what stands in the text."""

from vlmplan.files.json_reader import JsonObject

PLACEHOLDERS = ("<ref-object>", "<bbox>")
"""In whose place ms-swift writes what ``objects`` of a sample has."""


def refuse_unread_of_sample(sample: JsonObject, texts: str) -> None:
    """Raise InputError where ``texts`` of the sample have places that its ``objects`` are to be written into."""
    has_places = any(place in texts for place in PLACEHOLDERS)
    if has_places and sample.maybe("objects", sample.raw) not in (None, {}, []):
        sample.complain("objects", f"they are not written in place of {' and '.join(PLACEHOLDERS)}; write the text out")
