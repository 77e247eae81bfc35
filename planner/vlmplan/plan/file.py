"""plan.json: written, and read as what may come from somebody else."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from vlmplan.errors import InputError
from vlmplan.files import write_atomically
from vlmplan.files.json_reader import JsonObject, read_json_object
from vlmplan.hardware import MAX_GPUS_PER_NODE, MAX_NUM_NODES
from vlmplan.plan.record import (
    SCHEMA,
    VENDORS,
    VERDICTS,
    Expectation,
    ExpectedPhase,
    Plan,
    PlannedHardware,
    PlannedOffer,
)
from vlmplan.recipe.from_json import recipe_from_json
from vlmplan.versions import VLMPLAN_VERSION
from vlmplan.workload import ModelFiles, Workload

PLAN_FILE = "plan.json"
NETWORK = "inter_node_bytes_per_second"
"""What older plans do not have of their hardware."""


def plan_text(plan: Plan) -> str:
    """plan.json."""
    return json.dumps(plan.as_json(), indent=2, ensure_ascii=False) + "\n"


def write_plan(plan: Plan, path: Path, *, force: bool = False) -> None:
    """Write plan.json whole or not at all. Raises InputError if it exists and ``force`` is off."""
    write_atomically(path, plan_text(plan), force=force)


def read_plan(path: Path) -> Plan:
    """The plan in a file, or in the folder that it was written to with the files made of it. Raises UnavailableError if
    it cannot be read, InputError if it is not a sound plan."""
    file = path / PLAN_FILE if path.is_dir() else path
    return plan_from_json(read_json_object(file), source=str(file))


def plan_from_json(values: Mapping[str, Any], *, source: str = "plan") -> Plan:
    """The inverse of ``Plan.as_json``; ``source`` names the file in errors."""
    top = JsonObject(values, source=source)
    if "schema" not in top:
        raise InputError(f"{source} has no schema, so it is not a plan; {SCHEMA} is needed")
    if top.raw("schema") != SCHEMA:
        top.refuse("schema", f"{SCHEMA}, the only one that vlmplan {VLMPLAN_VERSION} reads,")
    model = top.object("model")
    plan = Plan(
        workload=_workload(top.object("workload"), model),
        recipe=recipe_from_json(top.mapping("recipe"), source=f"{source}: recipe"),
        hardware=_hardware(top.object("hardware")),
        expected=_expected(top.object("expected")),
        num_params=model.count("num_params", least=1),
        num_trainable_params=model.count("num_trainable_params", least=1),
        ds_config=top.maybe("ds_config", top.mapping),
        offer=_offer(top),
        environment=_texts(top.object("environment")),
        versions=_texts(top.object("versions")),
        vlmplan_version=top.text("vlmplan_version"),
    )
    model.close()
    top.close()
    return plan


def _workload(section: JsonObject, model: JsonObject) -> Workload:
    names = ("seq_len", "images_per_sample", "image_width", "image_height", "num_samples")
    counts: dict[str, Any] = {name: section.count(name) for name in names}
    workload = Workload(
        model=ModelFiles(
            id=model.text("id"),
            config=model.mapping("config"),
            preprocessor=model.maybe("preprocessor", model.mapping),
            hub_id=model.maybe("hub_id", model.text),
            notes=model.texts("notes"),
            not_counted=model.texts("not_counted") if "not_counted" in model else (),
        ),
        **counts,
        sample_len=section.maybe("sample_len", section.count) if "sample_len" in section else None,
        target_len=section.maybe("target_len", section.count) if "target_len" in section else None,
        epochs=section.number("epochs"),
        global_batch=section.maybe("global_batch", section.count),
        video_fps=section.maybe("video_fps", section.number) if "video_fps" in section else None,
        video_frames=section.maybe("video_frames", section.count) if "video_frames" in section else None,
        audios_per_sample=section.count("audios_per_sample") if "audios_per_sample" in section else 0,
        audio_seconds=section.number("audio_seconds") if "audio_seconds" in section else 0.0,
        video_pixels=section.maybe("video_pixels", section.count) if "video_pixels" in section else None,
        clip_frames=section.maybe("clip_frames", section.count) if "clip_frames" in section else None,
        samples_per_entry=section.count("samples_per_entry", least=1) if "samples_per_entry" in section else 1,
    )
    section.close()
    return workload


def _hardware(section: JsonObject) -> PlannedHardware:
    hardware = PlannedHardware(
        gpu_id=section.text("gpu_id"),
        gpu_name=section.text("gpu_name"),
        vendor=section.choice("vendor", VENDORS),
        gpus_per_node=section.count("gpus_per_node", least=1, most=MAX_GPUS_PER_NODE),
        num_nodes=section.count("num_nodes", least=1, most=MAX_NUM_NODES),
        usable_bytes=section.count("usable_bytes"),
        host_ram_bytes=section.maybe("host_ram_bytes", section.count),
        inter_node_bytes_per_second=section.maybe(NETWORK, section.number) if NETWORK in section else None,
        uses_calibration=section.flag("uses_calibration") if "uses_calibration" in section else True,
        calibrated_on=section.maybe("calibrated_on", section.text) if "calibrated_on" in section else None,
    )
    section.close()
    return hardware


def _offer(top: JsonObject) -> PlannedOffer | None:
    section = top.maybe("offer", top.object)
    if section is None:
        return None
    offer = PlannedOffer(
        provider=section.text("provider"),
        usd_per_hour=section.number("usd_per_hour"),
        pricing=section.text("pricing"),
        **{name: section.maybe(name, section.text) for name in ("sku", "region", "as_of", "source")},
        save_every_steps=section.maybe("save_every_steps", section.count),
    )
    section.close()
    return offer


LATER_COUNTS = ("resume_peak_bytes", "resume_host_bytes", "reserved_with_room_bytes")
"""What older plans do not have."""


def _expected(section: JsonObject) -> Expectation:
    counts = [item.name for item in fields(Expectation) if item.type == "int" or item.type is int]
    components = section.object("components_at_peak")
    phases = [
        ExpectedPhase(
            name=phase.text("name"),
            resident_bytes=phase.count("resident_bytes"),
            peak_bytes=phase.count("peak_bytes"),
        )
        for phase in section.objects("phases")
    ]
    later = {name: section.maybe(name, section.count) if name in section else None for name in LATER_COUNTS}
    expected = Expectation(
        verdict=section.choice("verdict", VERDICTS),
        peak_phase=section.text("peak_phase"),
        components_at_peak={name: components.count(name) for name in components.values},
        phases=tuple(phases),
        step_seconds=section.maybe("step_seconds", section.number),
        usd=section.maybe("usd", section.number),
        evaluation_seconds=_of_evaluations(section),
        **{name: section.count(name) for name in counts},
        resume_peak_bytes=later["resume_peak_bytes"],
        resume_host_bytes=later["resume_host_bytes"],
        reserved_with_room_bytes=later["reserved_with_room_bytes"],
    )
    section.close()
    return expected


def _of_evaluations(section: JsonObject) -> float | None:
    """None where they are not known; plans of before have none."""
    name = "evaluation_seconds"
    return section.maybe(name, section.number) if name in section else 0.0


def _texts(section: JsonObject) -> dict[str, str]:
    return {name: section.text(name) for name in section.values}
