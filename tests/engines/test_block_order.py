"""Tensors that engines make one after the other: their sizes in order, which the caching allocator's blocks follow."""

from collections.abc import Hashable, Sequence

import pytest

from planned import of_few_layers, workload
from small_models import table_of
from vlmplan.architecture.families import build_model
from vlmplan.engines import engine_of
from vlmplan.engines.events import NULL_SINK, Component, Sink, Stream
from vlmplan.engines.zero3 import Zero3, inside_out
from vlmplan.engines.zero12 import Zero12
from vlmplan.estimation import Estimator
from vlmplan.memory.allocator import CachingAllocator
from vlmplan.memory.blocks import EngineBlocks
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import FlatParameters, Method, Offload, ShardUnits
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.units import MIB

BF16, FP32, NORM = 2, 4, 8
LAYERS, WIDTH, INNER, KEYS, VOCABULARY = 2, 2048, 5632, 256, 32000
LLAMA = workload(of_few_layers("tinyllama-1.1b", LAYERS), seq_len=64)
ON_HOST = {"offload_optimizer": Offload.CPU, "offload_params": Offload.CPU}


class Written(Sink):
    """Sizes of what is made on ``stream``, and below zero of what goes, in order. Of frees in a row the largest is
    first."""

    def __init__(self, stream: Stream) -> None:
        self.sizes: list[int] = []
        self._stream, self._held = stream, dict[Hashable, int]()

    def allocate(self, owner: Hashable, component: Component, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        if num_bytes and stream is self._stream:
            self._held[owner] = num_bytes
            self.sizes.append(num_bytes)

    def free(self, owner: Hashable) -> None:
        if owner in self._held:
            self.sizes.append(-self._held.pop(owner))

    def transient(self, component: Component, sizes: Sequence[int], stream: Stream = Stream.DEFAULT) -> None:
        if stream is self._stream:
            self.sizes += [num_bytes for num_bytes in sizes if num_bytes]
            self.sizes += [-num_bytes for num_bytes in sizes if num_bytes]


def test_pieces_of_a_large_gradient_that_exceed_the_bucket_go_before_the_others():
    """Of five pieces of 20 elements three are more than 40."""
    written = Written(Stream.REDUCTION)
    recipe = Recipe(zero_stage=2, zero=ZeroSettings(reduce_bucket_size=40, overlap_comm=True))
    engine = Zero12(table_of([40, 100]), recipe, num_ranks=7, rank=0, sink=written)
    engine.begin_micro_batch(accumulates=False, is_last=True)
    engine.take_gradient(1)
    engine.end_backward()
    assert [num_bytes for num_bytes in written.sizes if num_bytes > 0] == [BF16 * 60, BF16 * 40]


@pytest.mark.parametrize("is_last", [True, False])
def test_stages_1_and_2_look_at_what_goes_to_the_host_in_the_last_micro_batch_alone(is_last: bool):
    """And keep a gradient that is larger than the bucket, of which they have a copy, until then."""
    written, kept = Written(Stream.REDUCTION), EngineBlocks(CachingAllocator(), has_streams=False)
    settings = ZeroSettings(reduce_bucket_size=MIB, overlap_comm=True)
    recipe = Recipe(zero_stage=2, offload_optimizer=Offload.CPU, zero=settings)
    numel = 11 * MIB // BF16
    live = list[int]()
    for sink in (written, kept):
        engine = Zero12(table_of([numel]), recipe, sink=sink)
        engine.begin_micro_batch(accumulates=False, is_last=is_last)
        sink.allocate(0, Component.GRADIENTS, BF16 * numel)
        engine.take_gradient(0)
        engine._reduce_waiting()
        live.append(kept._allocator.allocated_bytes)
    looked_at = [NORM * numel, -NORM * numel, FP32 * numel, -FP32 * numel]
    assert written.sizes == (looked_at if is_last else [])
    assert live == [0, 0 if is_last else 12 * MIB]  # a block of its own, in steps of 2 MiB


def test_second_shards_are_made_before_the_first_ones():
    """Of the embedding, in two nodes of two ranks."""
    written = Written(Stream.DEFAULT)
    recipe = Recipe(zero_stage=3, hpz=2)
    engine_of(Estimator(LLAMA, recipe).table, recipe, num_ranks=4, sink=written).load(is_on_cpu=False)
    whole = BF16 * VOCABULARY * WIDTH
    assert written.sizes[:4] == [whole, whole // 2, whole // 4, -whole]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_shards_of_gradients_are_looked_at_and_cast_for_the_host_in_the_last_micro_batch_alone(number: int):
    """Two gradients that share a bucket, of 40 and 20 elements on two ranks. From the second micro batch on the first
    shard is there until the other one is."""
    written = Written(Stream.REDUCTION)
    recipe = Recipe(zero_stage=3, offload_optimizer=Offload.CPU, zero=ZeroSettings(overlap_comm=True))
    engine = Zero3(table_of([20, 40]), recipe, num_ranks=2, sink=written)
    engine.begin_micro_batch(accumulates=number > 0, is_last=number == 2)
    for ordinal in (1, 0):
        engine.take_gradient(ordinal)
    engine.end_backward()
    copied, first, second = BF16 * 60, 20, 10
    looked_at = [[NORM * one, -NORM * one, FP32 * one, -FP32 * one] if number == 2 else [] for one in (first, second)]
    going = -BF16 * first
    shards = [BF16 * first, *looked_at[0], *([going] if number == 0 else []), BF16 * second]
    shards += [*([] if number == 0 else [going]), *looked_at[1], -BF16 * second]
    assert written.sizes == [copied, *shards, -copied]


def test_casts_of_shards_that_go_to_a_drive_wait_for_each_other():
    written = Written(Stream.REDUCTION)
    recipe = Recipe(zero_stage=3, offload_optimizer=Offload.NVME, zero=ZeroSettings(overlap_comm=True))
    engine = Zero3(table_of([20, 40]), recipe, num_ranks=2, sink=written)
    for ordinal in (1, 0):
        engine.take_gradient(ordinal)
    engine.end_backward()
    casts = [FP32 * 20, FP32 * 10]
    assert written.sizes.index(casts[1]) < written.sizes.index(-casts[0])


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
def test_fsdp2_brings_shards_from_the_host_one_by_one_and_casts_those_of_another_type(method: Method):
    """Trained ones lie there in float32, frozen ones as they are computed with. All go together, the last first."""
    recipe = Recipe(fsdp=True, method=method, shard_units=ShardUnits.LAYERS, **ON_HOST)
    estimator = Estimator(LLAMA, recipe)
    written = Written(Stream.GATHER)
    engine = engine_of(estimator.table, recipe, num_ranks=4, sink=written)
    trace = estimator.trace(recipe, (8, 0))
    engine.begin_forward(trace)
    before = len(written.sizes)
    run = next(run for run in trace.schedule if run.layer == 0)
    engine.enter(run, is_backward=False)
    projection = WIDTH * WIDTH // 4
    cast = [FP32 * projection, BF16 * projection, -FP32 * projection]
    brought = cast if method is Method.FULL else [BF16 * projection]
    made = written.sizes[before:]
    assert made[: len(brought)] == brought
    gathered, of_root = max(made), max(written.sizes[:before])
    inputs = [-num_bytes for num_bytes in made[made.index(gathered) + 1 :] if num_bytes != -of_root]
    assert inputs[-1] == BF16 * projection
    assert 4 * sum(inputs) == gathered


@pytest.mark.parametrize("reshards", [True, False])
def test_fsdp1_casts_a_shard_of_the_host_though_its_unit_is_whole(reshards: bool):
    """The root is, when backward begins; without resharding every layer is too."""
    recipe = Recipe(
        fsdp=True,
        flat_parameters=FlatParameters.ON_DEMAND,
        shard_units=ShardUnits.LAYERS,
        reshard_after_forward=reshards,
        **ON_HOST,
    )
    estimator = Estimator(LLAMA, recipe)
    trace = estimator.trace(recipe, (8, 0))
    written = Written(Stream.PRE_GATHER)
    engine = engine_of(estimator.table, recipe, num_ranks=4, sink=written)
    whole = Written(Stream.GATHER)
    for sink in (NULL_SINK, whole):
        engine.sink = sink
        engine.begin_forward(trace)
        for run in trace.schedule:
            engine.enter(run, is_backward=False)
            engine.leave(run, is_backward=False)
        engine.end_forward()
    engine.sink = written
    engine.begin_backward()
    root = (2 * VOCABULARY * WIDTH + WIDTH) // 4
    assert written.sizes == [BF16 * root, FP32 * root, -BF16 * root, -FP32 * root]
    layer = BF16 * (2 * WIDTH * WIDTH + 2 * KEYS * WIDTH + 3 * INNER * WIDTH + 2 * WIDTH)
    assert whole.sizes == ([layer, -layer] * LAYERS if reshards else [])


def test_weights_come_by_name_where_some_are_to_be_packed_though_a_model_has_none_of_those():
    """Falcon's Linears are classes of their own. DoRA finds the lengths of their rows where they are."""
    recipe = Recipe(method=Method.LORA_8BIT, use_dora=True)
    estimator = Estimator(workload(of_few_layers("falcon-7b", 1), seq_len=64), recipe)
    written = Written(Stream.DEFAULT)
    engine_of(estimator.table, recipe, num_ranks=1, sink=written).load(is_on_cpu=False)
    width, vocabulary = 4544, 65024
    query_key_value, up, embedding = (BF16 * width * rows for rows in (73 * 64, 4 * width, vocabulary))
    own = [size for size in written.sizes if abs(size) in (query_key_value, up, embedding)]
    assert own[:4] == [up, up, query_key_value, embedding]
    assert own[4:] == [one for size in (query_key_value, up, up) for one in [size] * 3 + [-size] * 3]


def test_zero_init_shards_a_module_behind_those_inside_of_it():
    """Gemma 4's patches are embedded by a product that has been made before the module's own table."""
    config = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 96}
    model = build_model({"model_type": "gemma4", "text_config": {**config, "vocab_size": 100}, "vision_config": config})
    names = [entry.name for entry in model.parameters() if "patch_embedder" in entry.name]
    own, inner = "position_embedding_table", "input_proj.weight"
    assert [name.partition("patch_embedder.")[2] for name in names] == [own, inner]
    modules = dict.fromkeys(name.rpartition(".")[0] for name in names)
    assert [name.partition("patch_embedder")[2] for name in inside_out(modules)] == [".input_proj", ""]
