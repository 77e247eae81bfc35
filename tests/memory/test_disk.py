"""What a checkpoint holds, part by part, of a model whose parts are counted here: an embedding of 35 x 12, tied to the
head unless said otherwise, and LoRA of rank 3 on q_proj (12 x 12) and v_proj (6 x 12) of two layers."""

from dataclasses import replace

import pytest

from vlmplan.estimation import Estimator
from vlmplan.memory.disk import DiskSpace, disk_space
from vlmplan.models.packaged import packaged_files
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AdapterDtype, Method, OptimizerKind, Precision, WeightDtype
from vlmplan.run.saving import Saving, saving_of
from vlmplan.units import GIB
from vlmplan.workload import ModelFiles, Workload

SIZES = {"vocab_size": 35, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
EMBEDDING = 35 * 12
LAYER = 12 * 12 + 6 * 12 + 6 * 12 + 12 * 12 + 3 * 20 * 12 + 12 + 12
MODEL = EMBEDDING + 2 * LAYER + 12
ADAPTERS = 2 * (3 * (12 + 12) + 3 * (12 + 6))
TRAINER = saving_of("transformers")
SHARDED = replace(TRAINER, gathers_shards=False)
MASTER_AND_ADAM = 4 + 2 * 4


def space(recipe: Recipe, saving: Saving | None = None, *, ties: bool = True) -> DiskSpace:
    files = {"model_type": "llama", **SIZES, **HEADS, "tie_word_embeddings": ties, "torch_dtype": "bfloat16"}
    made = Estimator(Workload(model=ModelFiles(id="tiny", config=files), seq_len=8), recipe)
    return disk_space(made.table, recipe, saving=saving)


def lora(stage: int | None, **fields) -> Recipe:
    return Recipe(method=Method.LORA, lora_rank=3, lora_targets="q_proj,v_proj", zero_stage=stage, **fields)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_bundled_trainer_writes_16_bit_weights_beside_what_the_optimizer_has(stage: int):
    assert space(Recipe(zero_stage=stage)).checkpoint_bytes == MODEL * (2 + MASTER_AND_ADAM)


def test_under_zero_3_weights_are_written_as_master_weights_alone():
    assert space(Recipe(zero_stage=3)).checkpoint_bytes == MODEL * MASTER_AND_ADAM
    assert space(lora(3, adapter_dtype=AdapterDtype.FLOAT32)).checkpoint_bytes == ADAPTERS * MASTER_AND_ADAM


def test_a_frozen_embedding_that_is_the_head_too_is_left_out_by_one_of_its_names():
    assert space(lora(2)).checkpoint_bytes == ADAPTERS * (2 + MASTER_AND_ADAM) + 2 * EMBEDDING
    assert space(lora(2), ties=False).checkpoint_bytes == ADAPTERS * (2 + MASTER_AND_ADAM)
    assert space(lora(3)).checkpoint_bytes == ADAPTERS * MASTER_AND_ADAM
    assert space(lora(None)).checkpoint_bytes == ADAPTERS * (4 + 2 * 4)


@pytest.mark.parametrize(("stage", "beside"), [(0, 14), (1, 14), (2, 14)])
def test_hugging_faces_trainer_writes_the_model_besides_and_a_tied_head_twice(stage: int, beside: int):
    found = space(Recipe(zero_stage=stage), TRAINER)
    assert found.export_bytes == 2 * (MODEL + EMBEDDING)
    assert found.checkpoint_bytes == found.export_bytes + MODEL * beside
    alone = space(Recipe(zero_stage=stage), replace(TRAINER, only_model=True))
    assert alone.checkpoint_bytes == found.export_bytes


def test_hugging_faces_trainer_gathers_the_model_of_zero_3_where_it_is_told_to():
    gathered = space(Recipe(zero_stage=3), TRAINER)
    assert (gathered.checkpoint_bytes, gathered.export_bytes) == (MODEL * (2 + MASTER_AND_ADAM), MODEL * 2)
    for saving in (SHARDED, replace(SHARDED, only_model=True)):  # then DeepSpeed's files are the model
        found = space(Recipe(zero_stage=3), saving)
        assert (found.checkpoint_bytes, found.export_bytes) == (MODEL * MASTER_AND_ADAM, MODEL * MASTER_AND_ADAM)


def test_adapters_are_written_beside_what_their_optimizer_has():
    for saving in (TRAINER, SHARDED):
        assert space(lora(3, adapter_dtype=AdapterDtype.FLOAT32), saving).checkpoint_bytes == ADAPTERS * (4 + 12)
    assert space(lora(2), TRAINER).checkpoint_bytes == ADAPTERS * (2 + 2 + MASTER_AND_ADAM) + 2 * EMBEDDING
    assert space(lora(None), TRAINER).checkpoint_bytes == ADAPTERS * (4 + 2 * 4)


def test_frozen_weights_are_written_by_the_trainer_and_by_zero_2_a_second_time():
    projector = Recipe(zero_stage=2, train_language=True)
    files = {"model_type": "llama", **SIZES, **HEADS, "tie_word_embeddings": True}
    made = Estimator(Workload(model=ModelFiles(id="tiny", config=files), seq_len=8), projector)
    table = made.table
    table.frozen_bytes, trained = 1000, table.trained_bytes  # as if so much more were there, and frozen
    sizes = {stage: disk_space(table, Recipe(zero_stage=stage), saving=TRAINER) for stage in (0, 1, 2, 3)}
    states = {0: trained + 12 * MODEL, 1: trained + 12 * MODEL, 2: trained + 12 * MODEL, 3: 12 * MODEL}
    copies = {0: 1, 1: 1, 2: 2, 3: 1}
    for stage, found in sizes.items():
        assert found.checkpoint_bytes - found.export_bytes == states[stage] + copies[stage] * 1000


def test_plain_pytorch_saves_weights_in_their_own_type_and_two_states():
    wide = Recipe(zero_stage=None, weight_dtype=WeightDtype.FLOAT32)
    assert space(wide, TRAINER).checkpoint_bytes == MODEL * (4 + 2 * 4)
    pure = Recipe(zero_stage=None, precision=Precision.BF16_PURE)
    assert space(pure, TRAINER).checkpoint_bytes == MODEL * (2 + 2 * 2)
    assert space(replace(wide, optimizer=OptimizerKind.SGD), TRAINER).checkpoint_bytes == MODEL * (4 + 4)


def test_float32_training_has_master_weights_where_they_are_flat_copies():
    def bundled(stage: int) -> int:
        return space(Recipe(zero_stage=stage, precision=Precision.FP32)).checkpoint_bytes

    assert bundled(0) == MODEL * (4 + 2 * 4)
    assert bundled(2) == MODEL * (4 + 4 + 2 * 4)
    assert bundled(3) == MODEL * (4 + 2 * 4)


def test_a_checkpoint_with_experts_in_mxfp4_is_downloaded_as_it_was_published():
    experts, width = 32, 2880
    packed = 24 * experts * 3 * width * width
    gpt_oss = packaged_files("gpt-oss-20b")
    found = Estimator(Workload(model=gpt_oss, seq_len=8), lora(None))
    others = found.table.num_loaded(lora(None)) - packed
    assert found.disk(lora(None)).download_bytes == packed // 2 + packed // 32 + 2 * others
    # The model card, arXiv 2508.10925, table 1: 12.8 GiB.
    assert round(found.disk(lora(None)).download_bytes / GIB, 1) == 12.8
