"""What launch passes on is what the trainer takes."""

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.errors import InputError
from vlmplan.run.training import DATA_SOURCES, MONITOR_PACKAGES, SCHEDULES, SPEECH_TASKS, TrainerOptions
from vlmplan_trainer.options import Options, parse_options

COUNTS = st.integers(1, 10**6)
RATES = st.floats(0, 1)
OPTIONS = st.builds(
    TrainerOptions,
    output_dir=st.just(Path("/out put")),
    dummy_data=st.integers(1, 10**6),
    eval_data=st.none() | st.just(Path("/eval.jsonl")),
    image_folder=st.none() | st.just(Path("/images")),
    **dict.fromkeys(("save_every", "max_steps"), st.none() | COUNTS),
    **dict.fromkeys(("keep_last", "seed", "measured_steps"), COUNTS),
    **dict.fromkeys(("learning_rate", "save_minutes"), st.none() | RATES),
    **dict.fromkeys(("weight_decay", "warmup_fraction"), RATES),
    adapter=st.none() | st.just(Path("/adapter")),
    **{name: st.booleans() for name in ("resume", "skip_bad_samples", "group_by_length", "merge_adapters")},
    schedule=st.sampled_from(SCHEDULES),
    language=st.none() | st.just("german"),
    speech_task=st.none() | st.sampled_from(SPEECH_TASKS),
    monitor=st.lists(st.sampled_from(sorted(MONITOR_PACKAGES)), unique=True).map(tuple),
) | st.builds(TrainerOptions, output_dir=st.just(Path("/out")), dummy_data=COUNTS, random_weights=st.booleans())


@given(OPTIONS)
def test_the_trainer_reads_every_option_as_it_was_meant(options: TrainerOptions):
    read = parse_options(["--plan", "p.json", *options.arguments()])
    for item in fields(options):
        assert getattr(read, item.name) == getattr(options, item.name)


def test_launch_and_trainer_have_the_same_options_and_defaults():
    assert {item.name for item in fields(TrainerOptions)} | {"plan"} == {item.name for item in fields(Options)}
    asked = TrainerOptions(output_dir=Path("o").absolute(), dummy_data=1)
    assert asked.arguments() == ["--output-dir", str(asked.output_dir), "--dummy-data", "1"]
    read = parse_options(["--plan", "p.json", *asked.arguments()])
    assert {item.name: getattr(read, item.name) for item in fields(asked)} == {
        item.name: getattr(asked, item.name) for item in fields(asked)
    }


def test_paths_are_passed_on_whole_since_other_nodes_start_elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = TrainerOptions(output_dir=Path("o"), train_data=Path("a b.jsonl")).arguments()
    assert words == ["--output-dir", str(tmp_path / "o"), "--train-data", str(tmp_path / "a b.jsonl")]


@pytest.mark.parametrize("given_sources", [(), DATA_SOURCES])
def test_data_comes_from_one_place(given_sources):
    values = {"train_data": Path("d"), "dummy_data": 2}
    with pytest.raises(InputError, match="one of --train-data, --dummy-data is needed"):
        TrainerOptions(output_dir=Path("o"), **{name: values[name] for name in given_sources})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"save_every": 0}, "--save-every is 0; 1 or more"),
        ({"save_minutes": -1.0}, "--save-minutes is -1; 0 or more"),
        ({"seed": -1}, "--seed is -1; 0 or more"),
        ({"learning_rate": float("nan")}, "--learning-rate is nan; 0 or more"),
        ({"weight_decay": float("inf")}, "--weight-decay is inf"),
        ({"learning_rate": 1e30}, r"--learning-rate is 1e\+30; at most 1,000 is allowed"),
        ({"save_minutes": 1e308}, r"--save-minutes is 1e\+308; at most 1,000,000 is allowed"),
        ({"warmup_fraction": 1.5}, "--warmup-fraction is 1.5; a number from 0 to 1"),
    ],
)
def test_what_the_trainer_would_refuse_is_refused_before_anything_starts(values, sentence: str):
    with pytest.raises(InputError, match=sentence):
        TrainerOptions(output_dir=Path("o"), dummy_data=1, **values)
    words = [word for name, value in values.items() for word in ("--" + name.replace("_", "-"), str(value))]
    with pytest.raises(InputError):
        parse_options(["--plan", "p", "--output-dir", "o", "--dummy-data", "1", *words])


def test_adapters_cannot_be_merged_into_random_weights():
    with pytest.raises(InputError, match="--merge-adapters needs a checkpoint to merge into"):
        TrainerOptions(output_dir=Path("o"), dummy_data=2, merge_adapters=True, random_weights=True)


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({}, 30 * 60),
        ({"save_every": 7}, None),
        ({"save_every": 7, "save_minutes": 3.0}, 3 * 60),
        ({"save_minutes": 0.0}, None),
    ],
)
def test_a_checkpoint_is_due_after_half_an_hour_unless_told_otherwise(values, seconds: float | None):
    assert TrainerOptions(output_dir=Path("o"), dummy_data=1, **values).save_seconds == seconds
