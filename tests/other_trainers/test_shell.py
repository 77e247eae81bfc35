"""Shell scripts: parsed as a shell would, and never run."""

import os
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.errors import InputError
from vlmplan.other_trainers.scripts import run_of_script
from vlmplan.other_trainers.shell import commands_of


def words(script: str) -> list[tuple[str, ...]]:
    return [command.words for command in commands_of(script, source="x.sh")]


def test_a_command_goes_on_after_a_backslash_and_ends_at_the_line():
    assert words("swift sft \\\n  --model a \\\r\n  --x 1\necho done") == [
        ("swift", "sft", "--model", "a", "--x", "1"),
        ("echo", "done"),
    ]


def test_quotes_hold_blanks_and_comments_are_left_out():
    assert words("""a 'b  c' "d # e" # f\n# g\nh#i""") == [("a", "b  c", "d # e"), ("h#i",)]


def test_variables_are_replaced_but_not_in_single_quotes():
    script = """M=one\nexport N="two $M"\nrun $M ${N} '$M' "${L:-three}" x${M}y"""
    assert words(script)[-1] == ("run", "one", "two one", "$M", "three", "xoney")


def test_arithmetic_of_whole_numbers_is_computed():
    assert words("n=4\nrun $(expr 16 / $n) $(( (2 + n*$n) % 5 )) $(expr 3 \\* 7)")[-1][1] == "4"
    assert words("n=4\nrun $((3*$n-1))") == [("run", "11")]


def test_variables_before_a_command_are_its_own():
    first, second = commands_of("A=1 B='x y' run one\nrun two", source="x.sh")
    assert dict(first.environment) == {"A": "1", "B": "x y"}
    assert not second.environment


def test_what_only_running_would_tell_is_refused_by_its_text():
    with pytest.raises(InputError, match=r"\$\(cat secret\).*known only to the shell that runs it; write the value"):
        run_of_script("swift sft --model $(cat secret)", source="x.sh")
    with pytest.raises(InputError, match=r"[$]NOWHERE"):
        run_of_script("swift sft --model $NOWHERE", source="x.sh")


def test_nothing_of_a_script_is_run(tmp_path):
    there = tmp_path / "there"
    script = (
        f"touch {there}\nX=$(touch {there})\nY=`touch {there}`\nswift sft --model a --x \"$(( __import__('os') ))\""
    )
    with pytest.raises(InputError):
        run_of_script(script, source="x.sh")
    assert not os.path.exists(there)


def test_a_quote_without_an_end_names_its_line():
    with pytest.raises(InputError, match=r"x\.sh has a quote in line 2 that does not end"):
        words("a\nb 'c\nd")


def test_two_commands_that_train_are_refused():
    with pytest.raises(InputError, match="holds 2 commands that train"):
        run_of_script("swift sft --model a\nswift sft --model b", source="x.sh")


@pytest.mark.parametrize(
    ("script", "trainer", "values"),
    [
        ("swift sft --model a --bf16 --dataset x y", "swift", {"model": "a", "bf16": True, "dataset": ["x", "y"]}),
        ("NPROC_PER_NODE=2 swift pt --model=a", "swift", {"model": "a"}),
        ("llamafactory-cli train f.yaml cutoff_len=9", "llamafactory", {"cutoff_len": "9"}),
        ("trl sft --config f.yaml --max-length 7", "trl", {"max_length": "7"}),
        ("accelerate launch --num_processes 2 examples/sft.py --use_peft", "trl", {"use_peft": True}),
        ("torchrun --nproc_per_node 2 -m swift.cli.sft --model a", "swift", {"model": "a"}),
        ("deepspeed mine.py --per_device_train_batch_size 3", "Trainer", {"per_device_train_batch_size": "3"}),
    ],
)
def test_launchers_and_their_own_options_are_told_from_the_trainers(script, trainer, values):
    run = run_of_script(script, source="x.sh")
    assert (run.trainer, dict(run.values)) == (trainer, values)


def test_more_devices_than_processes_split_the_model():
    with pytest.raises(InputError, match="2 devices for NPROC_PER_NODE=1 put a model's layers on several GPUs"):
        run_of_script("CUDA_VISIBLE_DEVICES=0,1 swift sft --model a", source="x.sh")
    assert run_of_script("CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 swift sft --model a", source="x.sh")


@given(st.text(alphabet="ab $(){}'\"\\\n;&|#=-1/*+<>`~!\0é", max_size=60))
def test_any_text_is_commands_or_one_sentence(text):
    with suppress(InputError):
        assert all(words(text))
