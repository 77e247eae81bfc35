"""One micro batch on one GPU: FLOPs against closed formulas, and a roofline that no card beats.

Formulas of a Llama with L layers of width h, inner width i, k key-value heads of width d and V words over T tokens:
2 operations per weight and token forward, twice that backward; attention 4·T²·h a layer forward, 2.5 times that
backward, because the fused kernel computes the scores once more (Dao, arXiv 2307.08691, section 4.1).
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planned import model_files
from vlmplan.architecture.trace import Run, Section, Trace, Work
from vlmplan.estimation import Estimator
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method
from vlmplan.timing import Rates, phases_between, saved_between, step_flops
from vlmplan.timing.rates import HOOK_SECONDS, CheckpointSeconds, HookSeconds
from vlmplan.timing.roofline import BusySeconds, MicroBatchSeconds, busy_seconds
from vlmplan.workload import Workload

LLAMA = model_files("tinyllama-1.1b").config
L, H, I_WIDTH, V = 22, 2048, 5632, 32000
KV_WIDTH = 4 * 64
T = 3 * 128
LINEARS_OF_A_LAYER = 2 * H * H + 2 * H * KV_WIDTH + 3 * H * I_WIDTH


def works(
    loss: LossKind = LossKind.FULL, *, checkpoints: bool = False, micro_batch: int = 1, zero_stage: int | None = None
):
    recipe = Recipe(activation_checkpointing=checkpoints, loss=loss, micro_batch=micro_batch, zero_stage=zero_stage)
    workload = Workload(model=model_files("tinyllama-1.1b"), seq_len=T)
    return Estimator(workload, recipe).trace(recipe, (8, 0))


def products(work: Work) -> int:
    return work.flops - work.attention_flops


# Floating point operations


def test_model_is_the_one_of_the_formulas():
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
    assert tuple(LLAMA[name] for name in names) == (L, H, I_WIDTH, V)


def test_forward_is_two_operations_per_weight_and_token():
    forward, _, _ = works().works()
    assert products(forward) == 2 * T * (L * LINEARS_OF_A_LAYER + V * H)
    assert forward.attention_flops == L * 4 * T * T * H


def test_backward_is_twice_forward_and_two_and_a_half_times_its_attention():
    forward, _, backward = works().works()
    assert products(backward) == 2 * products(forward)
    assert 2 * backward.attention_flops == 5 * forward.attention_flops


def test_whole_step_is_six_operations_per_weight_and_token_and_attention():
    num_weights = L * LINEARS_OF_A_LAYER + V * H
    assert step_flops(works()) == 6 * num_weights * T + L * (4 + 10) * T * T * H


def test_recomputation_is_one_more_forward_of_the_layers_but_for_the_last_product_of_each():
    # Nothing of the last product is saved, so torch's checkpointing stops before it.
    _, recompute, _ = works(checkpoints=True).works()
    assert products(recompute) == 2 * T * L * (LINEARS_OF_A_LAYER - H * I_WIDTH)
    assert recompute.attention_flops == L * 4 * T * T * H
    assert works(checkpoints=False).works()[1].flops == 0


def test_recomputation_leaves_forward_and_backward_alone():
    kept, checkpointed = works().works(), works(checkpoints=True).works()
    assert (kept[0].flops, kept[2].flops) == (checkpointed[0].flops, checkpointed[2].flops)


def test_chunked_loss_computes_what_the_full_one_does_earlier():
    full, chunked = works(LossKind.FULL), works(LossKind.CHUNKED)
    assert step_flops(full) == step_flops(chunked)
    assert products(chunked.works()[0]) - products(full.works()[0]) == 2 * 2 * T * V * H


@pytest.mark.parametrize("micro_batch", [2, 3, 7])
def test_operations_are_proportional_to_the_micro_batch(micro_batch: int):
    assert step_flops(works(micro_batch=micro_batch)) == micro_batch * step_flops(works())


def test_lora_saves_the_gradients_of_weights_and_adds_its_own_products():
    full, lora = (
        Estimator(Workload(model=model_files("tinyllama-1.1b"), seq_len=T), recipe).trace(recipe, (8, 0)).works()
        for recipe in (Recipe(loss=LossKind.FULL), Recipe(method=Method.LORA, loss=LossKind.FULL, lora_rank=8))
    )
    assert products(lora[0]) > products(full[0])
    assert products(lora[2]) < 0.6 * products(full[2])


CHUNK = 2**11  # tokens whose logits, of 32,000 words, are within 2^26


@pytest.mark.parametrize("num_chunks", [2, 3, 5])
def test_chunked_loss_multiplies_chunk_by_chunk(num_chunks: int):
    micro_batch = (num_chunks - 1) * CHUNK // T + 1
    forward, _, backward = works(LossKind.CHUNKED, micro_batch=micro_batch).works()
    rest = micro_batch * T - (num_chunks - 1) * CHUNK
    assert 0 < rest < CHUNK
    found = {flops: count for (flops, _), count in forward.matmuls.items()}
    assert found[2 * CHUNK * V * H] == 3 * (num_chunks - 1)  # logits, and gradients of weight and input
    assert found[2 * rest * V * H] == 3
    assert all(flops != 2 * micro_batch * T * V * H for flops, _ in (*forward.matmuls, *backward.matmuls))


def test_chunked_loss_moves_what_its_kernels_read_and_write():
    # A logit is 2 bytes, then 4. Largest, difference, exponential and sum of logsumexp; sub_, exp_, mul_, mul_; casts.
    full, chunked = (
        works(loss, micro_batch=64).works()[0].elementwise_bytes for loss in (LossKind.FULL, LossKind.CHUNKED)
    )
    per_logit = (2 + 4) + 4 + (4 + 4) + (4 + 4) + 4 + 4 * (4 + 4) + (4 + 2)
    whole_path = (2 + 4) + (4 + 4)  # the cast, and log_softmax
    # Of each chunk's part of the weight's gradient 2 bytes are read, of the gradient 4, which are written again.
    num_chunks = 64 * T // CHUNK
    assert num_chunks * CHUNK == 64 * T
    assert chunked - full == 64 * T * V * (per_logit - whole_path) + num_chunks * V * H * (2 + 4 + 4)


def _without_autocast(model: str) -> Work:
    recipe = Recipe(
        lora_rank=8,
        lora_targets="q_proj,v_proj",
        method=Method.QLORA,
        loss=LossKind.FULL,
        upcasts_frozen=True,
        uses_autocast=False,
    )
    workload = Workload(model=model_files(model), seq_len=T)
    return Estimator(workload, recipe).trace(recipe, (8, 0)).works()[0]


def test_without_autocast_all_between_the_products_of_4_bit_weights_is_float32():
    forward = _without_autocast("tinyllama-1.1b")
    of_adapters = L * 8 * ((H + H) + (H + KV_WIDTH))
    of_attention = L * 2 * T * H  # no fused kernel takes grouped heads in float32
    in_16_bit = sum(flops * count for (flops, _), count in forward.matmuls.items())
    assert in_16_bit == 2 * T * L * LINEARS_OF_A_LAYER
    in_float32 = sum(flops * count for (flops, _), count in forward.float32_matmuls.items())
    assert in_float32 == 2 * T * (V * H + of_adapters + of_attention)
    assert not works().works()[0].float32_matmuls


def test_without_autocast_fused_attention_of_a_4_bit_model_is_float32():
    forward = _without_autocast("smollm2-1.7b")
    assert forward.float32_attention_flops == forward.attention_flops > 0
    assert forward.float32_causal_attention_flops == forward.causal_attention_flops > 0
    assert works().works()[0].float32_attention_flops == 0


# The roofline


def _with_kernels(work: Work, num_others: int) -> Work:
    num_products = sum(work.matmuls.values()) + sum(work.float32_matmuls.values())
    return replace(work, num_kernels=num_products + num_others)


PRODUCTS = st.dictionaries(st.tuples(st.integers(0, 10**15), st.integers(0, 10**12)), st.integers(1, 100), max_size=4)
WORK = st.builds(
    _with_kernels,
    st.builds(
        Work,
        matmuls=PRODUCTS,
        float32_matmuls=PRODUCTS,
        attention_flops=st.integers(0, 10**15),
        elementwise_bytes=st.integers(0, 10**13),
    ),
    st.integers(0, 10**5),
)
NO_HOOKS = HookSeconds(**dict.fromkeys(HOOK_SECONDS, 0.0))
RATES = st.builds(
    Rates,
    matmul_flops_per_second=st.floats(1e12, 1e15),
    attention_flops_per_second=st.floats(1e12, 1e15),
    float32_matmul_flops_per_second=st.floats(1e11, 1e14),
    float32_attention_flops_per_second=st.floats(1e11, 1e14),
    bytes_per_second=st.floats(1e11, 1e13),
    ramp_seconds=st.floats(0, 1e-4),
    kernel_ramp_seconds=st.floats(0, 1e-4),
    kernel_seconds=st.just(0.0),
    checkpoints=st.just(CheckpointSeconds(0.0, 0.0)),
    hooks=st.just(NO_HOOKS),
)
ROUND = Rates(
    matmul_flops_per_second=1e14,
    attention_flops_per_second=1e13,
    float32_matmul_flops_per_second=2e13,
    float32_attention_flops_per_second=5e12,
    bytes_per_second=1e12,
    ramp_seconds=0.0,
    kernel_ramp_seconds=0.0,
    kernel_seconds=0.0,
    checkpoints=CheckpointSeconds(0.0, 0.0),
    hooks=NO_HOOKS,
)


def phase(work: Work, count: int = 1) -> Work:
    found = Work()
    found.add(work, count)
    return found


@given(work=WORK, speed=RATES)
def test_no_work_is_done_above_its_rate_or_moved_above_the_bandwidth(work: Work, speed: Rates):
    busy = busy_seconds(phase(work), speed)
    products = [*work.matmuls.items(), *work.float32_matmuls.items()]
    least = sum(count * flops for (flops, _), count in work.matmuls.items()) / speed.matmul_flops_per_second
    least += (
        sum(count * flops for (flops, _), count in work.float32_matmuls.items()) / speed.float32_matmul_flops_per_second
    )
    assert least <= busy.matmuls * (1 + 1e-9)
    assert work.attention_flops <= busy.attention * speed.attention_flops_per_second * (1 + 1e-9)
    assert (
        sum(count * hbm_bytes for (_, hbm_bytes), count in products)
        <= busy.matmuls * speed.bytes_per_second * (1 + 1e-9) + 1
    )
    assert work.elementwise_bytes <= busy.memory * speed.bytes_per_second * (1 + 1e-9) + 1


@given(work=WORK, count=st.integers(1, 100), speed=RATES)
def test_equal_layers_take_as_often_the_time_of_one(work: Work, count: int, speed: Rates):
    assert busy_seconds(phase(work, count), speed).total == pytest.approx(
        count * busy_seconds(phase(work), speed).total
    )


def test_large_product_is_bound_by_operations_and_a_thin_one_by_bytes():
    large, thin = Work(matmuls={(7 * 10**14, 11): 1}), Work(matmuls={(7, 11 * 10**11): 1})
    assert busy_seconds(phase(large), ROUND).matmuls == pytest.approx(7)
    assert busy_seconds(phase(thin), ROUND).matmuls == pytest.approx(1.1)


def test_what_is_computed_in_float32_goes_at_the_rate_of_float32():
    products = Work(matmuls={(7 * 10**14, 11): 1}, float32_matmuls={(6 * 10**13, 11): 2}, num_kernels=3)
    assert busy_seconds(phase(products, 2), ROUND).matmuls == pytest.approx(2 * (7 + 2 * 3))
    assert products.flops == 7 * 10**14 + 2 * 6 * 10**13
    wide = {"float32_attention_flops": 10**14, "float32_causal_attention_flops": 10**14}
    attention = Work(attention_flops=3 * 10**14, causal_attention_flops=10**14, **wide)
    assert busy_seconds(phase(attention), ROUND).attention == pytest.approx(2 * 10**14 / 1e13 + 10**14 / 2 / 5e12)


def test_float32_products_between_two_micro_batches_take_their_operations_or_their_bytes_there():
    one, eight = (Work(float32_matmuls={(count * 2 * 10**13, 4 * 10**12): 3}) for count in (1, 8))
    low, high = (Trace({"layer": Section(forward_work=work)}, [Run("layer", None)]) for work in (one, eight))
    evenly, there = 4 + (8 - 4) * 4 / 7, 5
    assert saved_between(ROUND, low, high, 4 / 7) == pytest.approx((3 * (evenly - there), 0, 0))


def test_products_between_two_micro_batches_take_their_operations_or_their_bytes_there():
    def trace_of(products: dict[tuple[int, int], int]) -> Trace:
        return Trace({"layer": Section(forward_work=Work(matmuls=products))}, [Run("layer", None)])

    weights, head = 4 * 10**12, 11  # 4 s to read the weights of all experts; a head of 2 s that comes in chunks
    one = trace_of({(10**14, weights): 3, (2 * 10**14, head): 1})
    eight = trace_of({(8 * 10**14, weights): 3, (2 * 10**14, head): 8})
    evenly, there = 4 + (8 - 4) * 4 / 7, 5  # seconds of each of three: of five samples it is the operations
    assert saved_between(ROUND, one, eight, 4 / 7) == pytest.approx((3 * (evenly - there), 0, 0))
    assert saved_between(ROUND, one, trace_of({(8 * 10**14, weights): 3}), 4 / 7) == (0, 0, 0)
    first, more = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0), (3.0, 3.0, 3.0, 3.0, 3.0, 3.0)
    assert phases_between(first, more, 0.5, saved=(0.5, 0.0, 0.0)) == (2, 2, 2)  # the host's
    assert phases_between(first, (*more[:3], *first[3:]), 0.5, saved=(0.5, 0.0, 0.0)) == (1.5, 2, 2)


def test_every_product_has_its_ramp():
    products = Work(matmuls={(7 * 10**14, 11): 1, (7, 11 * 10**11): 1}, num_kernels=2)
    speed = ROUND._replace(ramp_seconds=0.01, kernel_ramp_seconds=1.0)
    assert busy_seconds(phase(products, 3), speed).matmuls == pytest.approx(3 * (7 + 1.1 + 2 * 0.01))
    assert busy_seconds(phase(products, 3), speed).memory == 0


def test_every_other_kernel_has_its_own():
    moved = Work(matmuls={(7 * 10**14, 11): 1}, elementwise_bytes=5 * 10**12, num_kernels=1 + 13)
    assert busy_seconds(phase(moved), ROUND._replace(kernel_ramp_seconds=0.01)).memory == pytest.approx(5 + 13 * 0.01)


def test_half_of_causal_attention_is_skipped():
    whole = Work(attention_flops=3 * 10**14)
    causal = Work(attention_flops=3 * 10**14, causal_attention_flops=3 * 10**14)
    assert busy_seconds(phase(whole), ROUND).attention == pytest.approx(3 * 10**14 / 1e13)
    assert busy_seconds(phase(causal), ROUND).attention == pytest.approx(3 * 10**14 / 1e13 / 2)


def test_kinds_of_work_stand_apart_and_add_up():
    mixed = Work(matmuls={(7 * 10**14, 11): 1}, attention_flops=3 * 10**13, elementwise_bytes=5 * 10**12)
    busy = busy_seconds(phase(mixed), ROUND)
    assert (busy.matmuls, busy.attention, busy.memory) == pytest.approx((7, 3, 5))
    assert busy.total == pytest.approx(7 + 3 + 5)
    assert busy + BusySeconds(matmuls=1, attention=2, memory=4) == BusySeconds(
        matmuls=busy.matmuls + 1, attention=busy.attention + 2, memory=busy.memory + 4
    )


TRIPLES = st.tuples(*[st.floats(0, 10)] * 3)
BUSY = st.builds(BusySeconds, matmuls=st.floats(0, 10), attention=st.floats(0, 10), memory=st.floats(0, 10))
SECONDS = st.builds(MicroBatchSeconds, busy=st.tuples(BUSY, BUSY, BUSY), launches=TRIPLES)


@given(SECONDS)
def test_forward_and_all_after_it_take_their_launches_or_their_work_whichever_is_longer(seconds: MicroBatchSeconds):
    forward, recompute, backward = seconds.phases
    worked = [busy.total for busy in seconds.busy]
    assert forward == max(worked[0], seconds.launches[0])
    assert recompute + backward == pytest.approx(max(sum(worked[1:]), sum(seconds.launches[1:])))


@given(SECONDS)
def test_gpu_works_or_waits_for_the_host(seconds: MicroBatchSeconds):
    worked = sum(busy.total for busy in seconds.busy)
    assert worked + seconds.waiting == pytest.approx(sum(seconds.phases))


def forward_and_rest(phases):
    """Recomputation and backward together, as communication is hidden behind both."""
    forward, recompute, backward = phases
    return forward, recompute + backward


@given(SECONDS, SECONDS, st.floats(0, 1))
def test_micro_batch_between_two_others_takes_no_longer_than_the_secant(low, high, fraction):
    between = phases_between(low.demands, high.demands, fraction)
    for a, b, middle in zip(*map(forward_and_rest, (low.phases, high.phases, between)), strict=True):
        assert 0 <= middle <= a + (b - a) * fraction + 1e-9


@given(SECONDS, SECONDS)
def test_ways_between_two_micro_batches_begin_and_end_at_them(low, high):
    assert phases_between(low.demands, high.demands, 0) == low.phases
    assert phases_between(low.demands, high.demands, 1) == pytest.approx(high.phases)
