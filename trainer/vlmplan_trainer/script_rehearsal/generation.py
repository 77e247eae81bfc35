"""Generation: which tokens are drawn is unknown, so it runs to its length limit.

A token that is drawn is one from the middle of the vocabulary: ends, padding and other special tokens stand at the
beginning or the end of vocabularies. So the length of what is generated is known to all that follows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vlmplan_trainer.rehearse.replaced import replaced
from vlmplan_trainer.script_rehearsal.phases import ScriptPhases

NOTE = "which tokens are generated is unknown: ends of sequences are not met, and generation runs to its length limit"
_generating = [0]


def drawn_tokens(func: Any, scores: torch.Tensor, result: torch.Tensor) -> torch.Tensor | None:
    """Values of the tokens that ``func`` draws by ``scores`` [..., vocabulary]; None where it draws none.

    ``multinomial`` draws wherever it is called, ``argmax`` while transformers generates.
    """
    draws = func is torch.ops.aten.multinomial.default
    draws = draws or (func is torch.ops.aten.argmax.default and _generating[0] > 0 and scores.is_floating_point())
    return torch.full(tuple(result.shape), scores.shape[-1] // 2, dtype=result.dtype) if draws else None


@contextmanager
def generating_to_the_limit(phases: ScriptPhases, say: Callable[[str], None]) -> Iterator[None]:
    """``say`` gets a sentence where a model generates, which is a phase of its own."""
    from transformers import GenerationMixin

    mixin: Any = GenerationMixin
    generate = mixin.generate

    def told(*args: Any, **kwargs: Any) -> Any:
        say(NOTE)
        _generating[0] += 1
        try:
            with phases.generating():
                return generate(*args, **kwargs)
        finally:
            _generating[0] -= 1

    with replaced(mixin, "generate", told):
        yield
