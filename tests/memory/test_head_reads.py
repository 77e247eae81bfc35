"""Heads that a first forward under ZeRO-3 reads outside of their modules, in a replay of the allocator."""

import pytest

from vlmplan.architecture.modules import Embedding, Linear
from vlmplan.architecture.read_weights import ReadHead
from vlmplan.architecture.trace import Fetch
from vlmplan.engines.events import Stream
from vlmplan.memory.head_reads import HeadReads

HEAD_BYTES = 4096
GATHERED = [(5, HEAD_BYTES, Stream.GATHER)]
OF_EMBEDDING = [(7, 64, Stream.GATHER)]


def heads() -> tuple[Fetch, Fetch]:
    """A model that reads its head, and the embedding that shares its weight."""
    embedding, head = Embedding(32, 64), Linear(64, 32)
    head.weight = embedding.weight
    return Fetch(ReadHead(head)), Fetch(embedding)


def test_the_first_forward_gathers_the_head_where_it_reads_it_and_later_ones_where_they_begin():
    reader, _ = heads()
    reads = HeadReads(is_known=False)
    assert reads.at_fetch(reader, GATHERED, is_of_copy=False) == []
    assert reads.read() == [(5, HEAD_BYTES, Stream.DEFAULT)]
    assert reads.read() == []
    assert reads.at_fetch(reader, GATHERED, is_of_copy=False) == GATHERED


def test_the_second_model_has_a_first_forward_of_its_own():
    reader, _ = heads()
    reads = HeadReads(is_known=False)
    reads.at_fetch(reader, GATHERED, is_of_copy=False)
    reads.read()
    assert reads.at_fetch(reader, GATHERED, is_of_copy=True) == []
    assert reads.read() == [(5, HEAD_BYTES, Stream.DEFAULT)]
    assert reads.at_fetch(reader, GATHERED, is_of_copy=True) == GATHERED


def test_a_weight_that_the_embedding_shares_is_whole_for_that_and_again_for_the_head():
    reader, embedding = heads()
    reads = HeadReads(is_known=False)
    assert reads.at_fetch(embedding, OF_EMBEDDING, is_of_copy=False) == OF_EMBEDDING
    reads.at_fetch(reader, GATHERED, is_of_copy=False)
    made, gone, *others = reads.at_fetch(embedding, OF_EMBEDDING, is_of_copy=False)
    assert made[1:] == (HEAD_BYTES, Stream.GATHER)
    assert gone == (made[0], 0, Stream.GATHER)
    assert others == OF_EMBEDDING
    reads.read()
    assert reads.at_fetch(embedding, OF_EMBEDDING, is_of_copy=False) == OF_EMBEDDING


@pytest.mark.parametrize("is_known", [True, False])
def test_nothing_waits_where_the_order_of_modules_is_known_already(is_known):
    reader, _ = heads()
    reads = HeadReads(is_known=is_known)
    prefetched = [*GATHERED, *OF_EMBEDDING]
    assert reads.at_fetch(reader, prefetched, is_of_copy=False) == prefetched
    assert reads.read() == []
