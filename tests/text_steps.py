"""Parameters of a family's model, and a step of its text model, beside the real one of transformers.

Test files that use this import without torch.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from vlmplan.architecture.model import Batch

BATCH = Batch(micro_batch=2, num_tokens=384)


def assert_step(config: Mapping[str, Any], batch: Batch = BATCH, *, tolerance: float = 0.001, **options: Any) -> None:
    """Bytes kept after forward and both peaks are those of transformers. ``options`` are those of
    ``assert_step_matches``."""
    pytest.importorskip("transformers")
    from family_checks import assert_step_matches, text_inputs

    assert_step_matches(config, batch, text_inputs(batch), tolerance=tolerance, **options)


def assert_checkpointed_step(config: Mapping[str, Any], batch: Batch = BATCH, **options: Any) -> None:
    """The same with activation checkpointing, with the tolerances of ``assert_checkpointed_step_matches``."""
    pytest.importorskip("transformers")
    from family_checks import assert_checkpointed_step_matches, text_inputs

    assert_checkpointed_step_matches(config, batch, text_inputs(batch), **options)


def assert_parameters_match(config: Mapping[str, Any], *, attention: str = "sdpa") -> None:
    """Parameters and names of Linear modules are those of transformers, in its order."""
    pytest.importorskip("transformers")
    from family_checks import assert_parameters_and_linears_match

    assert_parameters_and_linears_match(config, attention=attention)
