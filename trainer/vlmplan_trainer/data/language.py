"""The language and the task that Whisper's tokenizer writes before what is said, and that its result generates with.

As transformers' example does it (``examples/pytorch/speech-recognition/run_speech_recognition_seq2seq.py``): tokens of
the tokenizer, and ``language`` and ``task`` of the generation settings; not for a checkpoint of English alone.
"""

import json
from dataclasses import replace
from pathlib import Path

from vlmplan.errors import InputError
from vlmplan.plan import Plan
from vlmplan.run.training import TrainerOptions
from vlmplan_trainer.models.load import Processing
from vlmplan_trainer.models.processor_files import GENERATION

OPTIONS = {"language": "--language", "task": "--speech-task"}


def with_language(processing: Processing, plan: Plan, options: TrainerOptions) -> Processing:
    """``processing`` whose tokenizer writes what the options say. Raises InputError where it has no such tokens."""
    asked = {"language": options.language, "task": options.speech_task}
    said = {name: value for name, value in asked.items() if value is not None}
    if not said:
        return processing
    given = OPTIONS[next(iter(said))]
    model = plan.workload.model
    if not model.hears_prompt:
        raise InputError(f"{given} is for Whisper, whose tokenizer writes it before what is said; leave it off")
    if _generation(processing).get("is_multilingual") is False:
        raise InputError(f"{given} is for checkpoints of several languages, and {model.id} is of English alone")
    try:
        processing.processor.tokenizer.set_prefix_tokens(**said)
    except ValueError as error:
        raise InputError(f"{given} {said[next(iter(said))]}: {' '.join(str(error).split())}") from None
    return replace(processing, speech=said)


def _generation(processing: Processing) -> dict[str, object]:
    path: Path | None = processing.files.get(GENERATION)
    return {} if path is None else json.loads(path.read_text(encoding="utf-8"))
