"""What rehearsals take for the kernels of gated delta nets, beside flash-linear-attention's own code."""

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from family_checks import real_model, text_inputs
from torch_probe import measured_step
from vlmplan.architecture.model import Batch
from vlmplan.errors import MissingPackageError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LinearAttention
from vlmplan_trainer.models import delta_kernels as packages
from vlmplan_trainer.rehearse.fla import delta_kernels

COUNTED = json.loads((Path(__file__).parents[2] / "architecture" / "fla_kernels.json").read_text())
FLA = Recipe(linear_attention=LinearAttention.FLA)


@pytest.mark.parametrize(
    "row", [COUNTED[0], COUNTED[10], COUNTED[12], COUNTED[14]], ids=["shared heads", "wide keys", "Kimi", "long Kimi"]
)
def test_a_step_holds_what_it_does_with_flas_own_code(row):
    with delta_kernels():
        batch = Batch(micro_batch=row["micro_batch"], num_tokens=row["num_tokens"])
        found = measured_step(lambda: real_model(row["config"]), text_inputs(batch))
    for name in ("forward_live", "forward_peak", "backward_peak"):
        assert getattr(found, name) == row[name], name


def test_a_plan_that_counts_on_the_packages_says_which_are_missing(monkeypatch):
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == "fla" else object())
    with pytest.raises(MissingPackageError, match=r"pip install flash-linear-attention$"):
        packages.require_delta_kernels(FLA)
    packages.require_delta_kernels(Recipe())
    monkeypatch.setattr(packages, "find_spec", lambda name: object())
    packages.require_delta_kernels(FLA)
