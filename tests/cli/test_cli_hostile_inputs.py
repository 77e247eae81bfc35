"""Options, configurations, DeepSpeed files, catalogs, plans, curricula, data and answers of the Hub, changed at random.

What may come of them is in ``hostile_inputs``. Every run tries 367, the sweep 1,275; the same ones everywhere.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from hypothesis import strategies as st

from cli_calls import TINY
from hostile_inputs import NO_COUNTS, NUMBERS, VALUES, changed, check, damaged, empty, with_value
from hub_server import Answer, FakeHub, running_hub
from laws import law
from recipe_cases import plan
from vlmplan.cli.command_line import cli
from vlmplan.deepspeed_config.content import KEYS
from vlmplan.launch import prepared as prepared_module
from vlmplan.models.packaged import packaged_files
from vlmplan.plan import plan_text
from vlmplan.recipe import Recipe

pytestmark = pytest.mark.skipif(os.name != "posix", reason="limits of time and memory")
DAILY, THOROUGH = 30, 120
MODEL, GPU = ("--model", "smollm2-135m"), ("--gpu", "rtx-4090:2")
ESTIMATE = ("estimate", *MODEL, *GPU, "--json")
LAUNCH = ("launch", "--output-dir", "out", "--dry-run")


@pytest.fixture(autouse=True)
def without_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run looks at its data in a process of its own, which takes seconds."""
    monkeypatch.setattr("vlmplan.cli.curriculum.with_data", lambda prepared: prepared)  # first: it imports the other
    monkeypatch.setattr(prepared_module, "with_data", lambda prepared: prepared)


# -- options ---------------------------------------------------------------------------------------------------------

COMMANDS = {
    "estimate": [*MODEL, *GPU, "--json"],
    "buy": ["--gpu", "rtx-4090", "--hours-per-week", "20", "--json"],
    "recommend": [*MODEL, *GPU, "--json"],
    "gpus": ["--json"],
    "models": ["smollm2-135m", "--json"],
    "explain": ["zero_optimization.stage", *MODEL, *GPU, "--json"],
    "launch": [*LAUNCH[1:], *MODEL, "--gpu", "cpu:1", "--dummy-data", "99"],
}
LEFT_OUT = {
    "--help",
    "--refresh-prices",
    "--resume",
    "--demo",
    "--out",
    "--json",
    "--dry-run",
    "--html",
    "--svg",
    "--pareto",
    "--rehearse",
}
"""Options that fetch, start or write, and those that change what is printed."""
MAY_BE_ANYTHING = {"--lora-targets", "--nvme-path", "--provider", "--region", "--model", "--output-dir"}

PATHS = ("", "none", ".", "/dev/zero", "/dev/null", "pipe", "/proc/self/mem")
WORDS = ("", " ", ":", "x", "448", "0x0", "a" * 5000, "\x1b[2J", "../..", "-1", "rtx-4090:0", "9" * 30)
CHARACTERS = st.characters(exclude_characters="\x00", codec="utf-8")


def options_of(name: str) -> list[click.Option]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return [one for one in command.params if isinstance(one, click.Option) and not LEFT_OUT.intersection(one.opts)]


OPTIONS = {name: options_of(name) for name in COMMANDS}


@st.composite
def an_option(draw: st.DrawFn) -> tuple[str, list[str], bool]:
    """(command, option with its value, whether the value makes no sense)."""
    name = draw(st.sampled_from([*COMMANDS, "estimate", "estimate", "estimate"]))
    option = draw(st.sampled_from(OPTIONS[name]))
    flag = option.opts[0]
    if option.is_flag:
        return name, [draw(st.sampled_from([*option.opts, *option.secondary_opts]))], False
    if isinstance(option.type, click.types.IntParamType | click.types.FloatParamType):
        if draw(st.booleans()):
            return name, [flag, draw(st.sampled_from(NUMBERS))], True
        return name, [flag, str(draw(st.integers(0, 10**10) | st.floats(0, 1e12)))], False
    if isinstance(option.type, click.Choice):
        return name, [flag, draw(st.sampled_from([*map(str, option.type.choices), "x", "", "ＣＰＵ"]))], False
    if isinstance(option.type, click.Path):
        return (
            name,
            [flag, draw(st.sampled_from(["", "none", ".", "/dev/zero", "/dev/null", "pipe", "/proc/self/mem"]))],
            False,
        )
    values = st.sampled_from(
        ["", " ", ":", "x", "448", "0x0", "a" * 5000, "\x1b[2J", "../..", "-1", "rtx-4090:0", "9" * 30]
    )
    return (
        name,
        [flag, draw(values | st.text(st.characters(exclude_characters="\x00", codec="utf-8"), max_size=10))],
        False,
    )


@law(case=an_option(), quick=2 * DAILY, thorough=2 * THOROUGH)
def test_options_are_answered_or_refused(case: tuple[str, list[str], bool]) -> None:
    name, words, must_refuse = case
    here = Path.cwd()
    empty(here)
    os.mkfifo("pipe")
    base = [word for word in COMMANDS[name] if word not in words or word.startswith("--")]
    if words[0] in base:  # the other value stands in its place
        place = base.index(words[0])
        del base[place : place + 2]
    flag = words[0].removeprefix("--")
    names = [
        words[0],
        flag.removeprefix("no-"),
        flag.replace("-", "_"),
        *(word for word in words[1:] if word),
        "GPU",
        "--",
    ]
    must_refuse = must_refuse and words[0] not in MAY_BE_ANYTHING
    check([name, *base, *words], names=names, must_refuse=must_refuse)


FILES = [(name, one.opts[0]) for name in OPTIONS for one in OPTIONS[name] if isinstance(one.type, click.Path)]
NO_FILES = ("/dev/zero", "/dev/null", "pipe", "none", ".", "")
"""What no option can read; --output-dir writes."""


@law(
    option=st.sampled_from([one for one in FILES if one[1] not in ("--output-dir", "--image-folder", "--adapter")]),
    path=st.sampled_from(NO_FILES),
    quick=DAILY,
    thorough=THOROUGH // 8,
)
def test_what_is_no_file_is_refused(option: tuple[str, str], path: str) -> None:
    name, flag = option
    empty(Path.cwd())
    os.mkfifo("pipe")
    words = ("launch", *LAUNCH[1:]) if flag == "--plan" and name == "launch" else (name, *COMMANDS[name])
    words = [word for word in words if word not in ("--dummy-data", "99")] if flag == "--train-data" else words
    more = ("--dummy-data", "99") if flag == "--plan" and name == "launch" else ()
    check([*words, *more, flag, path], names=[flag, path or "empty"], must_refuse=True)


# -- configurations --------------------------------------------------------------------------------------------------

FAMILIES = (
    "qwen2-vl-2b",
    "gemma-3-4b",
    "llama-3.2-1b",
    "gpt2",
    "internvl3-1b",
    "smolvlm-256m",
    "llava-1.5-7b",
    "qwen3-0.6b",
)
CONFIGS = {name: dict(packaged_files(name).config) for name in FAMILIES}
COUNTS = ("num_hidden_layers", "num_attention_heads", "hidden_size", "num_key_value_heads")


def config_case(config: Any, *, name: str = "config.json", must_refuse: bool = False) -> None:
    empty(Path.cwd())
    Path("model").mkdir()
    Path("model", name).write_bytes(config if isinstance(config, bytes) else json.dumps(config).encode())
    words = ("estimate", "--model", "./model", "--gpu", "h200-sxm:2", "--json")
    check(words, names=["config.json", "model_type", "--", "image"], must_refuse=must_refuse)


@st.composite
def a_config(draw: st.DrawFn) -> Any:
    """Of a family: one that nobody knows is for transformers to look up, which takes seconds."""
    sound = CONFIGS[draw(st.sampled_from(FAMILIES))]
    found = draw(changed(sound))
    return found | {"model_type": sound["model_type"]}


@law(config=a_config(), quick=DAILY, thorough=THOROUGH)
def test_configurations_are_answered_or_refused(config: Any) -> None:
    config_case(config)


@law(text=damaged(json.dumps(TINY).encode()), quick=DAILY // 2, thorough=THOROUGH // 4)
def test_damaged_configurations_are_answered_or_refused(text: bytes) -> None:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("model_type") in (None, "llama"):
        config_case(text)


@law(key=st.sampled_from(COUNTS), value=st.sampled_from(NO_COUNTS), quick=DAILY // 2, thorough=THOROUGH // 8)
def test_what_is_no_count_is_never_planned(key: str, value: Any) -> None:
    config_case(TINY | {key: value}, must_refuse=True)


# -- DeepSpeed files -------------------------------------------------------------------------------------------------

DS_CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "offload_optimizer": {"device": "cpu"}},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
}
WITH_KEYS = st.builds(
    lambda path, value: nested(path.split("."), value, DS_CONFIG), st.sampled_from(sorted(KEYS)), VALUES
)


def nested(path: list[str], value: Any, whole: Any) -> Any:
    """``whole`` with a value at a path that it may not have yet."""
    below = whole.get(path[0]) if isinstance(whole, dict) else None
    own = dict(whole) if isinstance(whole, dict) else {}
    return own | {path[0]: value if len(path) == 1 else nested(path[1:], value, below)}


@law(content=changed(DS_CONFIG) | WITH_KEYS | damaged(json.dumps(DS_CONFIG).encode()), quick=DAILY, thorough=THOROUGH)
def test_deepspeed_files_are_answered_or_refused(content: Any) -> None:
    empty(Path.cwd())
    Path("ds.json").write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    check([*ESTIMATE, "--ds-config", "ds.json"], names=["ds.json", "--"])


# -- catalogs --------------------------------------------------------------------------------------------------------

CATALOG: dict[str, Any] = {
    "schema": "vlmplan.catalog/1",
    "sources": {"me": "my own list"},
    "gpus": {"my-card": {"name": "My Card", "vendor": "nvidia", "memory_mib": 24576, "compute_capability": "8.9"}},
    "price_lists": {"list": {"provider": "me", "as_of": "2026-05", "pricing": "own"}},
    "offers": [{"gpu": "my-card", "num_gpus": 2, "price_list": "list", "usd_per_hour": 1.5, "host_ram_gib": 64}],
    "hide": ["t4", {"provider": "verda", "num_gpus": 8}],
    "discounts": [{"provider": "lambda", "fraction": 0.1}],
}
ALIASES = b"a: &a [x, x]\nb: &b [*a, *a, *a]\nsources: {k: !!bool x}\nhide: *b\n"


@law(
    content=changed(CATALOG) | damaged(yaml.safe_dump(CATALOG).encode()) | damaged(ALIASES),
    quick=DAILY,
    thorough=THOROUGH,
)
def test_catalogs_are_answered_or_refused(content: Any) -> None:
    empty(Path.cwd())
    text = content if isinstance(content, bytes) else yaml.safe_dump(content, allow_unicode=True).encode()
    Path("mine.yaml").write_bytes(text)
    check([*ESTIMATE, "--catalog", "mine.yaml"], names=["mine.yaml", "rtx-4090"])


# -- plans and curricula ---------------------------------------------------------------------------------------------

PLAN = json.loads(plan_text(plan(Recipe(zero_stage=2), num_gpus=2)))


@law(content=changed(PLAN) | damaged(plan_text(plan(Recipe())).encode()), quick=DAILY, thorough=THOROUGH)
def test_plans_are_answered_or_refused(content: Any) -> None:
    empty(Path.cwd())
    Path("plan.json").write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    names = ["plan", "--", "recipe", "GPU", "model"]
    check([*LAUNCH, "--plan", "plan.json", "--dummy-data", "99"], names=names)


BYTES = (("expected", "peak_allocated_bytes"), ("hardware", "usable_bytes"), ("hardware", "num_nodes"))


@law(path=st.sampled_from(BYTES), value=st.sampled_from(NO_COUNTS), quick=DAILY // 4, thorough=THOROUGH // 8)
def test_what_is_no_count_is_never_read_from_a_plan(path: tuple[str, str], value: Any) -> None:
    empty(Path.cwd())
    Path("plan.json").write_text(json.dumps(with_value(PLAN, path, value)))
    words = [*LAUNCH, "--plan", "plan.json", "--dummy-data", "99"]
    found = check(words, names=["plan.json"], must_refuse=True)
    assert path[-1] in found.err


CURRICULUM: dict[str, Any] = {
    "stages": [
        {"name": "align", "dummy_data": 64, "train": ["language"], "learning_rate": 1e-3, "method": "full"},
        {"name": "instruct", "dummy_data": 64, "epochs": 2, "seq_len": 64, "max_steps": 3, "seed": 7},
    ]
}


@law(content=changed(CURRICULUM) | damaged(yaml.safe_dump(CURRICULUM).encode()), quick=DAILY, thorough=THOROUGH)
def test_curricula_are_answered_or_refused(content: Any) -> None:
    empty(Path.cwd())
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(TINY))
    text = content if isinstance(content, bytes) else yaml.safe_dump(content, allow_unicode=True).encode()
    Path("stages.yaml").write_bytes(text)
    words = [*LAUNCH, "--model", "./model", "--gpu", "cpu:1", "--seq-len", "64", "--curriculum", "stages.yaml"]
    check(words, names=["stages.yaml", "stage", "--"])


# -- what no reader may try for long ---------------------------------------------------------------------------------

BY_FILE: dict[str, tuple[str, ...]] = {
    "ds.json": (*ESTIMATE, "--ds-config", "ds.json"),
    "mine.yaml": (*ESTIMATE, "--catalog", "mine.yaml"),
    "model/config.json": ("estimate", "--model", "./model", "--gpu", "t4", "--json"),
    "plan.json": (*LAUNCH, "--plan", "plan.json", "--dummy-data", "99"),
    "stages.yaml": (*LAUNCH, *MODEL, "--gpu", "cpu:1", "--seq-len", "64", "--curriculum", "stages.yaml"),
    "train.yaml": ("estimate", "--config", "train.yaml", *GPU, "--json"),
    "train.json": ("estimate", "--config", "train.json", *GPU, "--json"),
}
"""A command that reads each file."""
NOTHING_TO_READ = {
    "nested": b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "nested in blocks": b"- " * 5000 + b"a",
    "a key twice among thousands": b"{" + b",".join(b'"k%d": 1' % number for number in range(5000)) + b', "k1": 2}',
    "thousands of digits": b'{"a": ' + b"9" * 5000 + b"}",
    "no text": b"\xff\xfe\x00",
    "half of a character": b'{"\\ud800": "\\ud800"}',
    "a tag of Python's": b"!!python/object/apply:os.mkdir [made]",
    "a value that is not what its tag says": b"{a: !!bool x, b: !!int y}",
    "aliases of aliases": b"\n".join(
        [b"a0: &a0 [x, x]", *(b"a%d: &a%d [*a%d, *a%d]" % (n, n, n - 1, n - 1) for n in range(1, 40))]
    ),
    "merges of merges": b"\n".join(
        [b"a0: &a0 {k: x}", *(b"a%d: &a%d {<<: [*a%d, *a%d]}" % (n, n, n - 1, n - 1) for n in range(1, 40))]
    ),
    "nothing": b"",
}


@pytest.mark.parametrize("what", NOTHING_TO_READ)
@pytest.mark.parametrize("name", BY_FILE)
def test_what_is_no_file_of_its_kind_is_refused(name: str, what: str) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_bytes(NOTHING_TO_READ[what])
    check(BY_FILE[name], names=[Path(name).name], must_refuse=True)
    assert not Path("made").exists()


# -- data ------------------------------------------------------------------------------------------------------------

SAMPLES = [{"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]}] * 4
LINES = "".join(json.dumps(sample) + "\n" for sample in SAMPLES).encode()


@law(
    content=damaged(LINES) | damaged(json.dumps(SAMPLES).encode()) | st.binary(max_size=40),
    quick=DAILY,
    thorough=THOROUGH,
)
def test_data_is_answered_or_refused(content: bytes) -> None:
    empty(Path.cwd())
    Path("data.jsonl").write_bytes(content)
    words = [*LAUNCH, *MODEL, "--gpu", "cpu:1", "--train-data", "data.jsonl", "--eval-data", "data.jsonl"]
    check(words, names=["data.jsonl"])


# -- answers of the Hub ----------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with running_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


HEADERS = st.dictionaries(
    st.sampled_from(["Location", "X-Error-Code", "X-Repo-Commit", "Content-Type", "Content-Encoding", "Retry-After"]),
    st.sampled_from(["", "x", "http://[::1", "/", "gzip", "GatedRepo", "RevisionNotFound", "0" * 40, "\x1b[2J", "-1"]),
    max_size=2,
)
ANSWERS = st.builds(
    Answer,
    body=damaged(json.dumps(TINY).encode()) | st.just(json.dumps(TINY).encode()) | st.binary(max_size=20),
    status=st.sampled_from([200, 200, 200, 204, 301, 302, 307, 400, 401, 403, 404, 416, 429, 500, 503, 599]),
    headers=HEADERS,
)


@pytest.mark.parametrize("num_examples", [DAILY, pytest.param(THOROUGH, marks=pytest.mark.sweep)])
def test_answers_of_the_hub_are_answered_or_refused(hub: FakeHub, tmp_path: Path, num_examples: int) -> None:
    from hypothesis import HealthCheck, given, settings

    count = 0

    @settings(max_examples=num_examples, suppress_health_check=list(HealthCheck))
    @given(ANSWERS, st.sampled_from(["config.json", "preprocessor_config.json"]))
    def answered(answer: Answer, name: str) -> None:
        nonlocal count
        count += 1  # what is kept of a model is not asked for again
        repo = f"org/name-{count}"
        hub.put(repo, "config.json", Answer(body=json.dumps(TINY).encode()))
        hub.put(repo, name, answer)
        check(["estimate", "--model", repo, "--gpu", "t4", "--json"], names=[repo, "127.0.0.1"])

    answered()


# -- configurations of other trainers --------------------------------------------------------------------------------

TRAINER_CONFIGS: tuple[dict[str, Any], ...] = (
    {
        "model_name_or_path": "smollm2-135m",
        "stage": "sft",
        "finetuning_type": "lora",
        "lora_rank": 8,
        "cutoff_len": 512,
        "per_device_train_batch_size": 2,
        "num_train_epochs": 2.0,
        "bf16": True,
        "deepspeed": {"zero_optimization": {"stage": 2}},
    },
    {"model": "smollm2-135m", "tuner_type": "full", "torch_dtype": "bfloat16", "max_length": 256, "deepspeed": "zero3"},
    {"model_name_or_path": "smollm2-135m", "dataset_name": "d", "use_peft": True, "lora_r": 4, "max_steps": 30},
)
SCRIPTS = (
    b"N=4\nNPROC_PER_NODE=2 \\\nswift sft --model smollm2-135m --torch_dtype bfloat16 --lora_rank $(expr 8 / $N)\n",
    b'if [ -z "$R" ]; then R=`cat x`; fi\nA="--lora_r 4"; A+=" --bf16"\naccelerate launch '
    b"--config_file ${C:-no.yaml} sft.py --model_name_or_path smollm2-135m $A > log 2>&1 <<E | tee x\nit's\nE\n",
)


@law(
    content=st.sampled_from(TRAINER_CONFIGS).flatmap(changed)
    | st.sampled_from(TRAINER_CONFIGS).flatmap(lambda one: damaged(yaml.safe_dump(one).encode()))
    | st.sampled_from(SCRIPTS).flatmap(damaged),
    quick=DAILY,
    thorough=THOROUGH,
)
def test_configurations_of_other_trainers_are_answered_or_refused(content: Any) -> None:
    empty(Path.cwd())
    name = "train.sh" if isinstance(content, bytes) and (b"swift" in content or b"launch" in content) else "train.yaml"
    Path(name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    check(["estimate", "--config", name, *GPU, "--json"], names=[name, "--", "model"])
