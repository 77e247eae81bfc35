"""A step of a family's text model beside the real one of transformers, for test files that import without torch."""

from collections.abc import Mapping
from typing import Any

import pytest

from vlmplan.architecture.model import Batch

BATCH = Batch(micro_batch=2, num_tokens=384)


def assert_step(config: Mapping[str, Any], **options: Any) -> None:
    """Bytes kept after forward and both peaks are those of transformers within 0.1 %. ``options`` are those of
    ``assert_step_matches``."""
    pytest.importorskip("transformers")
    from family_checks import assert_step_matches, text_inputs

    assert_step_matches(config, BATCH, text_inputs(BATCH), tolerance=0.001, **options)
