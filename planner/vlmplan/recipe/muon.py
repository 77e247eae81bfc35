"""DeepSpeed's Muon: which weights it orthogonalises, and its settings (``runtime/zero/muon``, 0.19.8)."""

from typing import Final

MOMENTUM: Final = 0.95
"""DeepSpeed's default (``MuonWithAuxAdam``)."""
LR_RATIO: Final = 50.0
"""How many times AdamW's learning rate Muon's is. Cited: DeepSpeed's blog ``muon-optimizer`` (``adam_lr = muon_lr /
50``)."""
GRADIENT_CLIPPING: Final = 0.0
"""Off. DeepSpeed takes the norm after gradients were made orthogonal (``step`` in ``stage_1_and_2.py`` and
``_apply_muon_to_accumulated_grads`` in ``stage3.py``): it is the square root of about as many as all hidden matrices
have rows, whatever the gradients were, and clipping to 1 divides every update by it."""
NOT_HIDDEN: Final = ("embed", "lm_head")
"""Parts of names of weights that are not hidden."""


def is_orthogonalised(name: str, num_dimensions: int) -> bool:
    """Whether Muon updates the weight, and not AdamW (``set_optimizer_flags`` in ``deepspeed/__init__.py``).

    >>> is_orthogonalised("model.layers.0.mlp.up_proj.weight", 2), is_orthogonalised("model.embed_tokens.weight", 2)
    (True, False)
    """
    return num_dimensions >= 2 and not any(part in name.lower() for part in NOT_HIDDEN)
