"""What launch passes on is what the trainer takes."""

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.errors import InputError
from vlmplan.launch.options import DATA_SOURCES, DEFAULT_KEEP_LAST, TrainerOptions
from vlmplan_trainer.options import Options, parse_options

COUNTS = st.none() | st.integers(1, 10**6)
RATES = st.none() | st.floats(0, 1)
OPTIONS = st.builds(
    TrainerOptions,
    output_dir=st.just(Path("/out put")),
    dummy_data=st.integers(1, 10**6),
    eval_data=st.none() | st.just(Path("/eval.jsonl")),
    **dict.fromkeys(("save_every", "keep_last", "max_steps", "seed", "measured_steps"), COUNTS),
    **dict.fromkeys(("learning_rate", "weight_decay", "warmup_fraction"), RATES),
    **{name: st.booleans() for name in ("resume", "skip_bad_samples", "random_weights", "merge_adapters")},
    schedule=st.none() | st.sampled_from(["cosine", "linear", "constant"]),
)


@given(OPTIONS)
def test_the_trainer_reads_every_option_as_it_was_meant(options: TrainerOptions):
    read = parse_options(["--plan", "p.json", *options.arguments()])
    for item in fields(options):
        meant = getattr(options, item.name)
        if meant is not None:
            assert getattr(read, item.name) == meant


def test_launch_and_trainer_have_the_same_options_and_keep_the_same_number():
    assert {item.name for item in fields(TrainerOptions)} | {"plan"} == {item.name for item in fields(Options)}
    default = next(item.default for item in fields(Options) if item.name == "keep_last")
    assert TrainerOptions(output_dir=Path("o"), dummy_data=1).num_kept == default == DEFAULT_KEEP_LAST


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
        ({"seed": -1}, "--seed is -1; 0 or more"),
        ({"learning_rate": float("nan")}, "--learning-rate is nan; 0 or more"),
        ({"weight_decay": float("inf")}, "--weight-decay is inf"),
        ({"warmup_fraction": 1.5}, "--warmup-fraction is 1.5; a number from 0 to 1"),
    ],
)
def test_what_the_trainer_would_refuse_is_refused_before_anything_starts(values, sentence: str):
    with pytest.raises(InputError, match=sentence):
        TrainerOptions(output_dir=Path("o"), dummy_data=1, **values)
    words = [word for name, value in values.items() for word in ("--" + name.replace("_", "-"), str(value))]
    with pytest.raises(InputError):
        parse_options(["--plan", "p", "--output-dir", "o", "--dummy-data", "1", *words])
