"""Releases of torch and transformers: which one is planned for, and what differs between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planned import cluster, of_few_layers, workload
from vlmplan.estimation import estimate
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method, Precision
from vlmplan.recipe.libraries import (
    PLANNED_TORCH,
    PLANNED_TRANSFORMERS,
    TorchVersion,
    TransformersVersion,
    nearest,
)
from vlmplan.versions import CHECKED_VERSIONS, installed_version

LORA = Recipe(method=Method.LORA, zero_stage=None)


@pytest.mark.parametrize("kind", [TorchVersion, TransformersVersion])
@given(patch=st.integers(0, 99), local=st.sampled_from(("", "+cpu", "+cu132", ".post1", "rc1")))
def test_every_build_of_a_release_is_planned_as_that_release(kind, patch: int, local: str):
    for release in kind:
        assert nearest(kind, f"{release.value}.{patch}{local}") is release


@pytest.mark.parametrize("kind", [TorchVersion, TransformersVersion])
def test_other_releases_are_planned_as_the_nearest(kind):
    releases = list(kind)
    assert nearest(kind, "99.0.0") is releases[-1]
    assert nearest(kind, "1.0.0") is releases[0]


def test_where_none_is_installed_plans_are_for_the_releases_of_the_constraints():
    assert nearest(TorchVersion, None).checked == CHECKED_VERSIONS["torch"]
    assert nearest(TransformersVersion, None).checked == CHECKED_VERSIONS["transformers"]


def test_what_is_installed_is_planned_for():
    assert PLANNED_TORCH is nearest(TorchVersion, installed_version("torch"))
    assert PLANNED_TRANSFORMERS is nearest(TransformersVersion, installed_version("transformers"))


def forward_peak(alias: str, gpu: str, recipe: Recipe) -> int:
    found = estimate(workload(of_few_layers(alias), seq_len=2048), recipe, cluster(gpu))
    return next(phase.peak.total for phase in found.timeline.phases if phase.name == "forward")


@pytest.mark.parametrize(
    ("alias", "gpu", "is_other"),
    [
        ("qwen2.5-0.5b", "t4", True),
        ("qwen2.5-0.5b", "a100-sxm4-80gb", False),  # flash runs
        ("opt-125m", "t4", False),  # no head is grouped
    ],
)
def test_torch_2_14_takes_less_where_grouped_heads_meet_no_flash_kernel(alias: str, gpu: str, is_other: bool):
    found = {
        version: forward_peak(alias, gpu, LORA.with_changes(precision=Precision.FP16, torch_version=version))
        for version in TorchVersion
    }
    assert found[TorchVersion.V2_14] == found[TorchVersion.V2_15] <= found[TorchVersion.V2_13]
    assert (found[TorchVersion.V2_14] < found[TorchVersion.V2_13]) is is_other


@pytest.mark.parametrize(("alias", "is_other"), [("qwen2-vl-2b", True), ("qwen2.5-0.5b", False)])
def test_outputs_of_transformers_5_24_hold_what_encoders_returned(alias: str, is_other: bool):
    seeing = LORA.with_changes(loss=LossKind.MODEL, train_vision=False)
    old, new = (
        forward_peak(alias, "a100-sxm4-80gb", seeing.with_changes(transformers_version=version))
        for version in (TransformersVersion.V5_23, TransformersVersion.V5_24)
    )
    patches, width = 32 * 32, 1280
    tokens, out_width = 16 * 16, 1536
    held = 2 * (patches * width + tokens * out_width)
    assert new - old == (held if is_other else 0)
