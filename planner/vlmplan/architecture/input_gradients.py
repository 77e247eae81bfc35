"""Results of input embeddings that need gradients, as ``enable_input_require_grads`` of transformers makes them.

transformers 5.23 (``modeling_utils.py``) puts a forward hook on the input embedding of every model inside a model, a
vision tower's too where its class names one (``_input_embed_layer``, ``get_input_embeddings``). Reentrant checkpoints
need it: what they run has no gradients where no input needs one. Frozen towers get a graph by it.
"""

from functools import partial
from typing import Any

from vlmplan.architecture.model import Model
from vlmplan.architecture.tensor import Tensor


def mark_input_embeddings(model: Model) -> None:
    """Let results of the language model's embedding and of towers' (``INPUT_EMBEDDING``) need gradients where the tape
    says so."""
    marked = [(model.input_embeddings, 0)]
    for _, module in model.distinct_modules():
        name = getattr(module, "INPUT_EMBEDDING", None)
        if name is not None:
            marked.append((getattr(module, name), 1))
    for module, place in marked:
        module.forward = partial(_needing_gradients, module.forward, place)


def _needing_gradients(forward: Any, place: int, *inputs: Any, **named: Any) -> Tensor:
    result = forward(*inputs, **named)
    return result.tape.leaf(result) if result.tape.input_gradients[place] else result
