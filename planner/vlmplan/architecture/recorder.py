"""What a run on the tape leaves behind, while it is being run: live bytes, their peaks, work, section by section.

``Recorder`` knows nothing of graphs and gradients. Bytes come and go through ``allocate`` and ``free``; a span is what
lies between two events for the engine; ``trace`` is the record.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from vlmplan.architecture.empty_calls import EmptyCall
from vlmplan.architecture.first_layer import FirstLayer
from vlmplan.architecture.parameter import WeightUser
from vlmplan.architecture.trace import (
    NO_PARTS,
    NO_SPAN,
    Event,
    Fetch,
    KeptCast,
    Kind,
    LastAdapter,
    Parts,
    Prefetch,
    Release,
    Run,
    Section,
    Span,
    Trace,
    Work,
    add_parts,
)
from vlmplan.units import DType


class Recorder:
    """``follows_weights``: note when modules fetch and release their weights, which ZeRO-3 gathers."""

    def __init__(self, *, follows_weights: bool) -> None:
        self.follows_weights = follows_weights
        # While modules announce the weights that they use; those inside a leaf module do not.
        self.fetches_weights = follows_weights
        # The innermost module without weights of its own that runs, of those in the layer while a layer does: the
        # backward of those around it begins once, not in each layer.
        self.empty_call: EmptyCall | None = None
        self.kind = Kind.ACTIVATION
        self.live = [0, 0, 0, 0]
        self.total: int = 0
        self._start: Parts = (0, 0, 0, 0)
        self._start_total = 0
        self._peak_total: int = 0
        self._peak: Parts = (0, 0, 0, 0)
        self._sections: dict[str, Section] = {}
        self._layers: set[str] = set()
        self._schedule: list[Run] = []
        self._key = ""
        self._gap = Section()
        self._after: list[Event] = []
        self._events, self._work = self._gap.forward, self._gap.forward_work
        self._runs_backward = False
        self._drops: list[Event] = []  # of the running span
        # While a checkpoint is replayed, everything after its last saved tensor is skipped, as torch's early stop does.
        self._is_phantom = False
        # Calls, by module and section, of which the last has been through backward (``ends_last_call``).
        self._ended: set[tuple[int, str]] = set()
        self._kept: set[tuple[int, str]] = set()
        # Modules that were run again and whose weights stay until the backward that asked for it is over.
        self._recomputed: list[Any] | None = None
        # First layers by section. While one of them runs, what is older than ``oldest_own`` is not its own.
        self._first_layers: dict[str, FirstLayer] = {}
        self.oldest_own = 0
        # Whether layers leave something until the graph goes.
        self._leaves_to_end = False

    # -- storages ------------------------------------------------------------------------------------------------

    def allocate(self, num_bytes: int) -> int:
        """Count ``num_bytes`` as live, and return them (0 where torch would not run the operation)."""
        if self._is_phantom:
            return 0
        self.live[self.kind] += num_bytes
        self.total += num_bytes
        if self.total > self._peak_total:
            self._peak_total = self.total
            live = self.live
            self._peak = (live[0], live[1], live[2], live[3])
        return num_bytes

    def free(self, num_bytes: int, kind: Kind) -> None:
        self.live[kind] -= num_bytes
        self.total -= num_bytes

    def charged_to(self, kind: Kind) -> "ChargedTo":
        """Charge storages made inside to the component ``kind``."""
        return ChargedTo(self, kind)

    # -- work ----------------------------------------------------------------------------------------------------

    def matmul(self, flops: int, hbm_bytes: int, dtype: DType, count: int = 1) -> None:
        """``count`` equal products that compute in ``dtype``."""
        if not self._is_phantom:
            work, size = self._work, (flops, hbm_bytes)
            products = work.float32_matmuls if dtype is DType.FLOAT32 else work.matmuls
            products[size] = products.get(size, 0) + count
            work.num_kernels += count

    def attend(self, flops: int, hbm_bytes: int, dtype: DType, *, is_causal: bool, num_kernels: int = 1) -> None:
        """Fused attention that computes in ``dtype``."""
        if not self._is_phantom:
            work, causal_flops = self._work, flops if is_causal else 0
            work.attention_flops += flops
            work.causal_attention_flops += causal_flops
            if dtype is DType.FLOAT32:
                work.float32_attention_flops += flops
                work.float32_causal_attention_flops += causal_flops
            work.elementwise_bytes += hbm_bytes
            work.num_kernels += num_kernels

    def move(self, hbm_bytes: int, num_kernels: int = 1) -> None:
        """Operations bound by memory bandwidth that read and write ``hbm_bytes`` in all."""
        if not self._is_phantom:
            self._work.elementwise_bytes += hbm_bytes
            self._work.num_kernels += num_kernels

    def copy_to_or_from_host(self, num_bytes: int) -> None:
        """A tensor of ``num_bytes`` goes over the bus."""
        if not self._is_phantom:
            self._work.host_copies[num_bytes] = self._work.host_copies.get(num_bytes, 0) + 1

    def exchange(self, num_bytes: int) -> None:
        """An all-to-all among the ranks that share a sample, of ``num_bytes`` on each."""
        if not self._is_phantom:
            self._work.exchanges[num_bytes] = self._work.exchanges.get(num_bytes, 0) + 1

    # -- sections ------------------------------------------------------------------------------------------------

    @contextmanager
    def section(self, key: str, index: int | None = None) -> Generator[None]:
        """Record what runs inside as the section ``key`` of the schedule; layers of a stack have an ``index``."""
        self._close_gap()
        self._schedule.append(Run(key, index))
        self._sections[key] = Section()
        outer = self.empty_call
        if index is not None:
            self._layers.add(key)
            self.empty_call = None
        self.enter(key)
        yield
        self.empty_call = outer
        self._flush()
        # What is freed between two sections (a caller's last reference) must not be replayed with the first.
        self._events, self._work, self.oldest_own = self._gap.forward, self._gap.forward_work, 0

    def _close_gap(self) -> None:
        self._flush()
        if self._gap.forward:
            key = f"between.{len(self._schedule)}"
            self._sections[key] = self._gap
            self._schedule.append(Run(key, None))
            self._gap = Section()

    def replays(self, key: str, index: int) -> bool:
        """Whether section ``key`` is known already; then it is scheduled once more without being run."""
        if key not in self._sections:
            return False
        self._schedule.append(Run(key, index))
        return True

    def enter(self, key: str) -> None:
        """What follows belongs to the section ``key``."""
        self._flush()
        self._key = key
        self.oldest_own = self._first_layers[key].start if key in self._first_layers else 0
        section = self._sections[key]
        self._events = section.backward if self._runs_backward else section.forward
        self._work = section.backward_work if self._runs_backward else section.forward_work

    def watch(self, first: FirstLayer) -> None:
        """The running section is a layer that may be reused for later ones."""
        self._first_layers[self._key], self.oldest_own = first, first.start

    def reuse_layer_for(self, key: str, num_bytes: int, kind: Kind) -> None:
        """Reuse the running section for the section ``key``, whose input has ``num_bytes``."""
        self._first_layers[self._key].reuse_for(key, num_bytes, kind)
        self._sections[key] = Section()

    def free_shared(self, num_bytes: int, kind: Kind) -> None:
        """Free what a later layer of the running section's kind would leave, since the layers before it need it."""
        self._close_span()
        self.free(num_bytes, kind)
        if num_bytes:
            self._first_layers[self._key].own[self._runs_backward].add(len(self._events))
        self._close_span()

    def release_input(self, start: int) -> None:
        """The first layer that began at ``start`` releases its input."""
        if self.oldest_own == start:
            self._close_span()
            self._first_layers[self._key].releases[self._runs_backward].add(len(self._events))

    def _flush(self) -> None:
        """Close the running span, and note the views that went in it."""
        self._close_span()
        if self._drops:
            self._events += self._drops
            self._drops.clear()

    def _close_span(self) -> None:
        start, live = self._start, self.live
        end = (live[0], live[1], live[2], live[3])
        if self._peak_total != self._start_total or end != start:
            peak = start if self._peak_total == self._start_total else self._peak
            self._events.append(Span(_difference(peak, start), _difference(end, start)))
            self._start = self._peak = end
            self._start_total = self._peak_total = self.total

    def _begin_span(self) -> None:
        live = self.live
        self._start = self._peak = (live[0], live[1], live[2], live[3])
        self._start_total = self._peak_total = self.total

    def fetch(self, module: WeightUser) -> None:
        if self.follows_weights and not self._is_phantom:
            self._flush()
            events = self._events
            if events and type(events[-1]) is Prefetch:
                events[-1] = Fetch(module, events[-1].times)
            else:
                events.append(Fetch(module))

    def prefetch(self, times: int = 1) -> None:
        """``times`` modules without weights of their own are about to run."""
        if not times or not self.follows_weights or self._is_phantom:
            return
        self._flush()
        events = self._events
        if events and type(events[-1]) is Prefetch:
            events[-1] = Prefetch(events[-1].times + times)
        else:
            events.append(Prefetch(times))

    def release(self, module: WeightUser) -> None:
        if not self.follows_weights or self._is_phantom:
            return
        if self._recomputed is not None and _is_frozen(module):
            if not any(one is module for one in self._recomputed):  # tiles use it once each
                self._recomputed.append(module)
                self._sections[self._key].recomputed_bytes += _weight_bytes(module)
            return
        self._flush()
        self._events.append(Release(module))

    @contextmanager
    def holding_frozen_weights(self) -> Generator[None]:
        """What runs inside runs forward in the backward of one module: frozen weights that it uses stay until that is
        over, as those of a checkpointed layer do."""
        outside, self._recomputed = self._recomputed, []
        yield
        modules, self._recomputed = self._recomputed, outside
        self.end_recomputation(modules)

    def end_recomputation(self, modules: Sequence[WeightUser]) -> None:
        """The module in whose backward a checkpointed layer was run again is done: frozen weights of the layer go.

        Source: ``update_recompute_parameters`` and ``release_sub_module`` in deepspeed 0.19.8
        ``zero/partitioned_param_coordinator.py``.
        """
        if modules:
            self._flush()
            self._events += [Release(module, ends_recomputation=True) for module in modules]

    def keep(self, module: WeightUser) -> None:
        """The backward of ``module`` is over, but no gradient reaches its input, which needs none (token ids, pixels,
        frozen embeddings): nothing releases it before the whole backward ends.

        Source: ``PostBackwardFunctionModule`` in deepspeed 0.19.8 ``zero/parameter_offload.py``.
        """
        key = id(module), self._key
        if key not in self._kept:  # by a call after this one
            self._kept.add(key)
            self._sections[self._key].unreleased_bytes += _weight_bytes(module)

    def begin_call(self, module: WeightUser) -> None:
        """The forward of ``module`` begins."""
        self._ended.discard((id(module), self._key))
        self.fetch(module)

    def end_call(self, module: WeightUser, *, has_backward: bool) -> None:
        """The forward of ``module`` is over; backward never comes to a call that has none."""
        self.release(module)
        if not has_backward:
            self._ended.add((id(module), self._key))

    def ends_last_call(self, module: WeightUser) -> bool:
        """Whether the backward that is over is that of the last call of ``module``: DeepSpeed counts its inputs anew
        in each call, so that the backward of calls before the last releases nothing (``_post_backward_module_hook`` in
        deepspeed 0.19.8 ``zero/parameter_offload.py``)."""
        key = id(module), self._key
        is_last = key not in self._ended
        self._ended.add(key)
        return is_last

    def repeat(self, run: Callable[[], None], times: int) -> None:
        """``run``, and what it leaves ``times`` over: each time the same events, of bytes that are all its own.

        Where nobody asks for the comings and goings of weights, what is live after it is all that more of it change: a
        gradient is added to one that is there already.
        """
        work, self._work = self._work, Work()
        self._flush()
        start, before = len(self._events), list(self.live)
        run()
        self._flush()
        more, events = times - 1, self._events[start:]
        growth = [now - was for now, was in zip(self.live, before, strict=True)]
        if self.follows_weights:
            self._events += events * more
        elif any(growth):
            self._events.append(_repeated(events, growth, more))
        self.live = [now + more * grown for now, grown in zip(self.live, growth, strict=True)]
        self.total = sum(self.live)
        work.add(self._work, times)
        self._work = work
        self._begin_span()

    def end_backward(self) -> None:
        """What is freed from here on (the model's outputs) belongs to what follows backward."""
        self._flush()
        self._events, self.oldest_own = self._after, 0

    @property
    def running_section(self) -> str:
        """The section that runs; between sections the one that has run."""
        return self._key

    @property
    def is_between_sections(self) -> bool:
        """Whether forward is in no section."""
        return self._events is self._gap.forward

    def of_section(self, key: str, values: Mapping[str, int]) -> int:
        """The value of section ``key``, which may reuse another, in ``values`` by the sections that ran; 0 where it has
        none."""
        ran = next((mine for mine, first in self._first_layers.items() if first.later == key), key)
        return values.get(key, values.get(ran, 0))

    def trace(self) -> Trace:
        self._flush()
        for key, first in self._first_layers.items():
            if first.later is not None:
                self._sections[first.later] = first.later_section(self._sections[key])
        trace = Trace(self._sections, self._schedule, self._after)
        if self._leaves_to_end:
            self._free_of_reused_layers(trace)
        return trace

    def _free_of_reused_layers(self, trace: Trace) -> None:
        """What is left of layers that were not run themselves goes with what those leave that were."""
        activations, logits, temporaries, gradients = (
            live - change for live, change in zip(self.live, trace.change, strict=True)
        )
        self._after.append(Span(NO_PARTS, (activations, logits, temporaries, gradients)))


class ChargedTo:
    """The context of ``Recorder.charged_to``, of which a layer has many: generators take several times as long."""

    __slots__ = ("_before", "_kind", "_recorder")

    def __init__(self, recorder: Recorder, kind: Kind) -> None:
        self._recorder, self._kind = recorder, kind

    def __enter__(self) -> None:
        self._before, self._recorder.kind = self._recorder.kind, self._kind

    def __exit__(self, *_: object) -> None:
        self._recorder.kind = self._before


def _weight_bytes(module: WeightUser) -> int:
    return sum([weight.numel * weight.dtype.num_bytes for weight in module.parameters_by_name.values()])


def _is_frozen(module: WeightUser) -> bool:
    return not any(weight.requires_grad for weight in module.parameters_by_name.values())


def _repeated(events: Sequence[Event], growth: Sequence[int], times: int) -> Span:
    """Spans that leave ``growth`` each time, ``times`` over, as one."""
    once = NO_SPAN
    for event in events:
        if not isinstance(event, KeptCast | LastAdapter):  # of which each weight has one
            assert isinstance(event, Span)
            once = once.then(event)
    activations, logits, temporaries, gradients = ((times - 1) * grown for grown in growth)
    before = (activations, logits, temporaries, gradients)
    return Span(add_parts(before, once.peak), add_parts(before, once.delta))


def _difference(left: Parts, right: Parts) -> Parts:
    return (left[0] - right[0], left[1] - right[1], left[2] - right[2], left[3] - right[3])
