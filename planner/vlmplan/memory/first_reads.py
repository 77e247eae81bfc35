"""What a GPU holds where the first forward of all reads a head outside of its module, with parameters in host memory.

ZeRO-3 gathers such a weight where it is read then, and each rank's shard comes to the GPU beside what is gathered
(``_allgather_params_sequential`` in deepspeed 0.19.8 ``zero/partition_parameters.py``). From then on it is gathered
with the model's own weights, on one GPU without a shard beside it (``ReadHead``).
"""

from vlmplan.architecture.read_weights import ORIGINAL
from vlmplan.architecture.trace import HEAD, Fetch, Span, Trace
from vlmplan.engines.components import Components
from vlmplan.engines.events import Component
from vlmplan.memory.peaks import PeakTracker


def at_first_read(trace: Trace, *, num_ranks: int) -> Components | None:
    """Bytes beside what is resident: the micro batch's tensors up to there, the head and a shard. None where nothing is
    read. All other weights come and go with their modules while no order of them is known."""
    tracker, head = PeakTracker(), None
    for run in trace.schedule:
        if head is not None and run.key.rpartition(".")[2] == HEAD:
            tracker.start_phase()
            own = [one for name, one in head.parameters_by_name.items() if not name.startswith(ORIGINAL)]
            for num_bytes in [one.numel * one.dtype.num_bytes for one in own]:
                tracker.keep(Component.WEIGHTS, num_bytes)
                tracker.transient(Component.WEIGHTS, [-(-num_bytes // num_ranks)])
            return tracker.peak
        for event in trace.sections[run.key].forward:
            if isinstance(event, Span):
                tracker.span(event)
            elif isinstance(event, Fetch) and event.module.reads_head:
                head = event.module
    return None
