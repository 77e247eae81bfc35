"""Write ``tests/data/image_types.csv``: of which model types without a family the images are planned.

Each configuration of ``tests/image_models.py``, and the default ones of types with an encoder and a decoder, is
captured as a user's would be, with the settings that its processor has of its own. Takes some minutes of processor
time, and no weights; torchvision has to be installed, whichever device it is built for:

    PYTHONPATH=planner:trainer:tests python tests/tools/every_image_type.py

Types in the command are tried alone, and the rows of the others stay.
"""

import json
import sys
import warnings
from collections.abc import Sequence

import transformers

from image_models import IMAGE_MODELS, PREPROCESSORS
from image_types import FILE, ImageRow, stored_image_rows, traced_types_with_images, write_image_rows
from torchvision_image_models import TORCHVISION_MODELS
from torchvision_shim import import_torchvision
from vlmplan.architecture.captured.capture import capture_from_json
from vlmplan.architecture.captured.operations import unknown_operations
from vlmplan.architecture.generic.layout import layout_from_json
from vlmplan.errors import InputError
from vlmplan.model_types.encoder_decoder import ONE_IMAGE_TYPES
from vlmplan.plain_text import one_line
from vlmplan_trainer.capture.run import captured, refuse_images_as_words
from vlmplan_trainer.probe import configuration, layout
from vlmplan_trainer.processors.processing import processed

SIZE = {"width": 448, "height": 448, "images_per_sample": 1}
OF_TORCHVISION = frozenset((*(str(config["model_type"]) for config in TORCHVISION_MODELS), "pp_formulanet"))


def row_of(model_type: str) -> ImageRow:
    """How the images of a type fare; of one without a configuration here, whether its processor can be had at all."""
    default = {"model_type": model_type} if model_type in ONE_IMAGE_TYPES else None
    config, preprocessor = IMAGE_MODELS.get(model_type, default), PREPROCESSORS.get(model_type)
    needs = "torchvision" if model_type in OF_TORCHVISION else ""
    try:
        refuse_images_as_words(model_type)
        if config is None:
            processed(configuration({"model_type": model_type}), None, **SIZE, num_samples=1)
            raise LookupError(model_type)
        described = layout_from_json(json.loads(json.dumps(layout(dict(config)))))
        if not described.vision and not described.text:
            raise InputError(f"nothing that sees is told from the language model of {described.class_name}")
        answer = captured({"config": dict(config), "preprocessor": preprocessor, **SIZE})
        capture = capture_from_json(json.loads(json.dumps(answer)), **SIZE)
        unknown = [name for programs in capture.programs.values() for name in unknown_operations(programs[0])]
        if unknown:
            raise InputError(f"it needs {', '.join(unknown)} of torch, whose memory vlmplan does not describe")
    except InputError as error:
        return ImageRow(model_type, processor="", needs=needs, num_tokens=0, refusal=one_line(str(error)))
    return ImageRow(model_type, capture.processor, needs=needs, num_tokens=capture.num_tokens, refusal="")


def rows_of(model_types: Sequence[str]) -> list[ImageRow]:
    """Of each type whose images are planned or refused; those that nothing is known of are left out."""
    rows: list[ImageRow] = []
    for model_type in model_types:
        try:
            rows.append(row_of(model_type))
        except Exception as error:  # a default configuration that transformers itself cannot build from says nothing
            sys.stdout.write(f"{model_type}: not tried: {type(error).__name__}: {one_line(str(error))[:200]}\n")
            continue
        sys.stdout.write(f"{rows[-1]}\n")
        sys.stdout.flush()
    return rows


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    import_torchvision()
    chosen = sys.argv[1:] or traced_types_with_images()
    kept = [row for row in stored_image_rows() if row.model_type not in chosen]
    rows = sorted([*kept, *rows_of(chosen)], key=lambda row: row.model_type)
    write_image_rows(rows)
    sys.stdout.write(f"{FILE.name}: {len(rows)} types, {sum(not row.refusal for row in rows)} planned\n")
