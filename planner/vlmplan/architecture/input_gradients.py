"""Results of input embeddings that need gradients, as ``enable_input_require_grads`` of transformers makes them.

transformers 5.23 (``modeling_utils.py``) puts a forward hook on the input embedding of every model inside a model, a
vision tower's too where its class names one (``_input_embed_layer``, ``get_input_embeddings``). Reentrant checkpoints
need it: what they run has no gradients where no input needs one. Frozen towers get a graph by it.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from vlmplan.architecture.model import Model
from vlmplan.architecture.modules import Module
from vlmplan.architecture.tensor import Tensor


def mark_input_embeddings(model: Model) -> None:
    """Let results of input embeddings need gradients where the tape says so."""
    for name, module in input_embeddings(model).items():
        place = int(name != model.EMBEDDINGS)
        module.forward = partial(_needing_gradients, module.forward, place)


def input_embeddings(model: Model) -> Mapping[str, Module]:
    """Paths of the input embeddings that the hooks are put on: the language model's, and towers'
    (``INPUT_EMBEDDING``)."""
    found: dict[str, Module] = {model.EMBEDDINGS: model.input_embeddings}
    for path, module in model.distinct_modules():
        name = getattr(module, "INPUT_EMBEDDING", None)
        if name is not None:
            found[f"{path}.{name}"] = getattr(module, name)
    return found


def _needing_gradients(forward: Any, place: int, *inputs: Any, **named: Any) -> Tensor:
    result = forward(*inputs, **named)
    return result.tape.leaf(result) if result.tape.input_gradients[place] else result
