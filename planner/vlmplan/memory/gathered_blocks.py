"""The blocks of whole weights under ZeRO-3 at every event of a micro batch, made once for all replays that they are the
same in: samples of other lengths, other losses, another number of micro batches."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from vlmplan.architecture.storage_log import EngineEvent, Operations
from vlmplan.architecture.trace import Event, Trace, WeightUse
from vlmplan.engines.coordinator.module_order import FOLLOWING_FIRST, RECORDING_FIRST, Begun
from vlmplan.engines.engine import Engine
from vlmplan.memory.blocks import BlockLog, Change
from vlmplan.memory.evaluation import lacked_among

if TYPE_CHECKING:
    from vlmplan.engines.coordinator.gathered_weights import GatheredWeights

Changes = list[Change]
"""What a ``BlockLog`` wrote down."""


class GatheredBlocks:
    """The changes of each micro batch, of engines that share a table of parameters.

    They are known by all that they depend on: which module uses its weights when, and what the coordinator goes by.
    """

    def __init__(self) -> None:
        self._by_uses: dict[Hashable, list[Changes]] = {}
        self._uses: dict[int, tuple[Trace, Hashable]] = {}
        """By the identity of a trace, which stays as long as this."""

    def changes(self, engine: Engine, trace: Trace, operations: Operations, begun: Begun) -> Sequence[Changes]:
        """The blocks at each event about weights, at the end of backward, and after that."""
        if id(trace) not in self._uses:
            self._uses[id(trace)] = trace, _weight_uses(trace)
        key = self._uses[id(trace)][1], engine.gathers_by(begun)
        if key not in self._by_uses:
            log = BlockLog()
            gathered = engine.gathered_weights(trace, log, begun)
            assert gathered is not None
            self._by_uses[key] = _changes(gathered, log, operations)
        return self._by_uses[key]


def _changes(gathered: "GatheredWeights", log: BlockLog, operations: Operations) -> list[Changes]:
    from vlmplan.engines.coordinator.gathered_weights import notify

    changes: list[Changes] = []
    for phase, of_phase in enumerate((operations.forward, operations.backward)):
        if phase:
            gathered.begin_backward()
            changes.append(log.taken())
        for operation in of_phase:
            if isinstance(operation, EngineEvent) and isinstance(operation.event, WeightUse):
                notify(gathered, operation.event, operation.run)
                changes.append(log.taken())
    gathered.end_backward()
    changes.append(log.taken())
    log.free_all()
    return [*changes, log.taken()]


def _weight_uses(trace: Trace) -> Hashable:
    """Which module uses its weights when. The same for samples of other lengths."""
    sections = [(key, _uses(section.forward), _uses(section.backward)) for key, section in trace.sections.items()]
    return tuple(trace.schedule), tuple(sections)


def _uses(events: Iterable[Event]) -> Hashable:
    return tuple((type(event), event) for event in events if isinstance(event, WeightUse))


def weights_before_steps(engine: Engine, trace: Trace, log: BlockLog) -> "Iterator[GatheredWeights | None]":
    """Of forwards of this ``trace`` before the first step: the first records an order."""
    yield engine.gathered_weights(trace, log, RECORDING_FIRST)
    following = engine.gathered_weights(trace, log, FOLLOWING_FIRST)
    if following is not None:
        following.begin_evaluation(secondary_among=lacked_among(engine))
    while True:
        yield following


def weights_of_models(
    engine: Engine, passes: Sequence[tuple[bool, Trace]], log: BlockLog
) -> "Iterator[GatheredWeights | None]":
    """The same of batches that these forwards follow each other over, of the model or of a second one, whose engine has
    an order of its own."""
    first = dict(reversed(passes))
    models = {is_of_copy: weights_before_steps(engine, trace, log) for is_of_copy, trace in first.items()}
    while True:
        for is_of_copy, _ in passes:
            yield next(models[is_of_copy])


def forward_changes(
    gathered: "GatheredWeights | None", operations: Operations, log: BlockLog, *, begins: bool
) -> Iterator[Changes]:
    """The blocks of whole weights before a forward that no backward follows, and at each event about them."""
    if gathered is None:
        return
    from vlmplan.engines.coordinator.gathered_weights import notify

    if begins:
        gathered.begin_forward()
    yield log.taken()
    for operation in operations.forward:
        if isinstance(operation, EngineEvent) and isinstance(operation.event, WeightUse):
            notify(gathered, operation.event, operation.run)
            yield log.taken()
