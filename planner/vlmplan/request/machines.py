"""The machines that a request asks for. It may name none that are there, so this needs nothing of models and plans."""

from vlmplan.catalog import Catalog
from vlmplan.errors import InputError, UnavailableError
from vlmplan.gpu_choice import LOCAL, GpuChoice, chosen_node
from vlmplan.hardware import Cluster
from vlmplan.request.parts import HardwareRequest


def requested_cluster(hardware: HardwareRequest, catalog: Catalog) -> tuple[Cluster, list[str]]:
    """The cluster that is asked for, and sentences that the user should see with it.

    Without a GPU it is this machine; InputError where that has none.
    """
    choice = hardware.gpus[0] if hardware.gpus else GpuChoice(name=LOCAL)
    if not hardware.uses_calibration:
        catalog = catalog.without_calibrations()
    try:
        chosen = chosen_node(choice, catalog, host_bytes=hardware.host_bytes)
    except UnavailableError as error:
        if hardware.gpus:
            raise
        raise InputError(f"give --gpu NAME[:COUNT], such as --gpu rtx-4090:2 ({error})") from error
    rate = hardware.inter_node_bytes_per_second
    cluster = Cluster(node=chosen.node, num_nodes=hardware.node_count, inter_node_bytes_per_second=rate)
    return cluster, [*chosen.notes, *network_notes(hardware)]


def network_notes(hardware: HardwareRequest) -> list[str]:
    """What is assumed about several nodes, or said of them where there is one."""
    if hardware.node_count == 1 and hardware.inter_node_gbit is not None:
        return [
            f"--inter-node-gbit {hardware.inter_node_gbit:g} is of several machines, and --num-nodes is 1: it changes "
            f"nothing of this plan"
        ]
    if hardware.node_count == 1 or hardware.inter_node_gbit is not None:
        return []
    from vlmplan.communication import ASSUMED_NETWORK_BYTES_PER_SECOND

    gbit = ASSUMED_NETWORK_BYTES_PER_SECOND * 8e-9
    return [f"the network between nodes is taken as {gbit:.0f} Gbit/s per node; --inter-node-gbit says otherwise"]
