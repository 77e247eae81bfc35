"""What a decoder is given of the answers that it is to write: shifted by one, as its class does it with labels.

mBART begins with the last token of the answer, its language; others with ``decoder_start_token_id``. Source:
transformers 5.23, ``prepare_decoder_input_ids_from_labels`` and ``shift_tokens_right`` in ``modeling_*.py``.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vlmplan.errors import InputError
from vlmplan_trainer.labels import IGNORED_LABEL
from vlmplan_trainer.models.base_model import base_model
from vlmplan_trainer.models.processor_files import GENERATION

START, BEGIN = "decoder_start_token_id", "bos_token_id"


def decoder_input_ids(model: nn.Module, answers: Tensor) -> Tensor:
    """``answers`` (samples, tokens) shifted to the right; what has no label becomes padding. A sample without any
    begins with a token that is no padding: mBART and PLBart look for the last one."""
    owner = base_model(model)
    is_empty = (answers == IGNORED_LABEL).all(dim=1)
    if is_empty.any():
        answers = answers.clone()
        answers[is_empty, 0] = int(owner.config.get_text_config(decoder=True).pad_token_id == 0)
    if hasattr(owner, "prepare_decoder_input_ids_from_labels"):
        return owner.prepare_decoder_input_ids_from_labels(answers)
    config, code = owner.config, sys.modules[type(owner).__module__]  # Blenderbot's classes have the function alone
    config = config if hasattr(config, "decoder_start_token_id") else config.get_text_config()  # Florence-2's
    return code.shift_tokens_right(answers, config.pad_token_id, config.decoder_start_token_id)


def start_token(config: Any, files: Mapping[str, Path], tokenizer: Any) -> int:
    """What the decoder of transformers' configuration is given first: what its class trains with, or what it generates
    with, in the order of ``_get_decoder_start_token_id`` (``generation/utils.py``), as published checkpoints leave
    either out (Donut, TrOCR). ``files``: those beside the weights, by name.

    Raises InputError where nothing says.
    """
    said = json.loads(files[GENERATION].read_text(encoding="utf-8")) if GENERATION in files else {}
    decoder = config.get_text_config(decoder=True)
    own = (getattr(config, START, None), said.get(START), getattr(decoder, START, None))
    begins = (said.get(BEGIN), getattr(decoder, BEGIN, None), tokenizer.bos_token_id, tokenizer.cls_token_id)
    found = next((token for token in (*own, *begins) if isinstance(token, int)), None)
    if found is None:
        raise InputError(f"config.json says no {START}, which the decoder of {config.model_type} begins with; add it")
    return found
