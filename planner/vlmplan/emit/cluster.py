"""job.slurm: a batch job that runs the launch.sh beside it, on one machine or on several.

On several every machine starts DeepSpeed's launcher for its own GPUs (``--no_ssh`` in
``deepspeed/launcher/runner.py``), told by NODE_RANK and MASTER_ADDR which it is and where they meet, so that no ssh
between them is needed.

Source: slurm.schedmd.com, sbatch.html and srun.html.
"""

import re

from vlmplan.emit.command import inputs_text
from vlmplan.emit.scripts import title_of
from vlmplan.plain_text import one_line
from vlmplan.plan import Plan
from vlmplan.units import GIB, duration_text

FIRST_PORT, NUM_PORTS = 20_000, 10_000
JOB_NAME_LENGTH = 40
HOST_SPARE_GIB = 8
"""Host memory that a job on a part of a machine asks for beside what the plan says. Assumed."""
CPUS_PER_RANK = 4
"""Processor cores for a rank: itself, and images of the next batches. Assumed; Slurm gives a job one where it is not
told."""


def job_name(plan: Plan) -> str:
    """A name of letters, digits and dashes that Slurm, SkyPilot and clouds take."""
    words = re.sub(r"[^a-z0-9]+", "-", plan.workload.model.id.lower().rpartition("/")[2]).strip("-")
    return f"vlmplan-{words}"[:JOB_NAME_LENGTH].rstrip("-")


def slurm_script(plan: Plan) -> str:
    """A batch script for ``sbatch`` that starts launch.sh once on every node."""
    hardware = plan.hardware
    lines = [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name={job_name(plan)}",
        f"#SBATCH --nodes={hardware.num_nodes}",
        "#SBATCH --ntasks-per-node=1",
        *([] if hardware.vendor == "cpu" else [f"#SBATCH --gpus-per-node={hardware.gpus_per_node}"]),
        *_share_of_machine(plan),
        "#SBATCH --output=%x-%j.log",
        f"# {one_line(title_of(plan))}. Written by vlmplan {one_line(plan.vlmplan_version)} from plan.json.",
        "# Submit it from its folder; arguments go to the trainer:",
        f"#   sbatch job.slurm {inputs_text(plan)} --output-dir DIR",
        *_notes(plan),
        "set -euo pipefail",
        'here="${SLURM_SUBMIT_DIR:-$PWD}"',
        'if [[ ! -f "$here/launch.sh" ]]; then',
        '  echo "no launch.sh in $here; submit job.slurm from its own folder" >&2',
        "  exit 1",
        "fi",
        f'MASTER_PORT="${{MASTER_PORT:-$(({FIRST_PORT} + SLURM_JOB_ID % {NUM_PORTS}))}}"',
        "export MASTER_PORT",
        *_start(plan),
    ]
    return "\n".join(lines) + "\n"


def _share_of_machine(plan: Plan) -> list[str]:
    """Several machines are taken whole, so that nothing slows one of them down; of one as much as the plan needs."""
    if plan.hardware.num_nodes > 1:
        return ["#SBATCH --exclusive", "#SBATCH --mem=0"]
    return [
        f"#SBATCH --cpus-per-task={CPUS_PER_RANK * plan.hardware.gpus_per_node}",
        f"#SBATCH --mem={-(-plan.expected.host_bytes_per_node // GIB) + HOST_SPARE_GIB}G",
    ]


def _notes(plan: Plan) -> list[str]:
    seconds = plan.expected.run_seconds
    time = "" if seconds is None else f"; the plan expects {duration_text(seconds)} of training"
    node = "the node" if plan.hardware.num_nodes == 1 else "every node"
    return [
        f"# Folder, data and Python environment have to be on {node}, and the environment active when you submit.",
        f"# Add --partition, --account and --time as your cluster wants them{time}.",
    ]


def _start(plan: Plan) -> list[str]:
    if plan.hardware.num_nodes == 1:
        return ['exec bash "$here/launch.sh" "$@"']
    return [
        'hosts="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"',
        """MASTER_ADDR="${MASTER_ADDR:-${hosts%%$'\\n'*}}\"""",
        "export MASTER_ADDR",
        "# The task's own shell knows its node.",
        "# shellcheck disable=SC2016",
        "srun --cpu-bind=none --kill-on-bad-exit=1 \\",
        """  bash -c 'NODE_RANK="$SLURM_NODEID" exec bash "$0/launch.sh" "$@"' "$here" "$@\"""",
    ]
