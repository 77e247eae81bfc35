"""The allocator replay: layers that are expanded instead of run, and the same bytes as the timeline."""

import pytest

from planned import model_files
from vlmplan.architecture.attention import AttentionBackend
from vlmplan.architecture.images import IMAGE_MODEL_TYPES, image_shape
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model
from vlmplan.architecture.storage_log import LoggingTape, Operations, expanded
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Trace
from vlmplan.memory.allocator import OutOfDeviceMemory
from vlmplan.memory.parameters import ParameterTable, partition_size, sub_group_elements
from vlmplan.memory.reservation import Reservation, engine_blocks, peak_reserved_bytes
from vlmplan.memory.timeline import memory_timeline, model_states
from vlmplan.recipe import Method, Recipe, ZeroSettings
from vlmplan.units import GIB


class AllLayersTape(LoggingTape):
    runs_all_layers = True


def run(alias: str, recipe: Recipe, tape: Tape) -> tuple[ParameterTable, Trace]:
    files = model_files(alias)
    model = prepared_model(files.config, recipe)
    image = None
    if files.model_type in IMAGE_MODEL_TYPES:
        image = image_shape(files.config, files.preprocessor, width=448, height=448)
    batch = Batch(
        micro_batch=recipe.micro_batch,
        num_tokens=1024 if image is None else max(1024, image.num_tokens + 32),
        images_per_sample=0 if image is None else 1,
        image=image,
    )
    return ParameterTable(model), model.run(tape, batch, AttentionBackend(), chunks_loss=True)


def replayed(
    alias: str, recipe: Recipe, tape_class: type[LoggingTape], num_ranks: int
) -> tuple[Reservation, Operations]:
    table, trace = run(alias, recipe, tape_class(autocast=recipe.autocast))
    operations = expanded(trace)
    replay = Reservation(table, trace, operations, recipe, num_ranks=num_ranks)
    replay.run()
    return replay, operations


FAMILIES = (
    "mistral-7b",
    "gemma-3-4b",  # two kinds of layers in turn
    "qwen2-vl-2b",  # tied head
    "qwen3-vl-2b",  # deepstack: features added behind some layers
    "llava-1.5-7b",
    "llama-3.2-11b-vision",  # cross-attention layers run one by one
    "mixtral-8x7b",
)


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("alias", FAMILIES)
def test_expanding_one_layer_gives_what_running_all_layers_gives(alias, checkpointing):
    recipe = Recipe(
        zero_stage=2,
        activation_checkpointing=checkpointing,
        vision_activation_checkpointing=checkpointing,
    )
    short, short_operations = replayed(alias, recipe, LoggingTape, num_ranks=4)
    whole, whole_operations = replayed(alias, recipe, AllLayersTape, num_ranks=4)
    assert [len(part) for part in short_operations[:3]] == [len(part) for part in whole_operations[:3]]
    assert short.allocator.peak_allocated_bytes == whole.allocator.peak_allocated_bytes
    assert short.allocator.peak_reserved_bytes == whole.allocator.peak_reserved_bytes


@pytest.mark.parametrize("grad_accum", [1, 4])
@pytest.mark.parametrize(
    ("stage", "method"),
    [
        (None, Method.FULL),
        (None, Method.QLORA),
        (0, Method.FULL),
        (1, Method.FULL),
        (2, Method.FULL),
        (2, Method.LORA),
        (3, Method.FULL),
        (3, Method.LORA),
    ],
)
def test_the_replay_allocates_what_the_timeline_counts(stage, method, grad_accum):
    recipe = Recipe(zero_stage=stage, method=method, grad_accum=grad_accum)
    num_ranks = 1 if stage is None else 4
    replay, _ = replayed("qwen2-vl-2b", recipe, LoggingTape, num_ranks)
    table, trace = run("qwen2-vl-2b", recipe, Tape(autocast=recipe.autocast))
    timeline = memory_timeline(table, trace, recipe, num_ranks=num_ranks)
    assert replay.allocator.peak_allocated_bytes == pytest.approx(timeline.peak.total, rel=0.01)
    assert replay.allocator.peak_reserved_bytes >= replay.allocator.peak_allocated_bytes


def test_without_room_for_fragments_the_allocator_gives_segments_back_and_then_gives_up():
    recipe = Recipe(zero_stage=None, method=Method.LORA)
    table, trace = run("mistral-7b", recipe, LoggingTape(autocast=recipe.autocast))
    operations = expanded(trace)

    def reserved(capacity_bytes: int | None) -> int:
        return peak_reserved_bytes(table, trace, operations, recipe, num_ranks=1, capacity_bytes=capacity_bytes)

    free = reserved(None)
    assert reserved(free) == free
    with pytest.raises(OutOfDeviceMemory):
        reserved(table.total_bytes + GIB // 4)


def test_small_storages_may_be_left_out():
    recipe = Recipe(zero_stage=None, method=Method.LORA)
    table, trace = run("mistral-7b", recipe, LoggingTape(autocast=recipe.autocast))
    whole, large = expanded(trace), expanded(trace, least_bytes=2**20)
    assert whole.small_peak_bytes == 0
    assert len(large.forward) < len(whole.forward)
    exact, quick = (peak_reserved_bytes(table, trace, operations, recipe, num_ranks=1) for operations in (whole, large))
    assert quick == pytest.approx(exact, rel=0.002)


def test_stage_3_keeps_and_updates_its_states_in_sub_groups():
    recipe = Recipe(zero_stage=3, zero=ZeroSettings(sub_group_size=200_000_000))
    table, _ = run("qwen2-vl-2b", recipe, Tape(autocast=recipe.autocast))
    blocks = engine_blocks(table, recipe, model_states(table, recipe, 4, 0), 4)
    groups = sub_group_elements(table.numels, 4, 200_000_000)
    assert len(groups) == 3
    assert list(blocks.at_start[:3]) == [4 * group for group in groups]
    assert list(blocks.states) == [4 * group for group in groups for _ in ("first moment", "second moment")]
    assert list(blocks.step_transients) == [2 * max(groups), 4 * max(groups)]


def test_stage_2_flattens_the_gradients_of_its_partition_and_then_casts_them():
    recipe = Recipe(zero_stage=2)
    table, _ = run("qwen2-vl-2b", recipe, Tape(autocast=recipe.autocast))
    blocks = engine_blocks(table, recipe, model_states(table, recipe, 4, 0), 4)
    partition = partition_size(table.num_trained, 4)
    assert list(blocks.states) == [4 * partition, 4 * partition]
    assert list(blocks.step_transients) == [2 * partition, 4 * partition]
