"""The allocator replay: layers that are expanded instead of run, and the same bytes as the timeline."""

from random import Random

import pytest

from planned import memory_timeline, model_files, shortened
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.evaluation import generation_pass
from vlmplan.architecture.images import IMAGE_MODEL_TYPES, image_shape
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model
from vlmplan.architecture.storage_log import EngineEvent, LoggingTape, Operations, expanded
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Allocation, Deallocation, KeptCast, Trace
from vlmplan.engines import engine_of
from vlmplan.engines.autocast import cached_casts
from vlmplan.engines.events import Sink, Stream
from vlmplan.engines.parameters import ParameterTable, sub_group_elements
from vlmplan.engines.partitions import partition_elements, partition_of, slices
from vlmplan.memory.allocator import Block, CachingAllocator, OutOfDeviceMemory
from vlmplan.memory.blocks import EngineBlocks
from vlmplan.memory.gathered_blocks import GatheredBlocks
from vlmplan.memory.lasting_blocks import Lasting
from vlmplan.memory.replayed_steps import MicroBatch, alike
from vlmplan.memory.reservation import Reservation
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method, Precision, WeightDtype
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.units import GIB, MIB


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
    return ParameterTable(model), model.run(tape, batch, AttentionBackend(), loss=recipe.loss)


def replayed(
    alias: str, recipe: Recipe, tape_class: type[LoggingTape], num_ranks: int
) -> tuple[Reservation, Operations]:
    table, trace = run(alias, recipe, tape_class(autocast=recipe.autocast, caches_casts=recipe.caches_casts))
    operations = expanded(trace)
    replay = Reservation(table, recipe, alike((trace, operations), recipe), num_ranks=num_ranks)
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


def identified(operations: Operations) -> list[tuple[object, int]]:
    """The operations in order, with each storage as the number of its birth; frees between two others are sorted."""
    born, found, frees = dict[int, int](), list[tuple[object, int]](), list[int]()
    for operation in [*operations.forward, *operations.backward, *operations.after]:
        if not isinstance(operation, EngineEvent) and not operation[1]:
            frees.append(born[operation[0]])
            continue
        found += [(number, 0) for number in sorted(frees)]
        frees.clear()
        if isinstance(operation, EngineEvent):
            found.append((type(operation.event), born.get(operation.handle, 0)))
        else:
            born[operation[0]] = len(born)
            found.append((operation[1], 0))
    return found


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("checkpointing", "loss"), [(True, LossKind.CHUNKED), (False, LossKind.CHUNKED), (True, LossKind.LIGER)]
)
@pytest.mark.parametrize("alias", FAMILIES)
def test_expanding_one_layer_gives_what_running_all_layers_gives(alias, checkpointing, loss):
    """And every storage goes when it goes there: Liger's loss leaves the gradient of what it gets to backward, which
    is as large as what each layer leaves."""
    recipe = Recipe(
        zero_stage=2,
        activation_checkpointing=checkpointing,
        vision_activation_checkpointing=checkpointing,
        loss=loss,
    )
    short, short_operations = replayed(alias, recipe, LoggingTape, num_ranks=4)
    whole, whole_operations = replayed(alias, recipe, AllLayersTape, num_ranks=4)
    assert identified(short_operations) == identified(whole_operations)
    assert short.allocator.peak_allocated_bytes == whole.allocator.peak_allocated_bytes
    assert short.allocator.peak_reserved_bytes == whole.allocator.peak_reserved_bytes


@pytest.mark.one_in(2)
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
    table, trace = run("qwen2-vl-2b", recipe, Tape(autocast=recipe.autocast, caches_casts=recipe.caches_casts))
    timeline = memory_timeline(table, trace, recipe, num_ranks=num_ranks)
    assert replay.allocator.peak_allocated_bytes == pytest.approx(timeline.peak.total, rel=0.01)
    assert replay.allocator.peak_reserved_bytes >= replay.allocator.peak_allocated_bytes


def test_autocast_makes_its_copies_where_the_weights_are_used_and_keeps_them_until_forward_ends():
    recipe = Recipe(zero_stage=None, uses_autocast=True, caches_casts=True, weight_dtype=WeightDtype.FLOAT32)
    replay, operations = replayed("tinyllama-1.1b", recipe, LoggingTape, 1)
    places = [
        place
        for place, one in enumerate(operations.forward)
        if isinstance(one, EngineEvent) and isinstance(one.event, KeptCast)
    ]
    table, _ = run("tinyllama-1.1b", recipe, Tape(autocast=recipe.autocast))
    casts = [operations.forward[place].event.num_bytes for place in places]
    assert casts == cached_casts(table, recipe)
    assert len(casts) == 22 * 7  # the Linears of every layer
    assert 0 < places[0] < places[-1] - len(operations.forward) // 2  # the first layer's, and the last one's
    assert not replay._casts


def test_cosines_and_sines_are_made_of_angles_in_float32_and_then_cast():
    """``LlamaRotaryEmbedding``: angles of half a head, of a whole one, then cos and sin, each multiplied once."""
    recipe = Recipe(zero_stage=2)
    _, trace = run("tinyllama-1.1b", recipe, LoggingTape(autocast=recipe.autocast))
    events = trace.sections["positions"].forward
    made = [event.num_bytes for event in events if isinstance(event, Allocation)]
    table = 1024 * 64  # tokens by the width of a head
    tables = [4 * table // 2, *[4 * table] * 5, *[2 * table] * 2]
    place = next(place for place in range(len(made)) if made[place : place + len(tables)] == tables)
    kept = {event.handle for event in events if isinstance(event, Allocation)}
    kept -= {event.handle for event in events if isinstance(event, Deallocation)}
    allocated = [event.handle for event in events if isinstance(event, Allocation)]
    assert kept & set(allocated[place : place + len(tables)]) == set(allocated[place + 6 : place + 8])


def test_without_room_for_fragments_the_allocator_gives_segments_back_and_then_gives_up():
    recipe = Recipe(zero_stage=None, method=Method.LORA)
    table, trace = run("mistral-7b", recipe, LoggingTape(autocast=recipe.autocast))
    operations = expanded(trace)

    def reserved(capacity_bytes: int | None) -> int:
        allocator = CachingAllocator(capacity_bytes=capacity_bytes)
        replay = Reservation(table, recipe, alike((trace, operations), recipe), num_ranks=1, allocator=allocator)
        return replay.peak_reserved().total_bytes

    free = reserved(None)
    assert reserved(free) == free
    with pytest.raises(OutOfDeviceMemory):
        reserved(table.total_bytes + GIB // 4)


class EveryStep(Reservation):
    """Runs every step, whatever the same one did before, and follows the weights of every trace for itself."""

    def _state(self):
        return object()

    def _gathering(self, number):
        self._gathered_blocks = GatheredBlocks()
        return super()._gathering(number)


class CountedSteps(Reservation):
    num_steps = 0

    def _step(self, *arguments, **keywords):
        self.num_steps += 1
        super()._step(*arguments, **keywords)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize(
    ("stage", "method", "grad_accum"),
    [
        (None, Method.LORA, 1),
        (0, Method.FULL, 1),
        (1, Method.FULL, 2),
        (2, Method.LORA, 1),
        (3, Method.FULL, 1),
        (3, Method.LORA, 2),
    ],
)
def test_a_step_that_has_changed_nothing_is_not_run_again_from_the_same_state(stage, method, grad_accum, is_full):
    """The same blocks are free and held at the end as where every step is run, on a GPU that is full too, which gives
    segments back for one length and has to reserve them anew for the next."""
    recipe = Recipe(
        zero_stage=stage, method=method, grad_accum=grad_accum, activation_checkpointing=False, micro_batch=4
    )
    model = prepared_model(shortened("tinyllama-1.1b", num_hidden_layers=2).config, recipe)
    tape = {"autocast": recipe.autocast, "follows_weights": stage == 3}
    traces = [
        model.run(LoggingTape(**tape), Batch(micro_batch=4, num_tokens=length), AttentionBackend(), loss=LossKind.FULL)
        for length in range(104, 1025, 92)
    ]
    at_lengths = [(trace, expanded(trace)) for trace in traces]
    micro_batches = Random(0).choices(at_lengths, k=40)

    def run_by(kind: type[Reservation], micro_batches: list[MicroBatch], capacity_bytes: int | None) -> Reservation:
        table, num_ranks = ParameterTable(model), 1 if stage is None else 2
        allocator = CachingAllocator(capacity_bytes=capacity_bytes)
        replay = kind(table, recipe, micro_batches, num_ranks=num_ranks, allocator=allocator)
        replay.run()
        return replay

    capacity_bytes = None
    if is_full:
        alone = run_by(EveryStep, [at_lengths[-1]] * 4, None).allocator.peak_reserved_bytes
        capacity_bytes = (alone + run_by(EveryStep, micro_batches, None).allocator.peak_reserved_bytes) // 2
    whole = run_by(EveryStep, micro_batches, capacity_bytes)
    short = run_by(CountedSteps, micro_batches, capacity_bytes)
    assert isinstance(short, CountedSteps)
    assert Reservation._state(short) == Reservation._state(whole)
    assert short.allocator.peak_reserved_bytes == whole.allocator.peak_reserved_bytes
    assert short.allocator.peak_allocated_bytes == whole.allocator.peak_allocated_bytes
    if not is_full:
        assert short.num_steps < len(micro_batches) // grad_accum
        gathered = short._gathered_blocks._by_uses
        num_kinds = min(grad_accum + 1, 3)  # the first micro batch, the second of its step, and all others
        assert len(gathered) == (num_kinds if stage == 3 else 0)


EMPTIED = (0.0, -1)


class NotedAllocator(CachingAllocator):
    """Remembers what it is asked for, in MiB and by stream, and when its cache is emptied."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[float, int]] = []

    def allocate(self, num_bytes: int, stream: int = 0) -> Block:
        self.asked.append((num_bytes / MIB, int(stream)))
        return super().allocate(num_bytes, stream)

    def empty_cache(self) -> None:
        self.asked.append(EMPTIED)
        super().empty_cache()


def noted(recipe: Recipe, *, has_streams: bool = True) -> tuple[ParameterTable, NotedAllocator, EngineBlocks]:
    table, _ = run("qwen2-vl-2b", recipe, Tape(autocast=recipe.autocast))
    allocator = NotedAllocator()
    return table, allocator, EngineBlocks(allocator, has_streams=has_streams)


def built_engine(table: ParameterTable, recipe: Recipe, num_ranks: int, sink: Sink) -> None:
    engine = engine_of(table, recipe, num_ranks=num_ranks, rank=0, sink=sink)
    engine.load(is_on_cpu=False)
    engine.build()


def built(recipe: Recipe, num_ranks: int) -> tuple[ParameterTable, list[tuple[float, int]]]:
    table, allocator, blocks = noted(recipe)
    built_engine(table, recipe, num_ranks, blocks)
    return table, allocator.asked


def stepped(recipe: Recipe, num_ranks: int, *, is_first: bool) -> tuple[ParameterTable, list[float]]:
    """Sizes of at least 1 MiB in one step, without the norms of single weights."""
    table, allocator, blocks = noted(recipe)
    engine_of(table, recipe, num_ranks=num_ranks, rank=0, sink=blocks).step(is_first=is_first)
    norms = {numel * 8 / MIB for numel in norm_elements(table, recipe, num_ranks)}
    return table, [size for size, _ in allocator.asked if size >= 1 and size not in norms]


def norm_elements(table: ParameterTable, recipe: Recipe, num_ranks: int) -> list[int]:
    if recipe.zero_stage == 3:
        return [-(-numel // num_ranks) for numel in table.numels]
    return slices(table, partition_of(table.num_trained, num_ranks, 0))


def test_stages_1_and_2_empty_the_cache_before_they_flatten_and_not_after():
    """So the blocks of the weights as they came stay reserved: 2p, then the slice, its cast and once its gradient."""
    table, asked = built(Recipe(zero_stage=2), 4)
    place = asked.index(EMPTIED)
    partition = partition_elements(table.num_trained, 4)
    assert len(asked[:place]) == len(table.entries)
    assert asked[place + 1 :] == [
        (4 * 2 * partition / MIB, 0),
        (2 * partition / MIB, 0),
        (4 * partition / MIB, 0),
        (4 * partition / MIB, 0),
    ]


def test_the_flat_weights_lie_beside_the_cached_blocks_of_those_that_came():
    table, allocator, blocks = noted(Recipe(zero_stage=2))
    built_engine(table, Recipe(zero_stage=2), 4, blocks)
    assert allocator.reserved_bytes > 2 * table.total_bytes > 1.2 * allocator.allocated_bytes


def test_stage_3_empties_the_cache_once_its_shards_have_left_and_makes_masters_in_sub_groups():
    """Shards side by side, a cast and its clone of each sub-group, a gradient of the largest, bucket, gradients."""
    recipe = Recipe(zero_stage=3, zero=ZeroSettings(sub_group_size=200_000_000))
    table, asked = built(recipe, 4)
    place = asked.index(EMPTIED)
    groups = sub_group_elements(table.numels, 4, 200_000_000)
    assert len(groups) == 3
    shards = sum(groups)
    expected = [2 * shards, *(4 * group for group in groups for _ in ("cast", "clone")), 4 * max(groups)]
    expected += [2 * recipe.zero.reduce_bucket_size, 2 * shards]
    assert [size for size, _ in asked[place + 1 :][: len(expected)]] == [num_bytes / MIB for num_bytes in expected]
    gathered = [size for size, _ in asked[place + 1 + len(expected) :]]
    assert gathered == [-(-numel // 4) * 4 * 2 / MIB for numel in table.numels]


def test_under_stage_3_every_module_is_whole_before_it_is_cut_up_and_again_to_get_its_values():
    table, asked = built(Recipe(zero_stage=3), 4)
    before = [size for size, _ in asked[: asked.index(EMPTIED)]]
    largest = table.largest_bytes / MIB
    assert before.count(largest) == 3  # the embedding twice, and its tied head where it is built
    assert before.count(largest / 4) == 2


def test_frozen_shards_of_stage_3_stay_where_loading_put_them():
    recipe = Recipe(zero_stage=3, method=Method.LORA)
    table, allocator, blocks = noted(recipe)
    built_engine(table, recipe, 4, blocks)
    place = allocator.asked.index(EMPTIED)
    adapters = sum(-(-numel // 4) for numel in table.numels)
    assert (table.largest_bytes / 4 / MIB, 0) in allocator.asked[:place]
    assert allocator.asked[place + 1] == (2 * adapters / MIB, 0)


def test_stage_3_updates_its_states_in_sub_groups():
    recipe = Recipe(zero_stage=3, zero=ZeroSettings(sub_group_size=200_000_000))
    table, first = stepped(recipe, 4, is_first=True)
    groups = sub_group_elements(table.numels, 4, 200_000_000)
    updates = [(2 * group, 4 * group, 4 * group, 4 * group) for group in groups]  # flat, cast, two states
    assert first == [num_bytes / MIB for sizes in updates for num_bytes in sizes]
    _, later = stepped(recipe, 4, is_first=False)
    assert later == [num_bytes / MIB for sizes in updates for num_bytes in sizes[:2]]


def test_stage_2_flattens_the_gradients_of_its_partition_and_then_casts_them():
    table, sizes = stepped(Recipe(zero_stage=2), 4, is_first=False)
    partition = partition_elements(table.num_trained, 4)
    assert sizes == [2 * partition / MIB, 4 * partition / MIB]


def test_plain_adamw_takes_the_roots_of_all_second_moments_at_once():
    recipe = Recipe(zero_stage=None, precision=Precision.BF16_PURE, fuses_optimizer=False)
    table, allocator, blocks = noted(recipe)
    engine_of(table, recipe, num_ranks=1, sink=blocks).step(is_first=False)
    norms = 4 * len(table.numels) * -(-max(table.numels) // 65_536)
    assert [size for size, _ in allocator.asked] == [norms / MIB, *[numel * 2 / MIB for numel in table.numels]]
    assert allocator.peak_allocated_bytes >= 2 * table.num_trained


def reserving(recipe: Recipe, num_ranks: int = 4) -> Reservation:
    replay, _ = replayed("qwen2-vl-2b", recipe, LoggingTape, num_ranks)
    return replay


@pytest.mark.parametrize("stage", [2, 3])
def test_side_streams_reserve_for_themselves(stage):
    """The same blocks take more where what one stream has freed is of no use to another."""
    apart = reserving(Recipe(zero_stage=stage, zero=ZeroSettings(overlap_comm=True)))
    together = reserving(Recipe(zero_stage=stage, zero=ZeroSettings(overlap_comm=False)))
    assert apart.allocator.peak_reserved_bytes > together.allocator.peak_reserved_bytes
    assert len(apart.allocator.streams) == (2 if stage == 2 else 3)
    assert apart.allocator.streams[0] == Stream.DEFAULT
    assert together.allocator.streams == [Stream.DEFAULT]


def test_engines_without_side_streams_use_none():
    for stage in (None, 0):
        recipe = Recipe(zero_stage=stage, zero=ZeroSettings(overlap_comm=True))
        assert reserving(recipe, 1 if stage is None else 4).allocator.streams == [Stream.DEFAULT]


def test_a_replay_frees_all_that_it_does_not_keep():
    """After the last step there are weights, states, workspaces and what stage 3 leaves for the next micro batch."""
    recipe = Recipe(zero_stage=2)
    replay = reserving(recipe)
    table, trace = run("qwen2-vl-2b", recipe, Tape(autocast=recipe.autocast))
    resident = memory_timeline(table, trace, recipe, num_ranks=4).phases[-1].resident
    assert replay.allocator.allocated_bytes == pytest.approx(resident.total, rel=1e-4)


WORKSPACE_BYTES = 32 * MIB


@pytest.mark.parametrize("recipe", [Recipe(zero_stage=2), Recipe(zero_stage=None, fsdp=True)], ids=["stage 2", "fsdp"])
def test_workspaces_of_libraries_lie_behind_the_first_batch_alone(recipe: Recipe):
    table, trace = run("smollm2-135m", recipe, LoggingTape(autocast=recipe.autocast, caches_casts=recipe.caches_casts))
    operations = expanded(trace)
    there: list[tuple[int, int]] = []

    class Watched(Reservation):
        def _begin_first_forward(self) -> None:
            before = self.allocator.allocated_bytes
            super()._begin_first_forward()
            there.append((len(self._storages), self.allocator.allocated_bytes - before))

    lasting = Lasting(workspaces=[WORKSPACE_BYTES])
    Watched(table, recipe, alike((trace, operations), recipe), num_ranks=2, lasting=lasting).run()
    num_in_batch = sum(1 for _, num_bytes in operations.batch if num_bytes)
    assert there[0] == (num_in_batch, WORKSPACE_BYTES)
    assert {added for _, added in there[1:]} == {0}


def test_hidden_states_that_an_encoder_returns_are_kept_where_text_is_generated():
    """Molmo 2 keeps two of its tower's, as large as those that each layer passes on: what frees the one frees no
    other."""
    files = model_files("molmo2-4b")
    image = image_shape(files.config, files.preprocessor, width=448, height=448)
    batch = Batch(micro_batch=1, num_tokens=image.num_tokens + 32, images_per_sample=1, image=image)
    model = prepared_model(files.config, Recipe(method=Method.LORA))
    tape = LoggingTape(is_evaluating=True, follows_weights=False)
    trace = generation_pass(model, tape, batch, AttentionBackend()).trace
    operations = expanded(trace)
    alive: set[int] = set()
    for one in operations.forward:
        if isinstance(one, EngineEvent):
            assert one.handle in alive
        elif one[1]:
            alive.add(one[0])
        else:
            alive.remove(one[0])
