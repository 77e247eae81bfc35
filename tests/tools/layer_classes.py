"""Write ``planner/vlmplan/data/layer_classes.json``: the classes of the layers that FSDP2 makes units of.

Models are told apart by the model types of the whole and of its parts. ``layers`` are the classes that transformers
can run again in backward (``GradientCheckpointingLayer``), as vlmplan plans them; ``language`` are those of the
language model, where other parts have others. ``default`` says what accelerate takes where a configuration names none
(``_no_split_modules``): ``same``; ``absent``, where it names a class that is not in the model, so that accelerate
refuses to start; or ``other``. Run with transformers installed after its version in
constraints.txt has changed, about a minute:

    PYTHONPATH=tests python tests/tools/layer_classes.py
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from vlmplan.other_trainers.fsdp import kind_of
from vlmplan_trainer.engines.sharded import around_embedding, unit_layers
from vlmplan_trainer.probe import configuration, model_class

DATA = Path(__file__).parents[2] / "planner" / "vlmplan" / "data"
OUTPUT = DATA / "layer_classes.json"


def entry(config: dict[str, Any]) -> dict[str, Any]:
    with torch.device("meta"):
        made = configuration(config)
        model = model_class(made)._from_config(made)
    layers = {type(one).__name__ for one in unit_layers(model)}
    language = {type(one).__name__ for one in unit_layers(around_embedding(model))}
    present = {type(one).__name__ for one in model.modules()}
    named = set(model._no_split_modules or ())
    default = "same" if named == layers else "absent" if named - present else "other"
    is_part = language and language < layers
    return {"layers": sorted(layers), **({"language": sorted(language)} if is_part else {}), "default": default}


def table() -> dict[str, Any]:
    kinds: dict[str, Any] = {}
    for path in sorted(DATA.glob("models/*/config.json")):
        config = json.loads(path.read_text())
        if kind_of(config) in kinds:
            continue
        try:
            kinds[kind_of(config)] = entry(config)
        except Exception as problem:  # a model type that transformers does not have
            sys.stderr.write(f"{path.parent.name}: {type(problem).__name__}: {str(problem)[:100]}\n")
    source = f"transformers {transformers.__version__} (Apache-2.0), models/*/modeling_*.py"
    return {"source": source, "models": dict(sorted(kinds.items()))}


if __name__ == "__main__":
    OUTPUT.write_text(json.dumps(table(), indent=1) + "\n")
    sys.stdout.write(f"{OUTPUT.name}: {OUTPUT.stat().st_size} bytes\n")
