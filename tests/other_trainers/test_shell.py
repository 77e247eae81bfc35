"""Shell scripts: parsed as a shell would, and never run."""

import os
import shutil
import subprocess
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laws import law
from vlmplan.errors import InputError
from vlmplan.other_trainers.record import Unwritten
from vlmplan.other_trainers.scripts import OTHER, looks_like_script, run_of_script
from vlmplan.other_trainers.shell import commands_of
from vlmplan.other_trainers.shell_variables import MAX_CHARACTERS, UNKNOWN, written


def words(script: str) -> list[tuple[str, ...]]:
    return [command.words for command in commands_of(script, source="x.sh")]


def test_a_command_goes_on_after_a_backslash_and_ends_at_the_line():
    assert words("swift sft \\\n  --model a \\\r\n  --x 1\necho done") == [
        ("swift", "sft", "--model", "a", "--x", "1"),
        ("echo", "done"),
    ]


def test_quotes_hold_blanks_and_comments_are_left_out():
    assert words("""a 'b  c' "d # e" # f\n# g\nh#i""") == [("a", "b  c", "d # e"), ("h#i",)]


def test_comments_between_the_lines_of_a_command_are_commands_that_print_nothing():
    script = 'swift sft \\\n  `# don\'t` \\\n  --model a `#b` "x`# c`" \\\n  --n 1'
    assert words(script) == [("swift", "sft", "--model", "a", "x", "--n", "1")]


def test_variables_are_replaced_but_not_in_single_quotes():
    script = """M=one\nexport N="two $M"\nrun $M "${N}" '$M' "\\$M" "${L:-three}" x${M}y"""
    assert words(script)[-1] == ("run", "one", "two one", "$M", "$M", "three", "xoney")


def test_defaults_may_stand_in_quotes_and_set_what_has_none():
    script = """A=1\nN=${N:-"two $A"}\n: "${M:=three}"\nrun "$N" $M ${A:+four} ${B:+five} ${B:-'six'}"""
    assert words(script)[-1] == ("run", "two 1", "three", "four", "six")


def test_a_script_is_taken_to_be_started_without_words_of_its_own():
    loop = 'while [[ $# -gt 0 ]]; do case $1 in --n) N="$2"; shift 2;; *) shift;; esac; done'
    branches = 'if [ -n "$1" ] && [ -d "$1" ]; then N=3; fi\nif [ "x$2" = "x" ]; then M=4; fi'
    assert words(f"N=2\n{loop}\n{branches}\nrun $N $M")[-1] == ("run", "2", "4")
    assert UNKNOWN in words('run "$1"')[0][1]


def test_arithmetic_of_whole_numbers_is_computed():
    assert words("n=4\nrun $(expr 16 / $n) $(( (2 + n*$n) % 5 )) $(expr 3 \\* 7)")[-1][1] == "4"
    assert words("n=4\nrun $((3*$n-1))") == [("run", "11")]


def test_variables_stand_in_arithmetic_by_their_bare_names_as_whole_numbers():
    assert words("BATCH=4\nrun $((16 / BATCH))") == [("run", "4")]
    assert words("n=4 m=-3\nrun $((n*m + $n - ${n} * (m + 1)))") == [("run", "0")]
    assert words("n=4\nrun $[16 / n] $[ 2*$n ]") == [("run", "4", "8")]  # as it was written before
    for script in ("run $((16 / BATCH))", "A=1+2\nrun $((A * 2))", "A=b\nrun $((A))", "A='$B'\nrun $((A))"):
        run = run_of_script(script.replace("run ", "swift sft --model "), source="x.sh")
        assert isinstance(run.values["model"], Unwritten)


def test_an_array_is_the_words_that_it_holds():
    script = (
        """A=(python3)\nB=(k=1 # don't\n  l="x y"\n)\nB+=(m=$N)\nE=()\n"${A[@]}" -m p "${E[@]}" "${B[@]}" ${A[*]}"""
    )
    assert words(script) == [("python3", "-m", "p", "k=1", "l=x y", f"m={UNKNOWN}", "python3")]
    (command,) = commands_of(script, source="x.sh")
    assert [written(word) for word in command.words if UNKNOWN in word] == ["m=$N"]
    for unsure in ("if x; then A+=(y); fi", "A=($(x))", "unset A"):
        assert any(UNKNOWN in word for word in words(f'A=(z)\n{unsure}\nrun "${{A[@]}}"')[-1])


def test_of_branches_between_known_values_one_is_taken():
    script = """D=${D:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
    case "$D" in npu | tpu) T=4;; gpu)
    if [ 2 -gt 1 ] && { [ a = b ] || [[ -n $D ]]; }; then T=2; else T=3; fi;; *) T=1;; esac
    if [ "$D" = npu ]; then swift sft; elif [ ! -z "$D" ]; then run $T; fi"""
    assert words(script) == [("run", "2")]


@pytest.mark.parametrize(
    "test", ["[ -f x ]", "[ $X = a ]", "x", "[ a = a ] && x", "[[ ab == a* ]]", "[ a = a -a b = b ]", "! [ -d x ]"]
)
def test_a_branch_on_what_is_not_known_is_open(test):
    assert words(f"R=1\nif {test}; then R=2; fi\nrun $R")[-1] == ("run", UNKNOWN)
    assert words(f"R=1\nif [ a = b ] && {test}; then R=2; fi\nrun $R")[-1] == ("run", "1")


def test_nothing_is_decided_where_a_value_may_change_before_the_next_run():
    assert words("A=1\nfor i in 1 2; do if [ $A = 1 ]; then R=1; else R=2; fi; A=2; done\nrun $R")[-1] == (
        "run",
        UNKNOWN,
    )
    assert words("A=1\nf() { if [ $A = 1 ]; then R=1; else R=2; fi; }\nA=2\nf\nrun $R")[-1] == ("run", UNKNOWN)


def test_variables_before_a_command_are_its_own():
    first, second = commands_of("A=1 B='x y' run one\nrun two", source="x.sh")
    assert dict(first.environment) == {"A": "1", "B": "x y"}
    assert not second.environment


@pytest.mark.parametrize(
    "script",
    [
        "A=1\nrun",
        "A=1 \\\n# a comment ends the command\nrun",
        "export A=1\nunset A\nA=1\nrun",
        "export -n A=1\nrun",
        "set -a\nset +a\nA=1\nrun",
        "set -e\nA=1\nrun",
    ],
)
def test_what_is_not_exported_no_command_gets(script):
    """As bash 5.2 has it: ``env`` in the place of ``run`` shows none of them."""
    assert "A" not in commands_of(script, source="x.sh")[-1].environment


@pytest.mark.parametrize(
    "script",
    [
        "export A=1\nrun",
        "A=1\nexport A\nrun",
        "export A\nA=1\nrun",
        "declare -x A=1\nrun",
        "set -a\nA=1\nrun",
        "set -ea\nA=1\nset +a\nrun",
        "set -o allexport\nA=1\nrun",
        "export A=2\nA=1 \\\n# a comment\nrun",
        "A=1 run",
    ],
)
def test_what_is_exported_commands_get(script):
    assert commands_of(script, source="x.sh")[-1].environment["A"] == "1"


@pytest.mark.parametrize(
    "words", ["$(cat secret)", "$NOWHERE", "--model a $MORE", "--bf16 $EXTRA_ARGS", "--$KEY 1", "--model a b $MORE"]
)
def test_what_may_be_options_and_only_running_would_tell_is_refused_by_its_text(words):
    with pytest.raises(InputError, match=r"[$].*known only to the shell that runs it; write the value"):
        run_of_script(f"swift sft {words}", source="x.sh")


def test_a_value_that_only_running_would_tell_is_kept_by_its_text():
    script = 'args="--model $1 --output_dir out/$2"\nswift sft $args --lora_rank=$R --seed ${S}1 --system $(cat x) $@'
    values = run_of_script(script, source="x.sh").values
    assert values == {
        "model": "$1",
        "output_dir": "out/$2",
        "lora_rank": "$R",
        "seed": "${S}1",
        "system": "$(cat x)",
    }
    assert [key for key in values if not isinstance(values[key], Unwritten)] == ["output_dir"]


def test_of_an_option_that_is_there_twice_the_last_counts():
    script = "swift sft --model a --lora_rank 8 --dataset x y --lora_rank 16 --dataset z --bf16 true --bf16"
    assert run_of_script(script, source="x.sh").values == {
        "model": "a",
        "lora_rank": "16",
        "dataset": "z",
        "bf16": True,
    }


def test_the_folder_of_a_script_is_known_by_dirname(tmp_path):
    for text in ('$(dirname "$0")/ds.json', "$(dirname ${BASH_SOURCE[0]})/ds.json"):
        script = f"swift sft --model a --deepspeed {text}"
        assert run_of_script(script, source="x.sh", folder=tmp_path).values["deepspeed"] == f"{tmp_path}/ds.json"


def test_an_option_that_begins_a_line_of_its_own_is_told_with_what_ended_the_command_before_it():
    for end in ("\\\n  # --seed 1 \\\n", "\\ \n", "\n"):
        with pytest.raises(InputError, match=r"line [34] begins with --lora_rank.*ends the command of line 2"):
            run_of_script(f"#!/bin/bash\nswift sft --model a {end}  --lora_rank 8", source="x.sh")
    assert run_of_script("swift sft --model a \\", source="x.sh").values == {"model": "a"}


def test_nothing_of_a_script_is_run(tmp_path):
    there = tmp_path / "there"
    script = (
        f"touch {there}\nX=$(touch {there})\nY=`touch {there}`\nswift sft --model a --x \"$(( __import__('os') ))\""
    )
    assert isinstance(run_of_script(script, source="x.sh").values["x"], Unwritten)
    assert not os.path.exists(there)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "`cat secret`",
            "${A%.*}",
            "${A[@]}",
            "${1}",
            "${B:-${C}}",
            "<(cat secret)",
            "$(echo $(cat secret))",
            "$'a'",
        ),
        *("$((True))", "$((1_0))", "$((0x5or 3))", "$((1 is 1))", "$((010))", "$(expr x : y)"),
    ],
)
def test_every_expansion_that_is_not_followed_is_told_by_its_text(text, capfd):
    value = run_of_script(f"A=b.c\nswift sft --model {text}", source="x.sh").values["model"]
    assert isinstance(value, Unwritten)
    assert value == text
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "change",
    [
        *("if x; then R=4; else R=8; fi", "[ -n x ] && R=4", "[ -n x ] || R=4", "[[ x ]] && export R=4"),
        *(
            "for R in 4 16; do :; done",
            "set_r() { R=4; }",
            "function set_r { R=4; }",
            "{ R=4; }",
            "while x; do R=4; done",
        ),
        *("case $(x) in\na) R=4;;\n*) R=16;;\nesac", "read R", "let R=4", "((R = 4))", "printf -v R 4", "unset R"),
        *("R=$(cat secret)", "declare R=`cat secret`", "R+=$(cat secret)"),
    ],
)
def test_what_may_have_changed_is_not_known(change):
    run = run_of_script(f"R=8\n{change}\nswift sft --model a --lora_rank $R", source="x.sh")
    assert isinstance(run.values["lora_rank"], Unwritten)


@pytest.mark.parametrize(
    "test", ["((R < 1 || R > 16)) && exit", "if (( R <= 1 || R == 3 || R != 8 )); then exit; fi", "((S = R + 1))"]
)
def test_arithmetic_that_compares_a_number_does_not_change_it(test):
    assert words(f"R=8\n{test}\nrun $R")[-1] == ("run", "8")


@pytest.mark.parametrize("change", ["((R++))", "((--R))", "(( R <<= 1 ))", "let R+=1", "((S = (R = 3) + 1))"])
def test_arithmetic_that_changes_a_number_leaves_it_unknown(change):
    assert words(f"R=8\n{change}\nrun $R")[-1] == ("run", UNKNOWN)


def test_a_subshell_and_branches_that_agree_change_nothing():
    script = "R=8\n(R=4)\nif x; then R=8; else R=8; fi\n[ -n x ] && R=8\nrun $R"
    assert words(script)[-1] == ("run", "8")


def test_redirections_and_documents_are_no_words_of_a_command():
    script = "cat <<END > x.yaml\nwe don't: swift sft\nEND\nrun 8 2>&1 < in >> out 2> err | tee log &> x\nrun 9 >& y &"
    assert words(script) == [("cat",), ("run", "8"), ("tee", "log"), ("run", "9")]


def test_a_variable_is_read_from_the_document_behind_it():
    script = "N=3\nread -r -d '' NAME <<{end}\ntrain \\\n  --a $N \\\n  --b \"x y\"\nEND\nrun $NAME"
    assert words(script.format(end="END"))[-1] == ("run", "train", "--a", "3", "--b", '"x', 'y"')
    assert words(script.format(end="'END'"))[-1][:5] == ("run", "train", "\\", "--a", "$N")
    assert words("read NAME <<END\ntrain\nEND\nrun $NAME")[-1] == ("run", "\0")  # a line at a time is not followed


def test_blanks_of_an_unquoted_variable_make_words():
    assert words("A='--x 1  --y'\nA+=' 2'\nrun z$A \"$A\"")[-1] == ("run", "z--x", "1", "--y", "2", "--x 1  --y 2")


def test_quotients_are_cut_off_towards_zero():
    assert words("run $(((2-9)/2)) $(((2-9)%2)) $((9/(1-3)))") == [("run", "-3", "-1", "-4")]


@pytest.mark.parametrize(
    "script",
    [
        "A=xxxxxxxxxx\n" + "A=$A$A$A\n" * 60,
        "B=" + "x" * 10_000 + "\nrun ${A:-" + "$B" * 5000 + "}",
        "run ${A:-" * 3600,
        "A=1 " * 8000,
        "".join(f"A{number}=1\nx\n" for number in range(2900)),
        "run " + "a" * 32_000,
        "(" * 32_000,
        "if x\n" * 3000 + "fi\n" * 3000,
        "if [ a = a ]; then " * 1700 + "fi;" * 50,
        "if " + "! " * 15_000 + "[ a = a ]; then x; fi",
        "x\n" * MAX_CHARACTERS,
    ],
    ids=range(11),
)
def test_a_script_made_to_take_long_is_read_or_refused_at_once(script):
    begin = time.process_time()
    with suppress(InputError):
        words(script)
    assert time.process_time() - begin < 2


@pytest.mark.parametrize("number", ["²", "9" * 5000, "٣", "-1", "x"])
def test_what_is_no_number_of_processes_counts_nothing(number):
    run = run_of_script(f"NPROC_PER_NODE={number} CUDA_VISIBLE_DEVICES=0,1 swift sft --model a", source="x.sh")
    assert run.num_processes is None


PLAIN_TEXT = st.text(alphabet="ab1-=é", min_size=1, max_size=4)
PIECES = st.one_of(
    PLAIN_TEXT,
    PLAIN_TEXT.map(lambda text: f"'{text}  $A\\'"),
    st.sampled_from(["$A", "${B}", '"$A"', '"x ${B:-y} \\$A"', "\\$A", "\\ ", "$((2+3*4))", '"$(( (7-9)/2 ))"', "#x"]),
    st.sampled_from(['${A:-"z z"}', '"${C:=z z}"', "${B:='y'}", "${A:+w w}", '"${B:+$A}"', '"${C:-"q"}"']),
    st.sampled_from(["${A:-z z}", '"${C:-z z}"', "$(expr 9 / 4)", '""', "\\\n", '"\\\n"', '"a\\b"']),
)
WORDS = st.lists(PIECES, min_size=1, max_size=3).map("".join)
ASSIGNMENTS = st.builds(
    lambda name, sign, word: f"{name}{sign}{word}", st.sampled_from("AB"), st.sampled_from(["=", "+="]), WORDS
)
STATEMENTS = st.one_of(
    st.lists(WORDS, max_size=3).map(lambda listed: " ".join(["run", *listed])),
    st.lists(WORDS, max_size=2).map(lambda listed: " ".join(["run", *listed, "2>/dev/null # x"])),
    st.builds("{} run {}".format, ASSIGNMENTS, WORDS),
    ASSIGNMENTS,
    ASSIGNMENTS.map("export {}".format),
    ASSIGNMENTS.map("({})".format),
    st.builds("if [ a = b ]; then {}; else {}; fi".format, ASSIGNMENTS, ASSIGNMENTS),
    ASSIGNMENTS.map("[ a = b ] && {}".format),
    ASSIGNMENTS.map("f() {{ {}; }}".format),
    st.builds("while [ $# -gt 0 ]; do {}; shift; done".format, ASSIGNMENTS),
    st.builds('if [ -z "$1" ] || [ -d "$1" ]; then {}; fi'.format, ASSIGNMENTS),
    st.sampled_from(["cat <<E >/dev/null\nit's $A\nE", "unset A", "for B in 1 2; do :; done", "((A = 2))"]),
)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@law(statements=st.lists(STATEMENTS, min_size=1, max_size=6), quick=25, thorough=500)
def test_words_are_those_of_bash_or_known_to_nobody(statements):
    script = "\n".join(statements)
    try:
        ours = [command.words[1:] for command in commands_of(script, source="x.sh") if command.words[0] == "run"]
    except InputError:
        return
    prelude = "run() { printf '%s\\0' \"$@\" $'\\n'; }\n"  # a word of a line's end is the end of a command
    done = subprocess.run(["bash", "-c", prelude + script], capture_output=True, text=True, env={}, check=False)
    theirs: list[list[str]] = [[]]
    for word in done.stdout.split("\0")[:-1]:
        theirs.append([]) if word == "\n" else theirs[-1].append(word)
    assert len(ours) == len(theirs) - 1, done.stderr
    for own, of_bash in zip(ours, theirs, strict=False):
        assert any(UNKNOWN in word for word in own) or list(own) == of_bash, script


def test_a_quote_without_an_end_names_its_line():
    with pytest.raises(InputError, match=r"x\.sh has a quote in line 2 that does not end"):
        words("a\nb 'c\nd")


def test_two_commands_that_train_are_refused():
    with pytest.raises(InputError, match="holds 2 commands that train, in lines 1 and 2"):
        run_of_script("swift sft --model a\nswift sft --model b", source="x.sh")


@pytest.mark.parametrize(
    ("script", "trainer", "values"),
    [
        ("swift sft --model a --bf16 --dataset x y", "swift", {"model": "a", "bf16": True, "dataset": ["x", "y"]}),
        ("NPROC_PER_NODE=2 swift pt --model=a", "swift", {"model": "a"}),
        ("llamafactory-cli train f.yaml cutoff_len=9", "llamafactory", {"cutoff_len": "9"}),
        ("python -m llamafactory.cli train f.yaml", "llamafactory", {}),
        (
            "torchrun --nproc_per_node 2 -m llamafactory.launcher f.yaml cutoff_len=9",
            "llamafactory",
            {"cutoff_len": "9"},
        ),
        ("trl sft --config f.yaml --max-length 7", "trl", {"max_length": "7"}),
        ("accelerate launch --num_processes 2 examples/sft.py --use_peft", "trl", {"use_peft": True}),
        ("trl dpo --config f.yaml --beta 0.2", "trl dpo", {"beta": "0.2"}),
        (
            "python dpo.py --no_remove_unused_columns --use_peft",
            "trl dpo",
            {"remove_unused_columns": False, "use_peft": True},
        ),
        ("trl grpo --config f.yaml --beta 0.2", "trl grpo", {"beta": "0.2"}),
        ("accelerate launch grpo_vlm.py --use_vllm", "trl grpo", {"use_vllm": True}),
        ("torchrun --nproc_per_node 2 -m swift.cli.sft --model a", "swift", {"model": "a"}),
        ("deepspeed mine.py --per_device_train_batch_size 3", "Trainer", {"per_device_train_batch_size": "3"}),
        ("torchrun -m mine --per_device_train_batch_size 3", "Trainer", {"per_device_train_batch_size": "3"}),
    ],
)
def test_launchers_and_their_own_options_are_told_from_the_trainers(script, trainer, values):
    run = run_of_script(script, source="x.sh")
    assert (run.trainer, dict(run.values)) == (trainer, values)


def test_a_module_of_ones_own_is_the_file_that_it_is():
    run = run_of_script("torchrun -m one.train --per_device_train_batch_size 2", source="x.sh")
    assert run.launched.words[0] == "one/train.py"
    assert run.script == "train"


def test_a_key_behind_a_file_may_have_a_value_that_only_running_would_tell():
    said = "llamafactory-cli train f.yaml output_dir=saves/$(date) cutoff_len=$(cat length) lora_rank=4"
    run = run_of_script(said, source="x.sh")
    assert run.files == ("f.yaml",)
    assert run.values == {"output_dir": "saves/$(date)", "cutoff_len": "$(cat length)", "lora_rank": "4"}
    assert {key for key, value in run.values.items() if isinstance(value, Unwritten)} == {"cutoff_len"}
    with pytest.raises(InputError, match="known only to the shell"):
        run_of_script("llamafactory-cli train f.yaml $(cat keys)=8", source="x.sh")


TRAINS = "train.py --per_device_train_batch_size 2"


@pytest.mark.parametrize(
    ("launcher", "processes"),
    [
        ("python", 1),
        ("python3.11 -u -W ignore", 1),
        ("srun --ntasks-per-node 4 python", None),
        ("torchrun", 1),
        ("torchrun --standalone --nproc-per-node=4 --nnodes 2 --rdzv_conf a=b", 8),
        ("torchrun --nproc_per_node auto", None),
        ("python -m torch.distributed.run --nproc_per_node 3", 3),
        ("deepspeed", None),
        ("deepspeed --num_gpus=4 --hostfile h --num_nodes 2 --no_local_rank", 8),
        ("accelerate launch --multi_gpu --num_processes 6 --num_machines 2 --num_cpu_threads_per_process 4", 6),
        ("python -m accelerate.commands.launch --num_processes 6", 6),
        ("accelerate-launch --gpu_ids 0,1", None),
        ("uv run --with deepspeed torchrun --nproc_per_node 2", 2),
        ("srun --gpus 2 accelerate launch --num_processes 2", 2),
        ("NPROC_PER_NODE=2 NNODES=3 python", 6),
    ],
)
def test_a_script_is_told_from_its_launcher_and_how_many_processes_that_starts(launcher, processes):
    run = run_of_script(f"{launcher} {TRAINS}", source="x.sh")
    assert dict(run.values) == {"per_device_train_batch_size": "2"}
    assert run.num_processes == processes
    assert looks_like_script(f"{launcher} {TRAINS}") or launcher.startswith("NPROC")


@pytest.mark.parametrize(
    "command", ["accelerate config", "accelerate launch", "uv sync", "conda activate a", "python -c 1"]
)
def test_what_starts_no_script_trains_nothing(command):
    with pytest.raises(InputError, match="no command that is known to train"):
        run_of_script(command, source="x.sh")


def test_what_is_planned_by_options_alone_says_by_which():
    with pytest.raises(InputError, match="which is not read; --task grpo"):
        run_of_script("uv run python train_grpo.py --model_name_or_path a", source="x.sh")


def test_more_devices_than_processes_split_the_model():
    with pytest.raises(InputError, match="2 devices without NPROC_PER_NODE put a model's layers on several GPUs"):
        run_of_script("CUDA_VISIBLE_DEVICES=0,1 swift sft --model a", source="x.sh")
    with pytest.raises(InputError, match="2 devices for NPROC_PER_NODE=1 put a model's layers"):
        run_of_script("NPROC_PER_NODE=1 CUDA_VISIBLE_DEVICES=0,1 swift sft --model a", source="x.sh")
    assert run_of_script("CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 swift sft --model a", source="x.sh")


@given(st.text(alphabet="ab $(){}'\"\\\n;&|#=-1/*+<>`~!\0é", max_size=60))
def test_any_text_is_commands_or_one_sentence(text):
    with suppress(InputError):
        assert all(words(text))


def test_a_script_whose_only_word_is_a_file_trains_by_that_file_where_nothing_else_trains():
    own = "torchrun --nproc_per_node 2 train.py training_args.yaml"
    run = run_of_script(own, source="x.sh")
    assert (run.trainer, run.files, run.script, run.num_processes) == (OTHER, ("training_args.yaml",), "train", 2)
    assert run_of_script(f"{own}\nswift sft --model a", source="x.sh").trainer == "swift"
    for other in ("python train.py", "python train.py a.yaml b.yaml", "python orpo.py a.yaml", "cat train.py a.yaml"):
        with pytest.raises(InputError):
            run_of_script(other, source="x.sh")
