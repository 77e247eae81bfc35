"""A forward of a real model of each family, cut to a few layers, on what ``batch.py`` makes for it.

A check's name is that of a JSON file of {config, samples} in the folder that FOLDER names.
"""

import json
import os
import sys
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import torch
from forked import main
from worlds import rehearsing

from vlmplan_trainer.data.downscaling import PIXELS
from vlmplan_trainer.losses.loss import model_inputs
from vlmplan_trainer.probe import configuration, model_class
from vlmplan_trainer.rehearse.device import NAME
from vlmplan_trainer.rehearse.run import MicroBatches
from vlmplan_trainer.rehearse.samples import ImageSpec, Samples


def forward(file: Path) -> dict[str, Any]:
    """Shapes of the logits and of everything that the model was given; how much of it is kept by what made it."""
    content = json.loads(file.read_text())
    samples = content["samples"]
    asked = Samples(**{**samples, "image": ImageSpec(**samples["image"])})
    with rehearsing() as mode:
        config = configuration(content["config"])
        kind = model_class(config)
        attention = "sdpa" if kind._supports_sdpa else "eager"
        model = kind._from_config(config, dtype=torch.bfloat16, attn_implementation=attention).to(NAME)
        config.get_text_config().use_cache = False
        made = iter(MicroBatches(mode, config, asked, 1, part=0, num_parts=1))
        batch = next(made)
        sent = {
            name: tensor.to(torch.bfloat16 if name in PIXELS else tensor.dtype).to(NAME)
            for name, tensor in batch.items()
        }
        logits = model(**model_inputs(sent), use_cache=False).logits
        model_inputs_shapes = {name: list(tensor.shape) for name, tensor in sent.items()}
        unused = [weakref.ref(tensor) for tensor in batch.values()]
        del batch
        num_kept = sum(tensor() is not None for tensor in unused)
        return {"logits": list(logits.shape), "num_kept": num_kept, **model_inputs_shapes}


if __name__ == "__main__":
    folder = Path(os.environ["FOLDER"])
    main({name: partial(forward, folder / f"{name}.json") for name in sys.argv[1:]})
