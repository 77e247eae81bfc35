"""``mrope_section``: into how many parts, and how wide, models of images and videos cut a head's rotated frequencies.

transformers 5.23 splits them exactly (``recomposition_frequencies`` of ``modeling_qwen2_vl.py`` and its like:
``freq.split(self.mrope_section, dim=-1)``), which torch refuses where the parts do not add up. Qwen3-VL and its like
take slices, which may be too long.
"""

from collections.abc import Mapping
from typing import Any

from vlmplan.architecture.config import CONFIG, ROTATIONS, Config
from vlmplan.architecture.families.partial_rotary import rotary_fraction
from vlmplan.errors import InputError
from vlmplan.files.json_reader import shown

SECTION = "mrope_section"
WHOLE_HEADS = {
    "ernie4_5_vl_moe_text": (22, 22, 20),
    **dict.fromkeys(("paddleocr_vl_text", "qwen2_5_omni_text", "qwen2_5_vl_text", "qwen2_vl_text"), (16, 24, 24)),
}
"""Types that rotate whole heads (``compute_default_rope_parameters``), and their sections where none are named."""
PARTS_OF_HEADS = dict.fromkeys(("glm4v_moe_text", "glm4v_text", "glm_ocr_text"), (8, 12, 12))
"""Types that rotate ``partial_rotary_factor`` of each head."""
PARTIAL_DEFAULTS = {"glm4v_moe_text": 0.5}
"""Where none is named (``configuration_glm4v_moe.py``)."""
TEXT = "text_config"
FLAT_TYPES = ("paddleocr_vl", "qwen2_5_vl", "qwen2_vl")
"""Whose files may hold the text model's values at the top."""


def check_rotated_sections(values: Mapping[str, Any]) -> None:
    """Raise InputError where the sections are not half of the rotated width of a head, in elements."""
    top = Config(values)
    text = top.section(TEXT, is_flat=top.model_type in FLAT_TYPES)
    usual = {**WHOLE_HEADS, **PARTS_OF_HEADS}.get(text.model_type)
    if usual is None:
        return
    head_dim = text.optional_integer("head_dim") or text.integer("hidden_size") // text.integer("num_attention_heads")
    is_partial = text.model_type in PARTS_OF_HEADS
    fraction = rotary_fraction(text, PARTIAL_DEFAULTS.get(text.model_type, 1.0)) if is_partial else 1.0
    frequencies = -(-int(head_dim * fraction) // 2)  # ``torch.arange(0, dim, 2)``
    rotation = text.mapping(next((key for key in ROTATIONS if text.get(key)), ROTATIONS[-1]))
    sections = rotation.integers(SECTION) or usual
    if sum(sections) == frequencies:
        return
    is_said = "is" if rotation.integers(SECTION) else "is missing, and then"
    raise InputError(
        f"{CONFIG}: {rotation.path}.{SECTION} {is_said} {shown(list(sections))}; whole numbers that add up to "
        f"{frequencies:,} are needed, half of what is rotated of a head of {head_dim:,}"
    )
