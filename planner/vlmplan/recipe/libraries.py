"""The releases of torch and transformers that a run has: what of a step depends on them, said once for each.

A plan is for those that are installed where it is made, unless options say otherwise; where none are, for those that
``constraints.txt`` installs, so that machines without torch make the plan that the machine of the run makes.
"""

import sys
from pathlib import Path
from typing import Final, TypeVar

from vlmplan.units import Choice

Release = TypeVar("Release", "TorchVersion", "TransformersVersion")


class TorchVersion(Choice):
    """Minor releases of torch that plans are checked with."""

    V2_13 = "2.13"
    V2_14 = "2.14"
    V2_15 = "2.15"

    @property
    def checked(self) -> str:
        """The version that was checked."""
        return {TorchVersion.V2_14: "2.14.1"}.get(self, f"{self.value}.0")

    @property
    def groups_efficient_heads(self) -> bool:
        """Whether the memory-efficient kernel takes grouped heads: gradients of keys and values have as many as these
        in ``meta__scaled_dot_product_efficient_backward`` of torch 2.15 ``_meta_registrations.py``, and as many as the
        queries in 2.13's."""
        return self is not TorchVersion.V2_13


class TransformersVersion(Choice):
    """Minor releases of transformers that plans are checked with."""

    V5_23 = "5.23"
    V5_24 = "5.24"

    @property
    def checked(self) -> str:
        """The version that was checked."""
        return f"{self.value}.0"

    @property
    def unknown_types(self) -> frozenset[str]:
        """Types of described models that only a later release has (``configuration_auto.py``)."""
        newer = ("exaone", "sarvam_mla", "sarvam_moe")
        return frozenset(newer if self is TransformersVersion.V5_23 else ())

    @property
    def returns_encoded(self) -> bool:
        """Whether a model's output object has what its encoders returned, not the features of images alone:
        ``MultimodalModelOutput`` in ``modeling_outputs.py``."""
        return self is not TransformersVersion.V5_23

    @property
    def projects_images_together(self) -> bool:
        """Whether LFM2-VL projects all images at once, and SigLIP 2 resizes its positions for all with one product:
        ``modeling_lfm2_vl.py`` and ``modeling_siglip2.py``."""
        return self is not TransformersVersion.V5_23

    @property
    def adds_frames_up(self) -> bool:
        """Whether Kimi K2.5 adds frames to zeros in float32, and does not pick them and take their mean
        (``temporal_merge`` in ``modeling_kimi_k25.py``)."""
        return self is not TransformersVersion.V5_23

    @property
    def shares_gptj_positions(self) -> bool:
        """Whether the layers of GPT-J and CodeGen share one table of positions, call transformers' attention functions,
        sdpa among them, and return hidden states alone: ``modeling_gptj.py`` and ``modeling_codegen.py``."""
        return self is not TransformersVersion.V5_23

    @property
    def refuses_flash_with_masks(self) -> bool:
        """Whether flash attention is refused to Gemma 3, Gemma 4 and PaliGemma, whose masks it drops:
        ``_supports_flash_attn`` in ``modeling_gemma3.py`` and others."""
        return self is not TransformersVersion.V5_23

    @property
    def stores_unshared_keys(self) -> bool:
        """Whether layers of Gemma 4 store keys and values for others though none reads them: the last of each type
        (``kv_sharing_modes`` in ``configuration_gemma4.py``)."""
        return self is not TransformersVersion.V5_23


def nearest(kind: type[Release], version: str | None) -> Release:
    """The newest release of ``kind`` that is no newer than ``version``, else the oldest, which
    ``constraints.txt`` has. None: that one.

    >>> nearest(TorchVersion, "2.14.1+cu132").value, nearest(TorchVersion, "2.9.0").value
    ('2.14', '2.13')
    """
    releases = list(kind)
    older = [release for release in releases if version is not None and _minor(release.value) <= _minor(version)]
    return older[-1] if older else releases[0]


def _minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _installed(package: str) -> str | None:
    """The version of an installed package by the name of its metadata's folder: what every command asks for, and
    ``importlib.metadata`` takes 20 ms to import."""
    for folder in sys.path:
        for found in Path(folder).glob(f"{package}-*.dist-info"):
            return found.name.removesuffix(".dist-info").partition("-")[2]
    return None


PLANNED_TORCH: Final = nearest(TorchVersion, _installed("torch"))
"""The release of the torch that is installed."""
PLANNED_TRANSFORMERS: Final = nearest(TransformersVersion, _installed("transformers"))
"""The release of the transformers that is installed."""
