"""sky.yaml: a task that rents the machines of a plan through SkyPilot and trains on them.

Only what SkyPilot says that the plan's cloud can do is written (``sky_facts``); where it cannot do what the plan needs
there is no file, and ``sky_problem`` says why. A machine that may be taken away is rented by a managed job, whose
output lies in a bucket, so that the machine after it goes on. vlmplan itself comes as a wheel beside the file.

Sources: docs.skypilot.co, reference/yaml-spec, examples/managed-jobs (checkpointing), reference/storage (modes) and
running-jobs/distributed-jobs; the schema of SkyPilot 0.14 (``sky/utils/schemas.py``).
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vlmplan.emit.cluster import job_name
from vlmplan.emit.command import input_files, input_variable, inputs_text
from vlmplan.emit.scripts import title_of
from vlmplan.emit.sky_facts import (
    CLOUDS_WITH_BUCKETS,
    CLOUDS_WITH_CACHED_MOUNTS,
    CLOUDS_WITH_NETWORK_TIERS,
    CLOUDS_WITH_SEVERAL_NODES,
    CLOUDS_WITH_SPOT,
    NETWORK_TIER_GPUS,
    SKYPILOT_VERSION,
)
from vlmplan.emit.wheel import wheel_name
from vlmplan.files.json_reader import JsonDict
from vlmplan.plain_text import one_line
from vlmplan.plan import Plan
from vlmplan.recipe.choices import AttentionImplementation
from vlmplan.run.saving import Interval
from vlmplan.run.training import CHECKPOINTS, MANIFEST
from vlmplan.units import GIB
from vlmplan.versions import TASK_VERSIONS

SKYPILOT_ACCELERATORS: Mapping[str, str] = {
    "a10": "A10",
    "a100-pcie-80gb": "A100-80GB",
    "a100-sxm4-40gb": "A100",
    "a100-sxm4-80gb": "A100-80GB",
    "a10g": "A10G",
    "b200": "B200",
    "gh200-96gb": "GH200",
    "h100-pcie": "H100",
    "h100-sxm": "H100",
    "h200-sxm": "H200",
    "l4": "L4",
    "l40": "L40",
    "l40s": "L40S",
    "rtx-3090": "RTX3090",
    "rtx-4090": "RTX4090",
    "rtx-5090": "RTX5090",
    "rtx-a4000": "RTXA4000",
    "rtx-a5000": "RTXA5000",
    "rtx-a6000": "RTXA6000",
    "t4": "T4",
    "v100-sxm2-16gb": "V100",
    "v100-sxm2-32gb": "V100-32GB",
}
"""SkyPilot's names of the catalog's cards (``provider_names`` there). Some stand for several boards: a cloud that is
named decides."""
SKYPILOT_CLOUDS: Mapping[str, str] = {
    name: name for name in ("aws", "azure", "gcp", "lambda", "nebius", "oci", "paperspace", "runpod", "vast", "verda")
} | {"digitalocean": "do"}
"""Providers that SkyPilot rents from, by its names (``sky/clouds``)."""
CLOUDS_WITH_REGIONS = ("aws", "azure", "gcp")
"""Those whose regions the catalog calls as SkyPilot does."""
DEFAULT_DISK_GB = 256
"""What SkyPilot gives a machine where nothing is said."""
DISK_SPARE_GB = 100
"""Room beside model and checkpoints: system, packages, data. Assumed."""
CLOUD_ACCELERATORS: Mapping[str, Mapping[str, str]] = {
    "runpod": {
        "a100-sxm4-80gb": "A100-80GB-SXM",
        "h100-sxm": "H100-SXM",
        "h200-sxm": "H200-SXM",
        "v100-sxm2-16gb": "V100-16GB-SXM2",
        "v100-sxm2-32gb": "V100-32GB-SXM2",
    },
    "verda": {"rtx-a6000": "RTX-A6000"},
}
"""Names that a cloud has of its own: on RunPod ``A100-80GB`` and ``H100`` are PCIe cards. Sources:
``sky/provision/runpod/utils.py`` (``GPU_NAME_MAP``), ``sky/catalog/data_fetchers/fetch_verda.py``."""
RECOVERY = "EAGER_NEXT_REGION"
"""Where a machine was taken away, the next region is asked first (``sky/jobs/recovery_strategy.py``)."""
BUCKET_FOLDER = "/checkpoints"
"""Where a machine that may be taken away sees its bucket."""
NUM_CHECKPOINTS = 10
"""Of a run on such a machine, where the plan does not say how often to save. A choice."""


def has_sky_yaml(plan: Plan) -> bool:
    """Whether SkyPilot can start this plan, so that a sky.yaml is written."""
    return is_for_skypilot(plan) and sky_problem(plan) is None


def is_for_skypilot(plan: Plan) -> bool:
    """Whether there is something to start elsewhere: the machines are rented, or several."""
    is_rented = plan.offer is not None and plan.offer.pricing != "own"
    return is_rented or plan.hardware.num_nodes > 1


def sky_problem(plan: Plan) -> str | None:
    """Why SkyPilot cannot rent what the plan is for; None where it can."""
    cloud, gpu = _cloud(plan), plan.hardware.gpu_id
    if gpu not in SKYPILOT_ACCELERATORS:
        return f"SkyPilot's name of {gpu} is not known here"
    if cloud is None:
        return None
    if plan.hardware.num_nodes > 1 and cloud not in CLOUDS_WITH_SEVERAL_NODES:
        return f"SkyPilot {SKYPILOT_VERSION} starts one machine at a time on {cloud}, and the plan is for several"
    if _may_be_taken_away(plan) and cloud not in CLOUDS_WITH_SPOT:
        return f"SkyPilot {SKYPILOT_VERSION} rents no machines on {cloud} that may be taken away"
    if _may_be_taken_away(plan) and cloud not in CLOUDS_WITH_BUCKETS:
        able = ", ".join(sorted(CLOUDS_WITH_SPOT & CLOUDS_WITH_BUCKETS))
        return (
            f"SkyPilot {SKYPILOT_VERSION} mounts no bucket on {cloud}, and without one a machine that is taken away "
            f"takes its checkpoints with it; it does on {able}"
        )
    return None


def sky_task(plan: Plan) -> JsonDict:
    """The content of sky.yaml, under SkyPilot's keys."""
    task: JsonDict = {
        "name": job_name(plan),
        "num_nodes": plan.hardware.num_nodes,
        "workdir": ".",
        "resources": _resources(plan),
    }
    if _may_be_taken_away(plan):
        mode = "MOUNT_CACHED" if _has_cached_bucket(plan) else "MOUNT"
        task["envs"] = {**_inputs(plan), "BUCKET": None, "OUTPUT_DIR": _output_folder(plan)}
        task["file_mounts"] = {BUCKET_FOLDER: {"name": "${BUCKET}", "mode": mode}}
    else:
        task["envs"] = {**_inputs(plan), "OUTPUT_DIR": "output"}
    return task | {"setup": _setup(plan), "run": _run(plan)}


def _inputs(plan: Plan) -> JsonDict:
    """Variables that name the files of a run, which the user sets."""
    return dict.fromkeys(input_variable(option) for option in input_files(plan))


def sky_text(plan: Plan) -> str:
    """sky.yaml."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes texts of several lines as such."""

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    head = "".join(f"# {line}\n" for line in _head(plan))
    return head + yaml.dump(sky_task(plan), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=10_000)


def _head(plan: Plan) -> list[str]:
    """What the file is, and the commands to use it with."""
    name = job_name(plan)
    given = " ".join(f"--env {input_variable(option)}={name}" for option, name in input_files(plan).items())
    lines = [
        f"{one_line(title_of(plan))}. Written by vlmplan {one_line(plan.vlmplan_version)} from plan.json,",
        f"with what SkyPilot {SKYPILOT_VERSION} says of its clouds. In this folder, with the data in it or where",
        f"{' and '.join(_inputs(plan))} say{'' if len(_inputs(plan)) > 1 else 's'}:",
    ]
    if _may_be_taken_away(plan):
        lines += [
            f"  sky jobs launch sky.yaml {given} --env BUCKET=NAME",
            "BUCKET is a bucket to be made, by a name that nobody has; checkpoints and result are in it. When the",
            "machine is taken away, SkyPilot starts another, which goes on from the newest checkpoint, as does",
            "another job with the same bucket.",
        ]
    else:
        lines += [
            f"  sky launch -c {name} sky.yaml {given}",
            f"  rsync -Pavz {name}:sky_workdir/output . && sky down {name}",
        ]
    if _cloud(plan) is None:
        if plan.offer is not None:
            provider = one_line(plan.offer.provider)
            lines.append(f"SkyPilot does not rent from {provider}: it takes such a card elsewhere, at another price.")
        if plan.hardware.num_nodes > 1:
            able = ", ".join(sorted(CLOUDS_WITH_NETWORK_TIERS))
            lines.append(f"Add network_tier: best to the resources if your cloud is one of those that have it: {able}.")
    return lines


def _cloud(plan: Plan) -> str | None:
    """SkyPilot's name of the plan's cloud; None where it has none."""
    return None if plan.offer is None else SKYPILOT_CLOUDS.get(plan.offer.provider)


def _may_be_taken_away(plan: Plan) -> bool:
    return plan.offer is not None and plan.offer.pricing == "interruptible"


def _resources(plan: Plan) -> JsonDict:
    resources: JsonDict = {}
    if infra := _infra(plan):
        resources["infra"] = infra
    resources["accelerators"] = {_accelerator(plan): plan.hardware.gpus_per_node}
    if _may_be_taken_away(plan):
        resources |= {"use_spot": True, "job_recovery": RECOVERY}
    if plan.hardware.num_nodes > 1 and _has_network_tiers(plan):
        resources["network_tier"] = "best"
    if (disk := _disk_gb(plan)) > DEFAULT_DISK_GB:
        resources["disk_size"] = disk
    return resources


def _infra(plan: Plan) -> str | None:
    """``cloud`` or ``cloud/region``; None where SkyPilot has to find one.

    A machine that may be taken away is replaced in another region where there is none left in its own.
    """
    offer, cloud = plan.offer, _cloud(plan)
    if offer is None or cloud is None:
        return None
    if _may_be_taken_away(plan):
        return cloud
    has_region = cloud in CLOUDS_WITH_REGIONS and re.fullmatch(r"[a-z0-9-]+", offer.region or "")
    return f"{cloud}/{offer.region}" if has_region else cloud


def _accelerator(plan: Plan) -> str:
    gpu = plan.hardware.gpu_id
    return CLOUD_ACCELERATORS.get(_cloud(plan) or "", {}).get(gpu, SKYPILOT_ACCELERATORS[gpu])


def _has_network_tiers(plan: Plan) -> bool:
    """Whether SkyPilot knows a fast network between the plan's machines."""
    cloud = _cloud(plan) or ""
    return cloud in CLOUDS_WITH_NETWORK_TIERS or (
        NETWORK_TIER_GPUS.get(cloud, {}).get(_accelerator(plan)) == plan.hardware.gpus_per_node
    )


def _disk_gb(plan: Plan) -> int:
    """Everything that the run has at its fullest moment, as it is started here, and the model as it is downloaded, in
    32 bits at the most."""
    saving = plan.saving
    if _may_be_taken_away(plan):
        saving = replace(saving, interval=Interval.STEPS, every=_save_every(plan))
    needed = plan.run_disk(saving).peak_bytes + 4 * plan.num_params
    return -(-needed // GIB) + DISK_SPARE_GB


def _setup(plan: Plan) -> str:
    """Install the wheel that lies beside the file, and what the plan was checked with. No index is asked for vlmplan:
    what has its name there need not be it."""
    wheel = wheel_name(plan.vlmplan_version)
    extra, more = ("train", {}) if plan.recipe.task is None else ("rl", TASK_VERSIONS)
    versions = shlex.join(f"{name}=={version}" for name, version in {**plan.versions, **more}.items())
    lines = [
        "set -e",
        f"wheel={shlex.quote(wheel)}",
        'if [[ ! -f "$wheel" ]]; then',
        '  echo "$wheel is not in this folder; vlmplan recommend --out writes it beside sky.yaml" >&2',
        "  exit 1",
        "fi",
        f'DS_BUILD_OPS=0 pip install "./${{wheel}}[{extra}]" {versions}',
    ]
    if plan.recipe.attention is AttentionImplementation.FLASH_ATTENTION_2:
        lines.append("pip install --no-build-isolation flash-attn")
    return "\n".join(lines) + "\n"


# -- what is run -----------------------------------------------------------------------------------------------------


def _run(plan: Plan) -> str:
    ranks = RANKS if plan.hardware.num_nodes > 1 else []
    if not _may_be_taken_away(plan):
        return _text([*ranks, f"bash launch.sh {_arguments(plan)}"])
    return _text(_resumed_alone(plan) if _has_cached_bucket(plan) else ["set -e", *ranks, *_resumed_together(plan)])


RANKS = [
    'MASTER_ADDR="$(head -n 1 <<<"$SKYPILOT_NODE_IPS")"',
    'NODE_RANK="$SKYPILOT_NODE_RANK"',
    "export MASTER_ADDR NODE_RANK",
]


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _arguments(plan: Plan) -> str:
    return f'{inputs_text(plan, is_of_shell=True)} --output-dir "$OUTPUT_DIR"'


def _resumed_alone(plan: Plan) -> list[str]:
    """The folder of the run is in the bucket. ``--resume`` starts anew where there is no checkpoint yet."""
    return [f"vlmplan launch --plan plan.json {_arguments(plan)} --save-every {_save_every(plan)} --resume"]


def _resumed_together(plan: Plan) -> list[str]:
    """Only checkpoints are in the bucket while the run goes on: what is mounted by several machines takes whole files
    and no more lines at their ends (docs.skypilot.co, reference/storage: MOUNT)."""
    return [
        f'mkdir -p "$OUTPUT_DIR" {BUCKET_FOLDER}/{CHECKPOINTS} {BUCKET_FOLDER}/result',
        f'ln -sfn {BUCKET_FOLDER}/{CHECKPOINTS} "$OUTPUT_DIR/{CHECKPOINTS}"',
        "resume=()",
        f'if compgen -G "$OUTPUT_DIR/{CHECKPOINTS}/step-*/{MANIFEST}" >/dev/null; then resume=(--resume); fi',
        f'bash launch.sh {_arguments(plan)} --save-every {_save_every(plan)} "${{resume[@]}}"',
        f'rm "$OUTPUT_DIR/{CHECKPOINTS}"',
        f'if [[ "${{NODE_RANK:-0}}" == 0 ]]; then cp -r "$OUTPUT_DIR/." {BUCKET_FOLDER}/result; fi',
    ]


def _output_folder(plan: Plan) -> str:
    return f"{BUCKET_FOLDER}/run" if _has_cached_bucket(plan) else "output"


def _has_cached_bucket(plan: Plan) -> bool:
    """Whether the bucket is mounted as MOUNT_CACHED, through the machine's own disk, as SkyPilot advises for
    checkpoints; several machines have to see each other's files, which only MOUNT lets them."""
    cloud = _cloud(plan)
    return plan.hardware.num_nodes == 1 and (cloud is None or cloud in CLOUDS_WITH_CACHED_MOUNTS)


def _save_every(plan: Plan) -> int:
    """Steps between checkpoints: as far apart as costs least by what the plan knows of interruptions."""
    said = None if plan.offer is None else plan.offer.save_every_steps
    return max(1, plan.expected.num_steps // NUM_CHECKPOINTS) if said is None else said
