"""What the host takes: images by their area and number, offload by its bytes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planned import cluster, model_files
from small_models import table_of
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload
from vlmplan.timing.host import (
    HOST_ADAM_BYTES_PER_SECOND,
    IMAGE_SECONDS_PER_MEGAPIXEL,
    NVME_BYTES_PER_SECOND,
    image_seconds,
    offload_seconds,
)
from vlmplan.timing.rates import PCIE_COPY_FRACTION, Scenario
from vlmplan.workload import Workload

FILES = model_files("qwen2-vl-2b")


def images(num: int = 1, width: int = 1000, height: int = 500) -> Workload:
    return Workload(model=FILES, images_per_sample=num, image_width=width, image_height=height)


def test_images_of_a_step_take_their_megapixels_one_after_the_other():
    recipe = Recipe(micro_batch=3, grad_accum=7)
    expected = 2 * 3 * 7 * 0.5 * IMAGE_SECONDS_PER_MEGAPIXEL.expected
    assert image_seconds(images(2), recipe) == pytest.approx(expected)


def test_text_alone_opens_nothing():
    assert image_seconds(images(0), Recipe(micro_batch=64)) == 0


@given(st.integers(1, 8), st.integers(28, 4000), st.integers(28, 4000))
def test_seconds_of_images_are_in_the_order_of_their_outlooks(num: int, width: int, height: int):
    slow, expected, fast = (
        image_seconds(images(num, width, height), Recipe(), scenario)
        for scenario in (Scenario.SLOW, Scenario.EXPECTED, Scenario.FAST)
    )
    assert slow > expected > fast > 0


TABLE = table_of([10**9])
ON = cluster(num_gpus=4)
BUS = ON.node.gpu.pcie_bytes_per_second


def seconds(grad_accum: int = 1, **where: Offload) -> float | None:
    return offload_seconds(TABLE, Recipe(zero_stage=3, grad_accum=grad_accum, **where), ON)


def test_gradients_go_down_each_micro_batch_and_weights_come_back_once():
    def crossing(grad_accum: int) -> float:
        return 1e9 / 4 * 2 * (grad_accum + 1) / (BUS * PCIE_COPY_FRACTION.expected)

    adam = 1e9 * (4 + 3) * 4 / HOST_ADAM_BYTES_PER_SECOND.expected
    assert seconds(offload_optimizer=Offload.CPU) == pytest.approx(adam + crossing(1))
    assert seconds(5, offload_optimizer=Offload.CPU) == pytest.approx(adam + crossing(5))


def test_states_on_nvme_are_read_and_written_once_a_step():
    more = seconds(offload_optimizer=Offload.NVME) - seconds(offload_optimizer=Offload.CPU)
    assert more == pytest.approx(1e9 * (4 + 4 + 4) * 2 / NVME_BYTES_PER_SECOND.expected)


def test_offloaded_weights_cross_the_bus_twice_a_micro_batch():
    found = seconds(7, offload_params=Offload.CPU)
    assert found == pytest.approx(7 * 2 * 2e9 / 4 / (BUS * PCIE_COPY_FRACTION.expected))


def test_nothing_offloaded_takes_no_time_whatever_the_bus():
    assert seconds() == 0
    unknown = replace(ON, node=replace(ON.node, gpu=replace(ON.node.gpu, pcie_gen=None)))
    assert offload_seconds(TABLE, Recipe(zero_stage=3), unknown) == 0
    assert offload_seconds(TABLE, Recipe(zero_stage=3, offload_optimizer=Offload.CPU), unknown) is None
