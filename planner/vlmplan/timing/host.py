"""What the host does between the GPU's work: CPU Adam, copies over PCIe and to NVMe, images."""

from vlmplan.engines.parameters import ParameterTable
from vlmplan.hardware import Cluster, Gpu
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload
from vlmplan.timing.rates import RangedValue, Scenario, host_copy_bytes_per_second, measured, measured_or
from vlmplan.units import DType
from vlmplan.workload import Workload

HOST_ADAM_BYTES_PER_SECOND = RangedValue(30e9, 60e9, 150e9)
"""Host memory traffic that DeepSpeed's CPU Adam sustains on one node. Assumed: two-socket servers of 2020 on."""
NVME_BYTES_PER_SECOND = RangedValue(2e9, 4e9, 6e9)
"""Read or write rate of one node's NVMe storage under DeepSpeed's asynchronous I/O. Assumed: one PCIe 4 drive."""
ADAM_VALUES = 7
"""float32 values that the update moves per weight: master, gradient and moments read, master and moments written."""
SWAPPED_BYTES = 12
"""Per weight that go to NVMe and come back: master and both moments in float32."""

IMAGE_SECONDS_PER_MEGAPIXEL = RangedValue(0.2, 0.08, 0.03)
"""Opening a JPEG as large as planned and making patches of it, on one core.

Measured on one core of a small cloud server, 2026, with Pillow 13.0 and transformers 5.23 without torchvision, JPEGs of
quality 90 from 0.2 to 5 megapixels: 0.006 to 0.010 seconds a megapixel to open, 0.06 to 0.10 in the processor of
Qwen2-VL; 0.03 to 0.07 in that of CLIP, 0.17 in that of Idefics3, which cuts tiles. The slow end is the last of a
photograph larger than planned, which is opened whole and made smaller (0.010 to 0.016 a megapixel); the fast end,
assumed, is a core twice as fast."""


def offload_seconds(
    table: ParameterTable, recipe: Recipe, cluster: Cluster, scenario: Scenario = Scenario.EXPECTED
) -> float | None:
    """CPU Adam and the copies over PCIe and to NVMe, per step; None if the bus is not known.

    Gradients go down and weights come back once a step (gradients every micro batch); parameters offloaded cross
    the bus twice a micro batch. The ranks of a node share its host memory.
    """
    if recipe.offload_optimizer is Offload.NONE and recipe.offload_params is Offload.NONE:
        return 0.0
    gpu = cluster.node.gpu
    copied = host_copy_bytes_per_second(gpu, scenario)
    if copied is None:
        return None
    shard = table.num_trained / cluster.num_gpus
    p = table.trained_dtype.num_bytes
    bus = seconds = 0.0
    if recipe.offload_optimizer is not Offload.NONE:
        bus += shard * p * (recipe.grad_accum + 1)
        node_elements = table.num_trained / cluster.num_nodes
        host_adam = measured_or(gpu, "host_adam_bandwidth", HOST_ADAM_BYTES_PER_SECOND)
        seconds += node_elements * ADAM_VALUES * DType.FLOAT32.num_bytes / host_adam.at(scenario)
        if recipe.offload_optimizer is Offload.NVME:
            seconds += node_elements * 2 * SWAPPED_BYTES / NVME_BYTES_PER_SECOND.at(scenario)
    if recipe.offload_params is not Offload.NONE:
        bus += 2 * table.total_bytes / cluster.num_gpus * recipe.grad_accum
        if recipe.offload_params is Offload.NVME:
            node_bytes = table.total_bytes / cluster.num_nodes
            seconds += 2 * recipe.grad_accum * node_bytes / NVME_BYTES_PER_SECOND.at(scenario)
    return seconds + bus / copied


def image_seconds(
    workload: Workload, recipe: Recipe, scenario: Scenario = Scenario.EXPECTED, *, gpu: Gpu | None = None
) -> float:
    """What a rank's images of one step take in one process.

    ``gpu``: one whose calibration may have measured it, on the host beside it.
    """
    of_host = None if gpu is None else measured(gpu, "image_seconds_per_megapixel")
    per_megapixel = (of_host or IMAGE_SECONDS_PER_MEGAPIXEL).at(scenario)
    num_images = workload.images_per_sample * (workload.clip_frames or 1) * recipe.micro_batch * recipe.grad_accum
    return num_images * workload.image_width * workload.image_height / 1e6 * per_megapixel
