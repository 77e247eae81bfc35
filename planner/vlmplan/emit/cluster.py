"""job.slurm and sky.yaml: several machines, or a rented one, that each run the launch.sh beside them.

Every machine starts DeepSpeed's launcher for its own GPUs (``--no_ssh`` in ``deepspeed/launcher/runner.py``), told by
NODE_RANK and MASTER_ADDR which it is and where they meet, so that no ssh between them is needed.

Sources: slurm.schedmd.com/sbatch.html and srun.html; docs.skypilot.co, reference/yaml-spec and running-jobs/
distributed-jobs, and the schema of SkyPilot 0.14 (``sky/utils/schemas.py``).
"""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from vlmplan.emit.scripts import one_line, title_of
from vlmplan.plan import Plan
from vlmplan.units import GIB, duration_text

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
KEPT_CHECKPOINTS = 2
"""The one that is written, and the one before."""
FIRST_PORT, NUM_PORTS = 20_000, 10_000
JOB_NAME_LENGTH = 40


def job_name(plan: Plan) -> str:
    """A name of letters, digits and dashes that Slurm, SkyPilot and clouds take."""
    words = re.sub(r"[^a-z0-9]+", "-", plan.workload.model.id.lower().rpartition("/")[2]).strip("-")
    return f"vlmplan-{words}"[:JOB_NAME_LENGTH].rstrip("-")


def slurm_script(plan: Plan) -> str:
    """A batch script for ``sbatch`` that starts launch.sh once on every node."""
    hardware, seconds = plan.hardware, plan.expected.run_seconds
    time = "" if seconds is None else f"; the plan expects {duration_text(seconds)} of training"
    lines = [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name={job_name(plan)}",
        f"#SBATCH --nodes={hardware.num_nodes}",
        "#SBATCH --ntasks-per-node=1",
        *([] if hardware.vendor == "cpu" else [f"#SBATCH --gpus-per-node={hardware.gpus_per_node}"]),
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
        "#SBATCH --output=%x-%j.log",
        f"# {one_line(title_of(plan))}. Written by vlmplan {one_line(plan.vlmplan_version)} from plan.json.",
        "# Submit it from its folder; arguments go to the trainer:",
        "#   sbatch job.slurm --train-data FILE --output-dir DIR",
        "# Folder, data and Python environment have to be on every node, and the environment active when you submit.",
        f"# Add --partition, --account and --time as your cluster wants them{time}.",
        "set -euo pipefail",
        'here="${SLURM_SUBMIT_DIR:-$PWD}"',
        'if [[ ! -f "$here/launch.sh" ]]; then',
        '  echo "no launch.sh in $here; submit job.slurm from its own folder" >&2',
        "  exit 1",
        "fi",
        'hosts="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"',
        """MASTER_ADDR="${MASTER_ADDR:-${hosts%%$'\\n'*}}\"""",
        f'MASTER_PORT="${{MASTER_PORT:-$(({FIRST_PORT} + SLURM_JOB_ID % {NUM_PORTS}))}}"',
        "export MASTER_ADDR MASTER_PORT",
        "# The task's own shell knows its node.",
        "# shellcheck disable=SC2016",
        "srun --cpu-bind=none --kill-on-bad-exit=1 \\",
        """  bash -c 'NODE_RANK="$SLURM_NODEID" exec bash "$0/launch.sh" "$@"' "$here" "$@\"""",
    ]
    return "\n".join(lines) + "\n"


def has_sky_yaml(plan: Plan) -> bool:
    """Whether a sky.yaml is of use: SkyPilot knows the card, and the machines are rented or several."""
    is_rented = plan.offer is not None and plan.offer.pricing != "own"
    return plan.hardware.gpu_id in SKYPILOT_ACCELERATORS and (is_rented or plan.hardware.num_nodes > 1)


def sky_task(plan: Plan) -> dict[str, Any]:
    """The content of sky.yaml, under SkyPilot's keys."""
    hardware = plan.hardware
    resources: dict[str, Any] = {}
    if infra := _infra(plan):
        resources["infra"] = infra
    resources["accelerators"] = {SKYPILOT_ACCELERATORS[hardware.gpu_id]: hardware.gpus_per_node}
    if plan.offer is not None and plan.offer.pricing == "interruptible":
        resources["use_spot"] = True
    if hardware.num_nodes > 1:
        resources["network_tier"] = "best"
    if (disk := _disk_gb(plan)) > DEFAULT_DISK_GB:
        resources["disk_size"] = disk
    return {
        "name": job_name(plan),
        "num_nodes": hardware.num_nodes,
        "workdir": ".",
        "resources": resources,
        "envs": {"TRAIN_DATA": None, "OUTPUT_DIR": "output"},
        "setup": _setup(plan),
        "run": _run(plan),
    }


def sky_text(plan: Plan) -> str:
    """sky.yaml."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes texts of several lines as such."""

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    head = (
        f"# {one_line(title_of(plan))}. Written by vlmplan {one_line(plan.vlmplan_version)} from plan.json.\n"
        "# In this folder, with the data in it or where TRAIN_DATA says:\n"
        "#   sky launch sky.yaml --env TRAIN_DATA=data.jsonl\n"
    )
    return head + yaml.dump(sky_task(plan), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=10_000)


def _infra(plan: Plan) -> str | None:
    """``cloud`` or ``cloud/region``; None where SkyPilot has to find one."""
    offer = plan.offer
    cloud = None if offer is None else SKYPILOT_CLOUDS.get(offer.provider)
    if offer is None or cloud is None:
        return None
    has_region = cloud in CLOUDS_WITH_REGIONS and re.fullmatch(r"[a-z0-9-]+", offer.region or "")
    return f"{cloud}/{offer.region}" if has_region else cloud


def _disk_gb(plan: Plan) -> int:
    expected = plan.expected
    needed = KEPT_CHECKPOINTS * expected.checkpoint_bytes + expected.export_bytes + 4 * plan.num_params
    return -(-needed // GIB) + DISK_SPARE_GB


def _setup(plan: Plan) -> str:
    """Install what the plan was checked with; a wheel of vlmplan that lies in the folder comes before the index's."""
    published = shlex.quote(f"vlmplan[train]=={plan.vlmplan_version}")
    lines = [
        "wheels=(vlmplan-*.whl)",
        'if [[ -e "${wheels[0]}" ]]; then',
        '  vlmplan="./${wheels[0]}[train]"',
        "else",
        f"  vlmplan={published}",
        "fi",
        'pip install "$vlmplan" ' + shlex.join(f"{name}=={version}" for name, version in plan.versions.items()),
    ]
    return "\n".join(lines) + "\n"


def _run(plan: Plan) -> str:
    lines: list[str] = []
    if plan.hardware.num_nodes > 1:
        lines += [
            'MASTER_ADDR="$(head -n 1 <<<"$SKYPILOT_NODE_IPS")"',
            'NODE_RANK="$SKYPILOT_NODE_RANK"',
            "export MASTER_ADDR NODE_RANK",
        ]
    lines.append('bash launch.sh --train-data "$TRAIN_DATA" --output-dir "$OUTPUT_DIR"')
    return "\n".join(lines) + "\n"
