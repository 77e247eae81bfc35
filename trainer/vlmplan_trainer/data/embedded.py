"""The content of an image or a sound that stands in base64 in a file of samples."""

from vlmplan.chats.image_files import Embedded, base64_bytes, decoded_base64
from vlmplan.chats.preferences import raw_of
from vlmplan.chats.references import Reference
from vlmplan.files.data_file import record_content
from vlmplan.files.json_reader import parse_json_object


def embedded_content(source: Embedded, *, kind: str) -> bytes:
    """``kind`` is that of ``Reference``, of which ``source`` says the number."""
    line = record_content(source.file, source.offset, source.num_bytes)
    where = str(source.file)
    turns = raw_of(parse_json_object(line.decode("utf-8-sig"), source=where), source=where).turns
    shown = [part for turn in turns for part in turn.content if isinstance(part, Reference) and part.kind == kind]
    reference = shown[source.index]
    data = base64_bytes(reference)
    return decoded_base64(reference.text, kind=kind) if data is None else data
