"""What a decoder is given of the answers that it is to write: shifted by one, as its class does it with labels.

mBART begins with the last token of the answer, its language; others with ``decoder_start_token_id``. Source:
transformers 5.23, ``prepare_decoder_input_ids_from_labels`` and ``shift_tokens_right`` in ``modeling_*.py``.
"""

import sys

from torch import Tensor, nn

from vlmplan_trainer.models.base_model import base_model


def decoder_input_ids(model: nn.Module, answers: Tensor) -> Tensor:
    """``answers`` (samples, tokens) shifted to the right; what has no label becomes padding."""
    owner = base_model(model)
    if hasattr(owner, "prepare_decoder_input_ids_from_labels"):
        return owner.prepare_decoder_input_ids_from_labels(answers)
    config, code = owner.config, sys.modules[type(owner).__module__]  # Blenderbot's classes have the function alone
    return code.shift_tokens_right(answers, config.pad_token_id, config.decoder_start_token_id)
