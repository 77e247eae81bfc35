"""Estimators and traces that searches share, and those of the last searches of this process: a page that is asked
again, or advice that tries one change after the other, traces each workload once."""

from collections.abc import Generator, Hashable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from vlmplan.estimation import Estimator
from vlmplan.search.answer import SearchQuery
from vlmplan.search.micro_batches import Speeds, States, TracedBatches

SHARED_FIELDS = ("method", "optimizer", "activation_checkpointing", "vision_activation_checkpointing")
"""Fields of the recipe that searches with the same traces may differ in."""
MOST_KEPT = 4
"""Workloads whose traces a process keeps, 30 to 50 MiB each. A choice: advice repeats no more of its traces with four
than with all of them."""


@dataclass(frozen=True, slots=True)
class SharedTraces:
    """Estimators and traces, shared by searches that differ in hardware, method, optimizer, engine or checkpointing.

    They may differ in nothing else: neither in the workload, nor in what is fixed of adapters, loss and batch sizes.
    """

    estimators: dict[Hashable, tuple[Estimator, States]] = field(
        default_factory=dict[Hashable, tuple[Estimator, States]]
    )
    traced: dict[Hashable, TracedBatches] = field(default_factory=dict[Hashable, TracedBatches])
    speeds: Speeds = field(default_factory=Speeds)


class RecentTraces:
    """The traces of the workloads that were searched for last, each by what searches with the same traces have in
    common."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[tuple[Any, SharedTraces]] = []
        self._lock = Lock()

    @contextmanager
    def of(self, query: SearchQuery) -> Generator[SharedTraces]:
        """The traces of the query, which nothing else has meanwhile: a model is changed while it is traced. What a
        search leaves that ends with an error is not kept."""
        key = query.workload, query.made_for, replace(query.fixed, **dict.fromkeys(SHARED_FIELDS))
        traces = self._taken(key) or SharedTraces()
        yield traces
        with self._lock:
            self._kept = [(key, traces), *self._kept][: self._most]

    def _taken(self, key: Any) -> SharedTraces | None:
        with self._lock:
            for place, (known, traces) in enumerate(self._kept):
                if known == key:
                    del self._kept[place]
                    return traces
        return None


RECENT = RecentTraces(MOST_KEPT)
"""Those of this process."""
