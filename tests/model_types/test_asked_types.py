"""Models that ask a tower for its type: those whose code does, of all that are planned."""

import re
from importlib.util import find_spec
from pathlib import Path

from vlmplan.architecture.families.build import VISION_FAMILIES
from vlmplan.model_types.asked_types import ASKED_TOWERS

TOWERS = ("visual", "vision_tower", "vision_model")
ASKS_ITSELF = {"mllama": "vision_model", "video_llama_3": "vision_model", "molmo2": "vision_tower"}
"""Whose tower reads its own type in its forward."""


def asked_in_code(model_type: str) -> str | None:
    """The tower whose type the code of transformers reads."""
    spec = find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    for name in (model_type.removesuffix("_thinker"), VISION_FAMILIES[model_type]):
        file = Path(spec.origin).parent / "models" / name / f"modeling_{name}.py"
        if file.exists():
            named = "|".join(TOWERS)
            code = file.read_text(encoding="utf-8")
            found = re.search(rf"self\.({named})\.dtype|next\(self\.({named})\.parameters\(\)\)\.dtype", code)
            return None if found is None else found[1] or found[2]
    return None


def test_the_towers_that_transformers_asks_for_their_type_are_known():
    in_code = {name: asked_in_code(name) for name in VISION_FAMILIES}
    found = {name: tower for name, tower in in_code.items() if tower is not None}
    assert found.items() <= ASKED_TOWERS.items()
    assert ASKED_TOWERS.keys() - found.keys() - VISION_FAMILIES.keys() <= {"qwen2_5_omni", "qwen3_omni_moe"}
    assert ASKS_ITSELF.items() <= ASKED_TOWERS.items()
    assert {name for name in ASKED_TOWERS.keys() & VISION_FAMILIES.keys() if name not in found} <= {*ASKS_ITSELF}
