"""A data set of a known distribution: what is read is what was drawn, and the worst micro batch that of brute force."""

import math
import resource
from pathlib import Path

import pytest

from known_data import brute_force, drawn_samples, words_at, write_data, write_model
from vlmplan.catalog import load_catalog
from vlmplan.data_plan.data_run import DataRuns
from vlmplan.estimation import Estimator
from vlmplan.request import Request, parse, requested_cluster
from vlmplan.request.setup import requested_setup

pytestmark = pytest.mark.usefixtures("own_cache")
MICRO_BATCH, NUM_RANKS = 4, 2


def asked_for(data: Path, model: Path) -> tuple[Request, DataRuns]:
    options = {"gpu": f"a100-sxm4-80gb:{NUM_RANKS}", "method": "lora", "zero_stage": "none", "micro_batch": MICRO_BATCH}
    request = parse({**options, "model": str(model), "data": data})
    cluster = requested_cluster(request.hardware, load_catalog(()))
    setup = requested_setup(request, cluster, request.model_files)
    estimator = Estimator(setup.workload, setup.recipe)
    found = estimator.estimate(setup.recipe, setup.cluster)
    return request, DataRuns(found, request.from_data.source, estimator=estimator)


def test_every_sample_has_the_tokens_and_patches_that_were_drawn(tmp_path: Path):
    samples = drawn_samples(60)
    request, _ = asked_for(write_data(tmp_path / "data", samples), write_model(tmp_path / "model"))
    source = request.from_data.source
    assert source.dataset.is_exact
    assert [(one.tokens, one.patches, one.num_images) for one in source.found.shapes] == [
        (one.tokens, one.patches, len(one.images)) for one in samples
    ]


def test_what_is_drawn_has_the_distribution_that_its_formula_says():
    words = sorted(one.num_words for one in drawn_samples(20_000))
    for at in (0.25, 0.5, 0.75, 0.95):
        share = sum(one <= words_at(at) for one in words) / len(words)
        assert abs(share - at) < 4 * math.sqrt(at * (1 - at) / len(words)) + 0.005  # four deviations, and whole words


@pytest.mark.long
@pytest.mark.sweep
def test_samples_with_images_are_read_as_fast_as_a_hundred_thousand_in_a_minute_of_two_cores(tmp_path: Path):
    samples = drawn_samples(20_000)
    data, model = write_data(tmp_path / "data", samples), write_model(tmp_path / "model")
    started = cpu_seconds()
    request, data_runs = asked_for(data, model)
    source = request.from_data.source
    data_runs.of(source)
    used = cpu_seconds() - started
    assert used < 2 * 60 * 20_000 / 100_000, f"{used:.0f} seconds of processor time"
    assert [(one.tokens, one.patches) for one in source.found.shapes] == [(one.tokens, one.patches) for one in samples]
    started = cpu_seconds()
    asked_for(data, model)
    assert cpu_seconds() - started < 0.5 * used


@pytest.mark.parametrize("count", [120, pytest.param(4_000, marks=pytest.mark.sweep)])
def test_the_worst_micro_batch_is_that_of_brute_force(count: int, tmp_path: Path):
    samples = drawn_samples(count)
    request, data_runs = asked_for(write_data(tmp_path / "data", samples), write_model(tmp_path / "model"))
    source = request.from_data.source
    data_run = data_runs.of(source)
    found = brute_force(data_runs, source, samples, MICRO_BATCH, NUM_RANKS)
    assert found.peak_bytes <= data_run.worst.peak_bytes <= 1.02 * found.peak_bytes


def cpu_seconds() -> float:
    """Of this process and those that it waited for: what other processes of a busy machine take does not count."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)
