"""launch.sh and hostfile."""

import shlex

from vlmplan.emit.command import inputs_text, launch_command
from vlmplan.plain_text import one_line
from vlmplan.plan import Plan
from vlmplan.recipe import engine_name
from vlmplan.units import counted

ORDER, BY_PLACE = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
HERE = 'here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"'


def launch_script(plan: Plan) -> str:
    """A bash script that starts the plan beside it. What is set in the environment already stays."""
    lines = [
        "#!/usr/bin/env bash",
        f"# {one_line(title_of(plan))}. Written by vlmplan {one_line(plan.vlmplan_version)} from plan.json.",
        f"# Arguments go to the trainer: ./launch.sh {inputs_text(plan)} --output-dir DIR",
        "set -euo pipefail",
        HERE,
        *(f"export {name}={_kept(name, value)}" for name, value in plan.environment.items()),
        *cards_by_place(plan.hardware.vendor),
        *_choice_of_cards(plan),
        "exec " + _command(plan) + ' "$@"',
    ]
    return "\n".join(lines) + "\n"


def title_of(plan: Plan) -> str:
    """Model, method, stage and GPUs, for a comment."""
    hardware = plan.hardware
    method = f"{plan.recipe.method.value}, {engine_name(plan.recipe, hardware.num_gpus)}"
    return f"{plan.workload.model.id}: {method}, {hardware.num_gpus} x {hardware.gpu_id}"


def _kept(name: str, value: str) -> str:
    """The user's own value of a variable, else the plan's, which holds nothing that a shell reads (see ``Plan``)."""
    return f'"${{{name}:-{value}}}"'


def cards_by_place(vendor: str) -> list[str]:
    """CUDA counts different cards from the fastest one on, and nvidia-smi, whose numbers people give, by their places
    (CUDA programming guide, environment variables)."""
    return [f"export {ORDER}={_kept(ORDER, BY_PLACE)}"] if vendor == "nvidia" else []


def _choice_of_cards(plan: Plan) -> list[str]:
    """Lines that turn CUDA_VISIBLE_DEVICES into ``--include``, since the launcher ignores it beside ``--num_gpus``."""
    if not plan.has_ranks:
        return []
    hardware = plan.hardware
    if hardware.num_nodes > 1:
        counts = f"--num_nodes {hardware.num_nodes} --num_gpus {hardware.gpus_per_node}"
        return [
            f'nodes=(--hostfile "${{HOSTFILE:-$here/hostfile}}" {counts})',
            "# With NODE_RANK, as job.slurm and sky.yaml set it, this machine alone is started: no ssh is needed.",
            'if [[ -n "${NODE_RANK:-}" ]]; then',
            '  : "${MASTER_ADDR:?the address of the first node}"',
            '  nodes+=(--no_ssh --node_rank "$NODE_RANK")',
            '  nodes+=(--master_addr "$MASTER_ADDR" --master_port "${MASTER_PORT:-29500}")',
            "fi",
        ]
    needed = counted(hardware.gpus_per_node, "GPU")
    lines = [f"cards=(--num_nodes 1 --num_gpus {hardware.gpus_per_node})"]
    port = ['if [[ -n "${MASTER_PORT:-}" ]]; then cards+=(--master_port "$MASTER_PORT"); fi']
    if hardware.vendor == "cpu":
        return [*lines, *port]
    return [
        *lines,
        'if [[ -n "${CUDA_VISIBLE_DEVICES:-}" ]]; then',
        '  IFS=, read -r -a visible <<<"$CUDA_VISIBLE_DEVICES"',
        f"  if ((${{#visible[@]}} < {hardware.gpus_per_node})); then",
        f'    echo "CUDA_VISIBLE_DEVICES is $CUDA_VISIBLE_DEVICES; the plan is for {needed}" >&2',
        "    exit 1",
        "  fi",
        f'  cards=(--include "localhost:$(IFS=,; echo "${{visible[*]:0:{hardware.gpus_per_node}}}")")',
        "fi",
        *port,
    ]


def _command(plan: Plan) -> str:
    """The launch command, with the script's variables in place of their values."""
    words = launch_command(plan, plan_path="$here/plan.json")
    if plan.has_ranks:
        is_alone = plan.hardware.num_nodes == 1
        first = words.index("--num_nodes" if is_alone else "--hostfile")
        words[first : words.index("--quiet")] = ["${cards[@]}" if is_alone else "${nodes[@]}"]
    return " ".join(f'"{word}"' if "$" in word else shlex.quote(word) for word in words)


def hostfile_text(plan: Plan) -> str:
    """A hostfile for DeepSpeed's launcher, with names to be replaced."""
    hardware = plan.hardware
    lines = [
        "# One line per node: the name by which ssh reaches it, and its GPUs. Replace the names.",
        "# Without Slurm and SkyPilot the launcher needs pdsh and ssh without a password; every node needs the same",
        "# Python environment and this folder at the same path.",
        *(f"node-{number} slots={hardware.gpus_per_node}" for number in range(1, hardware.num_nodes + 1)),
    ]
    return "\n".join(lines) + "\n"
