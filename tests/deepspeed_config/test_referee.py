"""What vlmplan takes, DeepSpeed takes: random files against DeepSpeed's own parser."""

import contextlib
import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planned import cluster, decided, model_files
from vlmplan.deepspeed_config import KEYS, deepspeed_config, settings_from_ds_config
from vlmplan.deepspeed_config.content import SECTIONS
from vlmplan.deepspeed_config.keys import Key, Kind
from vlmplan.errors import InputError
from vlmplan.request.setup import resolved_recipe

LEAVES = [key for key in KEYS.values() if key.path not in SECTIONS and key.path != "bfloat16"]
VALUES = {
    Kind.FLAG: [True, False],
    Kind.COUNT: [0, 1, 2, 3, 16, 1000, 5e8],
    Kind.NUMBER: [0, 0.5, 0.8, 1.0, 3],
    Kind.TEXT: ["none", "cpu", "fp16", "bf16", "/nvme", "AdamW", "mean", "sum", "warn"],
    Kind.TEXTS: [[], ["a"]],
    Kind.OBJECT: [{}, {"a": 1}],
    Kind.ANY: [0, 1, 2, 3, True, "auto", None, {}, [0.9, 0.999]],
}
ODD = [None, True, 1, 1.5, -1, "x", "true", [], {}, 10**30]


def values(key: Key) -> st.SearchStrategy:
    likely = [*VALUES[key.kind], key.default, *key.only, *key.words]
    return st.sampled_from(likely) | st.sampled_from(likely) | st.sampled_from(ODD)


@st.composite
def files(draw, keys=tuple(LEAVES), most=6):
    """A file of a few keys, as likely with a value of their kind as not."""
    file: dict = {}
    for key in draw(st.lists(st.sampled_from(keys), max_size=most, unique_by=lambda key: key.path)):
        place, names = file, key.path.split(".")
        for name in names[:-1]:
            place = place.setdefault(name, {})
        place[names[-1]] = copy.deepcopy(draw(values(key)))
    return file


def is_taken(file: dict) -> bool:
    """Whether vlmplan plans the file, with what options and rules say of it, and writes it."""
    try:
        config = settings_from_ds_config(copy.deepcopy(file))
        recipe, _ = resolved_recipe(decided(), cluster(), model_files("smollm2-135m"), ds_config=config)
        deepspeed_config(recipe, num_gpus=1, base=config)
    except InputError:
        return False
    return True


def with_batch(file: dict) -> dict:
    """DeepSpeed needs one of the two; vlmplan fills them in."""
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu")
    return file if any(file.get(name) for name in sizes) else file | {sizes[1]: 1}


@settings(max_examples=300)
@given(file=files())
def test_what_deepspeed_refuses_is_refused(deepspeed_reads, file):
    if is_taken(file):
        deepspeed_reads(with_batch(file))


@pytest.mark.one_in(7)
@pytest.mark.parametrize("section", sorted({path.partition(".")[0] for path in SECTIONS}))
def test_what_deepspeed_refuses_of_a_section_is_refused(deepspeed_reads, section):
    keys = tuple(key for key in LEAVES if key.path.startswith(f"{section}."))
    if not keys:
        pytest.skip("its keys are not looked at")

    @settings(max_examples=60)
    @given(file=files(keys=keys, most=4))
    def holds(file):
        if is_taken(file):
            deepspeed_reads(with_batch(file))

    holds()


@pytest.mark.sweep
@settings(max_examples=150)
@given(file=files(keys=tuple(key for key in LEAVES if key.path.startswith("zero_optimization"))))
def test_what_is_written_from_a_file_means_to_deepspeed_what_the_file_means(deepspeed_reads, file):
    if not is_taken(file):
        return
    config = settings_from_ds_config(copy.deepcopy(file))
    recipe, _ = resolved_recipe(decided(), cluster(), model_files("smollm2-135m"), ds_config=config)
    written = deepspeed_config(recipe, num_gpus=1, base=config)
    read, original = deepspeed_reads(written).zero_config, deepspeed_reads(with_batch(file)).zero_config
    for name in original.model_fields_set - {"zero_hpz_partition_size"}:
        assert getattr(read, name) == getattr(original, name) or _is_off(original, name), name


def _is_off(config, name: str) -> bool:
    """An offload block whose device is none, of which nothing else is read."""
    block = getattr(config, name)
    with contextlib.suppress(AttributeError):
        return block.device == "none"
    return False


@pytest.mark.sweep
def test_the_draws_hold_files_that_are_taken_and_files_that_are_not():
    seen = {True: 0, False: 0}

    @settings(max_examples=200)
    @given(file=files())
    def count(file):
        seen[is_taken(file) and bool(file)] += 1

    count()
    assert min(seen.values()) > 20, seen
