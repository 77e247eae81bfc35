"""What gathers that are under way take when they are ended: another module came than was expected."""

from collections.abc import Callable

import pytest

from vlmplan.engines.coordinator.live_bytes import GatheredBytes
from vlmplan.engines.coordinator.records import GatheredModule, GatheredWeight
from vlmplan.engines.events import NULL_SINK, Sink, Stream


def weight(number: int, numel: int) -> GatheredWeight:
    return GatheredWeight((number, None), numel, 2 * numel, 2 * numel, is_trained=False)


def test_buffers_of_gathers_that_are_ended_stay_until_the_last_of_them_is_over():
    first, second = [weight(1, 700), weight(2, 50)], [weight(3, 300), weight(4, 11)]
    gathered = GatheredBytes({one.key: one for one in first + second}, num_ranks=2, offloads=False, sink=NULL_SINK)
    gathered._start(first)
    gathered._start(second)
    gathered._end_gathers(spares_used=False)
    buffers = 2 * (700 + 50) + 2 * (300 + 11)
    assert gathered._peak == buffers + 2 * (700 + 50)  # and then the smaller ones of the second
    assert gathered.live_bytes == 0


def test_what_is_in_use_is_spared():
    kept, other = weight(1, 700), weight(2, 50)
    gathered = GatheredBytes({kept.key: kept, other.key: other}, num_ranks=2, offloads=False, sink=NULL_SINK)
    gathered._start([kept, other])
    kept.users.add(GatheredModule((3, None), [kept], 700))
    gathered._end_gathers(spares_used=True)
    assert gathered.live_bytes == 2 * 700


@pytest.mark.parametrize("ends", [lambda one: one._end_gathers(spares_used=False), lambda one: one.partition_all()])
def test_what_no_module_waits_for_is_copied_out_on_the_stream_that_computes(ends: Callable[[GatheredBytes], None]):
    streams = list[tuple[int, Stream]]()

    class Streams(Sink):
        def allocate(self, owner, component, num_bytes, stream=Stream.DEFAULT):
            streams.append((num_bytes, stream))

    first, second = weight(1, 700), weight(2, 50)
    gathered = GatheredBytes({one.key: one for one in (first, second)}, num_ranks=2, offloads=False, sink=Streams())
    gathered._start([first, second])
    ends(gathered)
    assert streams == [(1500, Stream.GATHER), (1400, Stream.DEFAULT), (100, Stream.DEFAULT)]
