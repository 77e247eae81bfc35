"""What is written for a trainer means, read back by that trainer's rules, the very setup that it was written from."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from laws import law
from planned import model_files
from vlmplan.errors import InputError
from vlmplan.other_trainers.axolotl.keys import CUT_CROSS_ENTROPY
from vlmplan.other_trainers.writing import Tool, objection, settings_for, usual
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method
from vlmplan.rules import model_facts, problems
from vlmplan.rules.base import Severity
from written_setups import ANY_RECIPE, READS, SEES, cluster_of, meaning, sample, within, without_what_has_no_effect

SAMPLES = st.fixed_dictionaries(
    {
        "seq_len": st.integers(16, 30_000),
        "num_samples": st.sampled_from((10_000, 77)),
        "epochs": st.sampled_from((1.0, 2.5)),
        "image_width": st.sampled_from((448, 512)),
        "image_height": st.sampled_from((448, 336)),
    }
)


@pytest.mark.sweep
@law(
    st.sampled_from(Tool),
    ANY_RECIPE,
    st.sampled_from((SEES, READS)),
    SAMPLES,
    st.sampled_from(((1, 1), (4, 1), (8, 2))),
    st.booleans(),
    quick=40,
    thorough=400,
)
def test_a_reader_takes_back_what_was_written(tool, recipe, model, samples, machines, trains_usual_parts):
    recipe = usual(tool, model).applied_to(recipe) if trains_usual_parts else recipe
    recipe, cluster = within(tool, recipe, model), cluster_of(*machines)
    found = problems(recipe, cluster=cluster, model=model_facts(model))
    assume(not any(problem.severity is Severity.ERROR for problem in found))
    workload = sample(model, **samples)
    reason = objection(tool, recipe, model)
    if reason is not None:
        with pytest.raises(InputError):
            settings_for(tool, recipe, workload, cluster)
        return
    with tempfile.TemporaryDirectory() as folder:
        setup = meaning(settings_for(tool, recipe, workload, cluster), Path(folder), *machines)
    unsaid = {"saving": workload.saving, "loader_workers": workload.loader_workers}
    assert replace(setup.workload, **unsaid) == workload  # which its file says nothing of
    assert setup.cluster == cluster
    assert without_what_has_no_effect(setup.recipe, model) == without_what_has_no_effect(recipe, model)


@pytest.mark.parametrize("tool", Tool)
def test_the_fused_loss_of_a_model_that_liger_has_none_for_is_axolotls_cut_cross_entropy(tool, tmp_path):
    model = model_files("apertus-8b")
    recipe = usual(tool, model).applied_to(Recipe(method=Method.LORA, zero_stage=2, loss=LossKind.LIGER))
    recipe, cluster = within(tool, recipe, model).with_changes(loss=LossKind.LIGER), cluster_of(2, 1)
    if tool is not Tool.AXOLOTL:
        assert "Liger has no fused loss for apertus" in (objection(tool, recipe, model) or "")
        return
    written = settings_for(tool, recipe, sample(model, seq_len=2048), cluster)
    assert written.settings["plugins"] == [CUT_CROSS_ENTROPY]
    assert meaning(written, tmp_path, 2, 1).recipe.loss is LossKind.LIGER


@pytest.mark.parametrize("tool", [Tool.MS_SWIFT, Tool.LLAMA_FACTORY], ids=lambda tool: tool.value)
def test_sounds_that_no_key_says_are_read_back_from_the_options_beside_the_file(tool, tmp_path):
    model = model_files("qwen2.5-omni-7b")
    recipe, cluster = usual(tool, model).applied_to(Recipe(zero_stage=2)), cluster_of(2, 1)
    workload = sample(model, seq_len=2048, audios_per_sample=2, audio_seconds=12.5)
    found = meaning(settings_for(tool, within(tool, recipe, model), workload, cluster), tmp_path, 2, 1)
    assert (found.workload.audios_per_sample, found.workload.audio_seconds) == (2, 12.5)
    assert found.workload.seq_len == 2048
