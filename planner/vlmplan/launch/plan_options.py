"""A plan as the request that asks for it."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from vlmplan.catalog import Catalog
from vlmplan.errors import UnavailableError, VlmplanError
from vlmplan.gpu_choice import CPU, LOCAL, chosen_node, parse_gpu_choice
from vlmplan.machine.host import host_ram_bytes
from vlmplan.models import find_model
from vlmplan.plan import Plan, PlannedHardware
from vlmplan.recipe.choices import Method
from vlmplan.recipe.decided import decided_by
from vlmplan.recipe.settings import ADAPTER_FIELDS
from vlmplan.request import EvaluationRequest, HardwareRequest, Request, TaskRequest, WorkloadRequest
from vlmplan.request.idle_options import without_idle
from vlmplan.request.parsing import for_its_task
from vlmplan.units import GIB
from vlmplan.workload import ModelFiles


def request_of(plan: Plan, *, model: str, gpu: str) -> Request:
    """The request for ``plan``, every setting said that an option can say and that applies.

    The sizes of ZeRO's buckets have no options: planning chooses them again.
    """
    workload, hardware = plan.workload, hardware_of(plan, gpu)
    if hardware.gpus[0].is_this_machine and plan.hardware.host_ram_bytes == host_ram_bytes():
        hardware = replace(hardware, host_ram_gib=None)
    recipe = without_idle(decided_by(plan.recipe), plan.recipe, workload.model, num_gpus=plan.hardware.num_gpus)
    if plan.recipe.method is Method.FULL:
        recipe = replace(recipe, **dict.fromkeys(ADAPTER_FIELDS))
    request = Request(
        model=model,
        workload=WorkloadRequest(
            seq_len=workload.seq_len or None,
            sample_len=workload.sample_len,
            target_len=workload.target_len,
            images_per_sample=workload.images_per_sample,
            image_size=(workload.image_width, workload.image_height) if workload.images_per_sample else None,
            num_samples=workload.num_samples,
            epochs=workload.epochs,
            global_batch=workload.global_batch,
            video_fps=workload.video_fps,
            video_frames=workload.video_frames,
            video_pixels=workload.video_pixels,
            audios_per_sample=workload.audios_per_sample or None,
            audio_seconds=workload.audio_seconds or None,
            clip_frames=workload.clip_frames,
        ),
        hardware=hardware,
        recipe=recipe,
        evaluation=EvaluationRequest.of(plan.recipe.evaluation),
        task=TaskRequest.of(plan.recipe.task),
    )
    return for_its_task(request)


def hardware_of(plan: Plan, gpu: str) -> HardwareRequest:
    """The machines of the plan, which ``--gpu`` calls ``gpu``."""
    hardware = plan.hardware
    rate = hardware.inter_node_bytes_per_second
    return HardwareRequest(
        gpus=(parse_gpu_choice(gpu),),
        num_nodes=hardware.num_nodes,
        host_ram_gib=gib_of_host(hardware.host_ram_bytes),
        inter_node_gbit=None if rate is None else rate * 8 / 1e9,
        calibration=None if hardware.uses_calibration else False,
    )


def gib_of_host(ram: int | None) -> float | None:
    """The value of ``--host-ram`` that is read as these bytes."""
    if ram is None:
        return None
    return ram // GIB if ram % GIB == 0 else ram / GIB


def model_of(plan: Plan) -> tuple[str, ModelFiles]:
    """The name by which ``--model`` finds the plan's model, and its files.

    Raises UnavailableError where no name does: the plan may come from another machine.
    """
    model = plan.workload.model
    for name in (model.id, plan.model_source):
        with suppress(VlmplanError):
            found = find_model(name)
            if dict(found.config) == dict(model.config):
                return name, found
    raise UnavailableError(f"the model {model.id} of the plan is not found here by that name")


def gpu_of(plan: Plan, catalog: Catalog) -> str:
    """What ``--gpu`` calls the plan's hardware: by its name where that means the same node, else this machine's.

    Raises UnavailableError where neither does.
    """
    known = catalog.without_calibrations()  # which change neither names nor what is usable
    for text in _gpu_texts(plan.hardware):
        with suppress(VlmplanError):
            node = chosen_node(parse_gpu_choice(text), known, host_bytes=plan.hardware.host_ram_bytes).node
            if (node.gpu.id, node.gpu.usable_bytes) == (plan.hardware.gpu_id, plan.hardware.usable_bytes):
                return text
    raise UnavailableError(f"{plan.hardware.gpu_name} of the plan is neither in the catalog nor in this machine")


def _gpu_texts(hardware: PlannedHardware) -> Iterator[str]:
    """``cpu:4``; ``rtx-4090:2`` for a plan that knows no host, ``local:2`` before it for one that does."""
    if hardware.vendor == "cpu":
        yield f"{CPU}:{hardware.gpus_per_node}"
        return
    names = [hardware.gpu_id, LOCAL] if hardware.host_ram_bytes is None else [LOCAL, hardware.gpu_id]
    yield from (f"{name}:{hardware.gpus_per_node}" for name in names)
