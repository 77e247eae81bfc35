"""Which parameters Muon updates, and in which order they lie in its buffer."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from planned import shortened
from small_models import table_of
from vlmplan.architecture.prepare import prepared_model
from vlmplan.engines.events import HighWater
from vlmplan.engines.muon3 import MuonZero3
from vlmplan.engines.muon12 import MuonZero12
from vlmplan.engines.muon_groups import muon_groups
from vlmplan.engines.parameters import ParameterTable
from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, OptimizerKind
from vlmplan.recipe.muon import is_orthogonalised

MUON = Recipe(optimizer=OptimizerKind.MUON)


def table(alias: str, **recipe) -> ParameterTable:
    return ParameterTable(prepared_model(shortened(alias, num_hidden_layers=2).config, MUON.with_changes(**recipe)))


def test_matrices_of_layers_are_muons_and_embeddings_heads_and_vectors_adamws():
    found = table("tinyllama-1.1b")
    muon, adamw = muon_groups(found, is_sorted=False)
    names = [found.trained_entries[ordinal].name for ordinal in adamw.ordinals]
    assert muon.uses_muon
    assert not adamw.uses_muon
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} <= set(names)
    assert all("proj" not in name for name in names)
    assert muon.numel + adamw.numel == found.num_trained


def test_adapters_are_all_muons():
    [group] = muon_groups(table("tinyllama-1.1b", method=Method.LORA), is_sorted=False)
    assert group.uses_muon


def test_the_largest_shapes_come_first_where_they_are_whole():
    shapes = muon_groups(table("tinyllama-1.1b"), is_sorted=True)[0].shapes
    assert shapes == sorted(shapes, reverse=True)
    assert shapes != muon_groups(table("tinyllama-1.1b"), is_sorted=False)[0].shapes


def test_names_are_told_apart_as_deepspeed_does():
    torch = pytest.importorskip("torch")
    deepspeed = pytest.importorskip("deepspeed")
    model = torch.nn.ModuleDict(
        {
            "embed_tokens": torch.nn.Embedding(8, 4),
            "layers": torch.nn.ModuleList([torch.nn.Linear(4, 4)]),
            "visual": torch.nn.ModuleDict({"patch_embed": torch.nn.Conv3d(3, 4, 2), "merger": torch.nn.Linear(4, 8)}),
            "lm_head": torch.nn.Linear(4, 8, bias=False),
        }
    )
    deepspeed.set_optimizer_flags(SimpleNamespace(optimizer_name="muon", optimizer_params={}), model)
    for name, parameter in model.named_parameters():
        assert parameter.use_muon == is_orthogonalised(name, parameter.dim()), name


def test_a_weight_that_deepspeed_cannot_update_is_refused_by_name():
    found = table_of([16])
    found.trained_entries[0] = found.trained_entries[0]._replace(name="visual.conv.weight")
    found.trained_entries[0].parameter.num_axes = 4
    with pytest.raises(InputError, match=r"visual\.conv\.weight"):
        muon_groups(found, is_sorted=False)


@pytest.mark.parametrize(
    ("alias", "convolution"),
    [("pixtral-12b", "vision_tower.patch_conv.weight"), ("glm-4.1v-9b", "visual.downsample.weight")],
)
def test_convolutions_that_are_matrices_here_are_refused_where_they_train(alias: str, convolution: str):
    with pytest.raises(InputError, match=convolution.replace(".", r"\.")):
        muon_groups(table(alias, train_vision=True, train_projector=True), is_sorted=False)
    frozen = table(alias, train_vision=False, train_projector=False)
    assert muon_groups(frozen, is_sorted=False)


@pytest.mark.parametrize(("engine", "stage"), [(MuonZero12, 2), (MuonZero3, 3)])
def test_all_ranks_together_orthogonalise_every_matrix(engine, stage):
    found, recipe = table("tinyllama-1.1b"), MUON.with_changes(zero_stage=stage)
    ranks = [engine(found, recipe, num_ranks=4, rank=rank).orthogonalised for rank in range(4)]
    matrices = [shape for group in muon_groups(found, is_sorted=False) if group.uses_muon for shape in group.shapes]
    done = [shape for shapes in ranks for shape in shapes]
    assert set(done) == set(matrices)
    assert len(done) == len(matrices) if stage == 3 else len(done) >= len(matrices)


@pytest.mark.parametrize("rank", [0, 3, 5])
def test_the_most_bytes_of_updates_are_those_of_a_walk_with_every_event(rank):
    found = table("tinyllama-1.1b")
    for bucket in (3_000_000, 500_000_000):
        sizes = replace(MUON.zero, reduce_bucket_size=bucket)
        recipe = MUON.with_changes(zero_stage=3, zero=sizes)
        water = HighWater()
        walked = MuonZero3(found, recipe, num_ranks=6, rank=rank, sink=water)
        walked._make_updates()
        kept = water.most = water.live
        walked._make_updates()
        assert MuonZero3(found, recipe, num_ranks=6, rank=rank)._update_peaks == (water.most, kept)


def test_the_most_bytes_of_updates_under_stage_2_are_those_of_a_walk_with_every_event():
    found, water, recipe = table("tinyllama-1.1b"), HighWater(), MUON.with_changes(zero_stage=2)
    walked = MuonZero12(found, recipe, num_ranks=6, rank=2, sink=water)
    walked._has_momentum = walked._is_last = True
    walked._make_updates()
    assert MuonZero12(found, recipe, num_ranks=6, rank=2)._update_bytes(accumulates=False) == water.most
