"""What an estimate says of the hosts' memory and of disks."""

from collections.abc import Iterator
from dataclasses import replace

from vlmplan.estimation import Estimate, keep_last_key
from vlmplan.files.json_reader import JsonDict
from vlmplan.run.training import DEFAULT_KEEP_LAST
from vlmplan.units import counted, gib_text


def host_and_disk_json(estimate: Estimate) -> JsonDict:
    """Memory of a node's host, the disk, and going on from a checkpoint."""
    return {
        "host_bytes_per_node": estimate.host.peak_bytes,
        "host_load_bytes_per_node": estimate.host.load_bytes,
        "host_steady_bytes_per_node": estimate.host.steady_bytes,
        "host_evaluation_bytes_per_node": estimate.host.evaluation_bytes,
        "checkpoint_bytes": estimate.disk.checkpoint_bytes,
        "export_bytes": estimate.disk.export_bytes,
        "nvme_swap_bytes": estimate.disk.nvme_swap_bytes,
        "disk": disk_json(estimate),
        "resume": {
            "fits": estimate.resumes,
            "peak_allocated_bytes": estimate.resume.phase.peak.total,
            "peak_device_bytes": estimate.resume_device_bytes,
            "host_bytes_per_node": estimate.resume_host_bytes,
        },
    }


def disk_json(estimate: Estimate) -> JsonDict:
    """The output folder over the whole run: ``checkpoints_written`` in all (null where the time of the run decides and
    is not known), ``checkpoints_at_once`` at the fullest moment, which has ``peak_bytes``, and what stays at the end.
    ``download_bytes`` of the model are in no output folder."""
    run = estimate.run_disk
    return {
        "checkpoint_bytes": estimate.disk.checkpoint_bytes,
        "result_bytes": estimate.disk.export_bytes if estimate.workload.saving.writes_result else 0,
        "download_bytes": estimate.disk.download_bytes,
        "nvme_swap_bytes": estimate.disk.nvme_swap_bytes,
        "checkpoints_written": run.num_written,
        "checkpoints_at_once": run.num_at_once,
        "checkpoints_kept": run.num_kept,
        "peak_bytes": run.peak_bytes,
        "end_bytes": run.end_bytes,
    }


def host_and_disk_lines(estimate: Estimate) -> Iterator[str]:
    """What hosts need, what going on from a checkpoint needs, and the disk."""
    disk = estimate.disk
    yield host_line(estimate)
    yield resume_line(estimate)
    swap = f", {gib_text(disk.nvme_swap_bytes)} swapped to NVMe" if disk.nvme_swap_bytes else ""
    result = f", {gib_text(disk.export_bytes)} the result" if estimate.workload.saving.writes_result else ""
    yield f"disk: {gib_text(disk.checkpoint_bytes)} a checkpoint{result}{swap}; {run_disk_text(estimate)}"


def run_disk_text(estimate: Estimate) -> str:
    """The output folder at its fullest, and why."""
    run, saving = estimate.run_disk, estimate.workload.saving
    if run.num_at_once == 0:
        return f"the run needs {gib_text(run.peak_bytes)}, without checkpoints"
    needed = f"the run needs up to {gib_text(run.peak_bytes)}"
    if run.num_at_once == 1:
        return f"{needed}, with one checkpoint"
    if saving.keep_last is None:
        fewer = estimate.run_disk_of(replace(saving, keep_last=DEFAULT_KEEP_LAST)).peak_bytes
        less = f"; {keep_last_key(saving)} {DEFAULT_KEEP_LAST} makes that {gib_text(fewer)}"
        return f"{needed}: all {run.num_at_once:,} checkpoints stay{less if fewer < run.peak_bytes else ''}"
    new = " and one is being written" if run.num_at_once > run.num_kept else ""
    num_there = run.num_at_once - bool(new)
    best = ", beside two of the best results" if saving.keeps_best_result else ""
    return f"{needed}, while {counted(num_there, 'checkpoint')} {'is' if num_there == 1 else 'are'} there{new}{best}"


def resume_line(estimate: Estimate) -> str:
    """What going on from a checkpoint needs."""
    what = "rank" if estimate.cluster.node.gpu.is_cpu else "GPU"
    return (
        f"going on from a checkpoint: {gib_text(estimate.resume_device_bytes)} of each {what}, "
        f"{gib_text(estimate.resume_host_bytes)} of host RAM per node while it is read"
    )


def host_line(estimate: Estimate) -> str:
    """What each node's host needs and has."""
    host, node = estimate.host, estimate.cluster.node
    evaluating = ""
    if host.evaluation_bytes:
        evaluating = f", {gib_text(host.steady_bytes + host.evaluation_bytes)} while evaluating"
    if node.host_ram_bytes is not None:
        has = f"it has {gib_text(node.host_ram_bytes)}"
    elif node.host_ram_source is not None:
        has = f"what {node.host_ram_source} has is not known: ask before you rent it"
    else:
        has = "what it has is not known (--host-ram says it)"
    return (
        f"host RAM per node: {gib_text(host.load_bytes)} while loading, {gib_text(host.steady_bytes)} while training"
        f"{evaluating}; {has}"
    )
