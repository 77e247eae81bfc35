"""What gathered weights take on a GPU under ZeRO-3: their storages, flat buffers of collectives, views autograd saves.

Which weights come and go when is ``gathered_weights``'s.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from vlmplan.architecture.trace import Drop, Hold, Run
from vlmplan.engines.coordinator.records import Gather, GatheredStorage, GatheredWeight, Key
from vlmplan.engines.events import NULL_SINK, Component, Sink, Stream


class GatheredBytes:
    """The gathered weights of one rank, by their bytes. Weights up to the persistence threshold are always whole and
    not counted here.

    ``live_bytes`` is what they take now, flat buffers of collectives included; ``gathers`` are those since the list was
    emptied: what was live just after, and bytes of the flat buffer, of which a shard that comes from the host is one
    rank's part.
    """

    places: Mapping[Key, int] = MappingProxyType({})
    """Those of the weights in the order in which they were sharded, which is theirs in a flat buffer (``ds_id``). A
    second model has none, and its weights stay in the order of their use."""

    def __init__(self, weight_by_key: dict[Key, GatheredWeight], *, num_ranks: int, offloads: bool, sink: Sink) -> None:
        """``offloads``: this rank's shards are on the host, and come to the GPU before they are sent."""
        self._weights, self._num_ranks, self._offloads = weight_by_key, num_ranks, offloads
        self._sink = None if sink is NULL_SINK else sink
        self._under_way: dict[Gather, None] = {}  # and those of whose weights some have not been waited for
        self._views: dict[Key, tuple[GatheredWeight, GatheredStorage]] = {}
        self._num_available = 0  # elements that are whole or under way
        self.num_small = 0
        """Those of small weights, which are counted until all have been gathered once."""
        self._peak = 0
        self.live_bytes = 0
        self._secondary_among = 1
        self.secondary_bytes = 0
        """Of secondary partitions that have come back, which are live too."""
        self.gathers: list[tuple[int, int]] = []
        self.meets_reads = False
        """Whether this is the very first forward, which tells DeepSpeed of modules that read weights of others."""

    @property
    def weights(self) -> Collection[Key]:
        """Keys of the weights that come and go, over all layers."""
        return self._weights.keys()

    @property
    def whole_weights(self) -> list[Key]:
        """Keys of the weights that are whole or will be soon."""
        return [
            weight.key for weight in self._weights.values() if weight.storage is not None or weight.gather is not None
        ]

    @property
    def small_bytes(self) -> dict[Key, int]:
        """Those of the small weights that are whole."""
        whole = ((weight.key, weight.storage) for weight in self._weights.values() if weight.is_small)
        return {key: storage.num_bytes for key, storage in whole if storage is not None}

    def hold(self, event: Hold, run: Run) -> None:
        """Autograd saves a view. ``F.linear`` does; ``stage3_max_live_parameters`` knows nothing of it."""
        weight = self._weights.get((id(event.parameter), event.parameter.layer_of(run.layer)))
        if weight is not None and weight.storage is not None:
            weight.storage.num_views += 1
            self._views[(event.handle, run.layer)] = weight, weight.storage

    def drop(self, event: Drop, run: Run) -> None:
        """The backward that needed the view has run."""
        weight, storage = self._views.pop((event.handle, run.layer), (None, None))
        if weight is None or storage is None:
            return
        storage.num_views -= 1
        if storage.is_released and not storage.num_views:
            self._free(storage)

    def partition_all(self, order: Iterable[Key] = ()) -> int:
        """The optimizer's step begins, or a checkpoint: nothing stays whole (``_partition_all_parameters``), and what
        is under way arrives before it goes. ``order``: of the model's weights. Returns the most that was live."""
        self._peak = self.live_bytes
        for key in dict.fromkeys([*order, *self._weights]):
            weight = self._weights.get(key)
            if weight is None:  # it is always whole
                continue
            if weight.gather is not None:
                self._wait(weight, weight.gather, Stream.DEFAULT)
            if weight.storage is not None:
                self._take(weight, weight.storage)
        return self._peak

    def _start(self, weights: list[GatheredWeight], stream: Stream = Stream.GATHER) -> None:
        """Start one collective. A single weight lands in its own buffer; several share a flat one.

        A rank that is alone brings each weight from the host to where it stays (``NoGatherCoalescedHandle``).
        """
        is_alone = self._num_ranks == 1
        flat = 0 if is_alone else sum([weight.aligned_bytes for weight in weights])
        is_single = len(weights) == 1
        if self.places:
            weights = sorted(weights, key=lambda weight: self.places.get(weight.key, 0))
        storages = {weight: GatheredStorage(flat if is_single and flat else weight.num_bytes) for weight in weights}
        gather = Gather(flat, len(weights), storages=storages)
        self._under_way[gather] = None
        for weight in weights:
            weight.gather = gather
            self._num_available += weight.numel
            if weight.is_small:
                self.num_small += weight.numel
        if is_alone or is_single:
            for storage in storages.values():
                self._allocate(storage, storage.num_bytes, stream)
        else:
            self._allocate(gather, flat, stream)
        if self._offloads and not is_alone and self._sink is not None:
            shards = [weight.aligned_bytes // self._num_ranks for weight in weights]
            self._sink.transient(Component.WEIGHTS, shards, stream)
        self._peak = max(self._peak, self.live_bytes)
        if not is_alone:
            self.gathers.append((self.live_bytes, flat))

    def begin_with_small(self) -> None:
        """The optimizer's step has made small weights whole."""
        for weight in self._weights.values():
            if weight.is_small:
                weight.storage = GatheredStorage(weight.num_bytes)
                self._allocate(weight.storage, weight.num_bytes)
                self.pass_small(weight.numel)

    def pass_small(self, numel: int) -> None:
        """Small weights of so many elements have been gathered by layers that the schedule leaves out."""
        self._num_available += numel
        self.num_small += numel

    def _wait(self, weight: GatheredWeight, gather: Gather, stream: Stream = Stream.GATHER) -> None:
        """The collective is needed: weights are copied out of a shared buffer, which is freed with its last user."""
        weight.gather = None
        self._copy_out(gather, stream)
        gather.num_waiting -= 1
        if gather.num_waiting == 0:
            self._end_gather(gather)

    def _end_gathers(self, *, spares_used: bool) -> None:
        """All collectives are waited for, one after another, and their weights go, but for those in use, where it
        ``spares_used``. The buffers stay until the last is over (``_clean_inflight_param_registry``, which no module
        waits for, so that copies are made on the stream that computes)."""
        ended = list(self._under_way)
        for gather in ended:
            self._copy_out(gather, Stream.DEFAULT)
            for weight, storage in gather.storages.items():
                if weight.gather is gather:
                    weight.gather = None
                    if not (spares_used and weight.users):
                        self._take(weight, storage)
        for gather in ended:
            gather.num_waiting = 0
            self._end_gather(gather)

    def _end_gather(self, gather: Gather) -> None:
        del self._under_way[gather]
        self.live_bytes -= gather.flat_bytes
        if self._sink is not None:
            self._sink.free(gather)

    def _copy_out(self, gather: Gather, stream: Stream) -> None:
        if not gather.is_done:
            gather.is_done = True
            for other, storage in gather.storages.items():
                other.storage = storage
            if len(gather.storages) == 1:
                gather.flat_bytes = 0  # it is the weight's own
            elif self._num_ranks > 1:
                for storage in gather.storages.values():
                    self._allocate(storage, storage.num_bytes, stream)
        self._peak = max(self._peak, self.live_bytes)

    def _allocate(self, owner: GatheredStorage | Gather, num_bytes: int, stream: Stream = Stream.GATHER) -> None:
        self.live_bytes += num_bytes
        if self._sink is not None:
            self._sink.allocate(owner, Component.WEIGHTS, num_bytes, stream)

    def _take(self, weight: GatheredWeight, storage: GatheredStorage) -> None:
        """The whole weight goes, but for views of it, when it has its secondary partition (``_partition`` in
        deepspeed 0.19.8 ``zero/partition_parameters.py``)."""
        if not weight.has_secondary:
            self._make_secondary(weight)
        weight.storage = None
        storage.is_released = True
        self._num_available -= weight.numel
        if not storage.num_views:
            self._free(storage)

    def _free(self, storage: GatheredStorage) -> None:
        self.live_bytes -= storage.num_bytes
        if self._sink is not None:
            self._sink.free(storage)

    # -- secondary partitions ------------------------------------------------------------------------------------

    def lack_secondary(self, among: int) -> None:
        """Trained weights lack their secondary partitions, which ``among`` ranks share; 1: they have all."""
        self._secondary_among = among
        for weight in self._weights.values():
            weight.has_secondary = among == 1 or not weight.is_trained

    def secondary_bytes_of(self, keys: Iterable[Key]) -> int:
        """Bytes of the secondary partitions that are back when each of these weights has been released."""
        if self._secondary_among == 1:
            return 0
        weights = [self._weights[key] for key in keys]
        return sum([weight.aligned_bytes // self._secondary_among for weight in weights if weight.is_trained])

    def _make_secondary(self, weight: GatheredWeight) -> None:
        num_bytes = weight.aligned_bytes // self._secondary_among
        weight.has_secondary = True
        self.live_bytes += num_bytes
        self.secondary_bytes += num_bytes
        if self.live_bytes > self._peak:
            self._peak = self.live_bytes
        if self._sink is not None:
            self._sink.allocate(("secondary", weight.key), Component.WEIGHTS, num_bytes)  # where the module is done
