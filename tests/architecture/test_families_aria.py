"""What only Aria has: learned queries for each number of patches, and images padded to a square."""

import pytest

from seeing_families import FAMILIES
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.gpt_oss import LogitRouter
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.tape import Tape
from vlmplan.errors import InputError
from vlmplan.units import DType

CONFIG = FAMILIES["aria"].config
QUERIES = "projector_patch_to_query_dict"


@pytest.mark.parametrize("queries", [{"196": 128}, {"100": 256}])
def test_patches_without_as_many_queries_as_the_processor_writes_tokens_are_refused(queries):
    with pytest.raises(InputError, match="has to give 256 queries to the 196 patches"):
        image_shape({**CONFIG, QUERIES: queries}, None, width=300, height=200)


@pytest.mark.parametrize("queries", [[3], {"many": 256}, {"196": 0}, {}])
def test_queries_that_are_no_numbers_are_refused_by_their_key(queries):
    with pytest.raises(InputError, match=QUERIES):
        build_model({**CONFIG, QUERIES: queries})


@pytest.mark.parametrize(("size", "is_padded"), [((300, 200), True), ((200, 200), False), ((1000, 940), False)])
def test_patches_of_nothing_but_padding_are_masked(size, is_padded):
    shape = image_shape(CONFIG, None, width=size[0], height=size[1])
    assert shape.has_padded_sequences == is_padded
    assert (shape.resized_width, shape.resized_height) == (980, 980)


def test_the_softmax_of_the_router_is_float32_under_autocast():
    router = next(one for _, one in build_model(CONFIG).named_modules() if isinstance(one, LogitRouter))
    tape = Tape(autocast=DType.BFLOAT16)
    with tape.section("router"):
        _, scores, _ = router(tape.tensor((6, router.weight.shape[1]), DType.FLOAT32))
    assert scores.dtype is DType.FLOAT32
