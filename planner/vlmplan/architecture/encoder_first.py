"""Text that is generated about images: their encoder has run before the model's ``forward`` begins.

Source: transformers 5.23 ``generation/utils.py`` (``_prepare_multimodal_encoder_kwargs_for_generation``, for models
whose ``forward`` takes ``mm_encoder_outputs``). ``generate`` calls ``get_image_features`` itself, and so outside of the
autocast that accelerate puts around ``forward``; what that returns is there until the last token.
"""

from collections.abc import Sequence
from dataclasses import replace

from vlmplan.architecture.tape import Tape
from vlmplan.architecture.tensor import Tensor
from vlmplan.architecture.trace import Run, Trace

EMBEDDING, BETWEEN = "embedding", "between."


def words_behind_images(trace: Trace) -> Trace:
    """``trace`` of a forward that embeds words first, with them between the encoder and the features' places."""
    schedule = trace.schedule
    keys = [run.key for run in schedule]
    if Tape.PLACES_OF_FEATURES not in keys or EMBEDDING not in keys:
        return trace
    begin, place = keys.index(EMBEDDING), keys.index(Tape.PLACES_OF_FEATURES)
    end = begin + 1
    while end < place and keys[end].startswith((EMBEDDING, BETWEEN)):
        end += 1
    moved: list[Run] = [*schedule[:begin], *schedule[end:place], *schedule[begin:end], *schedule[place:]]
    return replace(trace, schedule=moved, _merged=None, _works=None, memo={})


def kept_outputs(tape: Tape) -> Sequence[Tensor]:
    """What encoders have returned, each storage once; it is noted as kept."""
    found = list({id(one.storage): one for one in tape.outputs.encoded()}.values())
    for one in found:
        tape.note_cached(one, grows=False)
    return found
