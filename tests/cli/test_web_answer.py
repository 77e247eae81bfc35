"""What the page is answered: the numbers of the command line, and one sentence for what cannot be."""

import json
from pathlib import Path

import pytest

from calibrations import calibration, kept
from cli_calls import TINY, call
from page_setups import MODELS, setups
from vlmplan import files
from vlmplan.chats import samples
from vlmplan.cli.command_line import run
from vlmplan.cli.estimate import estimate
from vlmplan.cli.option_words import options_of, words_of
from vlmplan.cli.recommend import recommend
from vlmplan.cli.web_answer import answer
from vlmplan.cli.web_form import BY_THEMSELVES, GROUPS, NOT_ON_THE_PAGE, allowed_options, names_of
from vlmplan.commands.document import document_text
from vlmplan.errors import InputError


def assert_says_what_the_command_line_says(capsys: pytest.CaptureFixture[str], options: dict[str, object]) -> None:
    known = options_of(estimate)
    words = words_of(estimate, {str(known[name].name): value for name, value in options.items()})
    capsys.readouterr()
    code = run(["estimate", *words, "--json"])
    printed, said = capsys.readouterr()
    found = answer({"ask": "estimate", "options": options})
    if "error" in found:
        assert code in (1, 2), options
        assert found["error"].rstrip(".") in said, options
    else:
        assert printed == document_text(found["document"]) + "\n", options


@pytest.mark.parametrize("options", setups(6, MODELS[:2]), ids=str)
def test_an_estimate_is_the_command_line_s_to_the_byte(isolated, capsys, options):
    assert_says_what_the_command_line_says(capsys, options)


@pytest.mark.sweep
def test_ten_estimates_are_the_command_line_s_to_the_byte(isolated, capsys):
    for options in setups(10):
        assert_says_what_the_command_line_says(capsys, options)


@pytest.mark.sweep
def test_a_search_is_the_command_line_s(isolated):
    found = answer({"ask": "recommend", "options": {"model": "smollm2-135m", "gpu": ["t4", "rtx-4090"]}})
    printed = call("recommend", "--model", "smollm2-135m", "--gpu", "t4", "--gpu", "rtx-4090", "--json").out
    assert found["document"]["plans"] == json.loads(printed)["plans"]
    assert {(one["hours"], one["usd"]) for one in found["document"]["pareto"]} <= {
        (point["hours"], point["usd"]) for point in found["points"] if point["is_front"]
    }


SETUP = {"model": "gpt2", "gpu": "t4"}


def test_a_first_look_has_the_same_numbers_without_the_way_out(isolated):
    whole = answer({"ask": "estimate", "options": SETUP})
    first = answer({"ask": "first look", "options": SETUP})
    left_out = {"freeze_vision", "to_fit", "with_more_host", "other_machine", "reserved_with_room_bytes"}
    assert whole["document"].keys() - first["document"].keys() == left_out
    assert first["document"] == {key: one for key, one in whole["document"].items() if key not in left_out}
    assert first["phases"] == whole["phases"]


def test_bars_add_up_to_the_phase_and_to_the_device(isolated):
    found = answer({"ask": "first look", "options": SETUP})
    document = found["document"]
    for phase in found["phases"]:
        assert sum(phase["components"].values()) == phase["peak_bytes"]
    assert document["peak_allocated_bytes"] + sum(found["beyond"].values()) == document["peak_device_bytes"]


@pytest.mark.parametrize("method", ["full", "lora"])
def test_weights_by_module_are_all_parameters_of_the_model(isolated, method):
    rows = answer({"ask": "modules", "options": {**SETUP, "method": method}})["modules"]
    model = answer({"ask": "first look", "options": {**SETUP, "method": method}})["document"]["model"]
    assert sum(row["num_params"] for row in rows) == model["num_params"]
    assert sum(row["num_trained"] for row in rows) == model["num_trainable_params"]
    assert {"transformer.wte", "transformer.h.*.attn.c_attn"} <= {row["module"] for row in rows}


def test_what_makes_it_fit_is_options_that_the_page_can_take(isolated):
    options = {"model": "smollm2-135m", "gpu": "t4", "method": "full", "seq_len": 8192, "micro_batch": 8}
    found = answer({"ask": "estimate", "options": options})
    assert found["document"]["verdict"] == "does_not_fit"
    changed = {**options, **found["apply"]}
    again = answer({"ask": "first look", "options": {name: one for name, one in changed.items() if one is not None}})
    assert again["document"]["verdict"] == found["document"]["to_fit"]["verdict"] != "does_not_fit"
    assert again["document"]["peak_device_bytes"] == found["document"]["to_fit"]["device_bytes"]


def test_a_dropped_configuration_is_the_model(isolated):
    found = answer({"ask": "estimate", "options": {"model": TINY, "gpu": "t4:2", "zero_stage": "3"}})
    folder = Path("tiny")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    printed = json.loads(call("estimate", "--model", "./tiny", "--gpu", "t4:2", "--zero-stage", "3", "--json").out)
    assert found["document"]["phases"] == printed["phases"]
    assert json.loads(found["files"]["ds_config.json"])["zero_optimization"]["stage"] == 3


def test_a_dropped_ds_config_is_taken_as_it_is(isolated):
    values = {"train_micro_batch_size_per_gpu": 3, "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}
    found = answer({"ask": "first look", "options": {"model": TINY, "gpu": "a30:2", "ds_config": values}})
    assert (found["document"]["recipe"]["zero_stage"], found["document"]["recipe"]["micro_batch"]) == (1, 3)


CONFIGS = {
    "train.yaml": "model_name_or_path: gpt2\nstage: sft\ndo_train: true\nfinetuning_type: lora\ncutoff_len: 512\n"
    "template: default\ndataset: d\nper_device_train_batch_size: 2\nbf16: true\noutput_dir: out\n",
    "trl.yaml": "model_name_or_path: gpt2\ndataset_name: d\nuse_peft: true\nlora_r: 8\nmax_length: 256\nfp16: true\n",
    "args.json": '{"model": "Qwen/Qwen2-VL-2B-Instruct", "tuner_type": "lora", "max_length": 700, "dataset": ["d"]}',
    "train.sh": "swift sft --model Qwen/Qwen2-VL-2B-Instruct --tuner_type full --deepspeed zero2 --dataset d\n",
    "accelerate.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: bf16\n",
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_dropped_configuration_of_a_trainer_is_read_as_the_command_line_reads_it(isolated, name):
    model = {"model": "gpt2"} if name == "accelerate.yaml" else {}
    options = {"config": {"name": f"/somewhere/{name}", "text": CONFIGS[name]}, "gpu": "a30:2", **model}
    found = answer({"ask": "estimate", "options": options})
    assert not Path(name).exists()
    Path(name).write_text(CONFIGS[name])
    words = ["--model", "gpt2"] if model else []
    printed = json.loads(call("estimate", "--config", name, "--gpu", "a30:2", *words, "--json").out)
    assert found["document"] == printed
    checked = json.loads(call("check", name, "--gpu", "a30:2", *words, "--json").out)
    assert found["reading"] == checked["config"]
    assert f"--config {name}" in found["command"]


def test_the_ds_config_beside_a_configuration_is_the_one_that_it_names(isolated):
    text = CONFIGS["train.yaml"] + "deepspeed: examples/ds_z2.json\n"
    options = {"gpu": "a30:2", "config": {"name": "train.yaml", "text": text}}
    assert "a file that did not come with it" in answer({"ask": "first look", "options": options})["error"]
    values = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    found = answer({"ask": "first look", "options": {**options, "ds_config": values}})
    assert (found["document"]["recipe"]["zero_stage"], found["document"]["recipe"]["micro_batch"]) == (2, 2)


ALONE = "a file that did not come with it"


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.yaml", CONFIGS["train.yaml"] + "deepspeed: SECRET", ALONE),
        ("a.yaml", CONFIGS["train.yaml"].replace("gpt2", "SECRET"), "unknown model"),
        ("a.yaml", CONFIGS["trl.yaml"] + "fsdp: full_shard\nfsdp_config: SECRET", ALONE),
        ("a.sh", "llamafactory-cli train SECRET", ALONE),
        ("a.sh", "trl sft --config SECRET", ALONE),
        ("a.sh", "swift sft --model SECRET --dataset d", "unknown model"),
        ("a.sh", CONFIGS["train.sh"].replace("--deepspeed zero2", "--fsdp SECRET"), ALONE),
        ("a.sh", "accelerate launch --config_file SECRET sft.py --model_name_or_path gpt2 --dataset_name d", ALONE),
    ],
)
@pytest.mark.parametrize("is_absolute", [True, False])
def test_no_file_that_a_dropped_configuration_names_is_opened(isolated, monkeypatch, name, text, sentence, is_absolute):
    secret = Path("secret.json").absolute()
    secret.write_text('{"model_type": "gpt2"}')
    monkeypatch.setattr(files, "open_regular", lambda path: pytest.fail(f"{path} is opened"))
    text = text.replace("SECRET", str(secret) if is_absolute else secret.name)
    found = answer({"ask": "first look", "options": {"gpu": "a30:2", "config": {"name": name, "text": text}}})
    assert sentence in found["error"]


def test_a_plan_is_taken_apart_into_the_options_that_ask_for_it(isolated):
    asked = {"model": "gpt2", "gpu": "a30:2", "method": "full", "zero_stage": "2", "micro_batch": 3, "seq_len": 300}
    first = answer({"ask": "estimate", "options": asked})
    plan = json.loads(first["files"]["plan.json"])
    found = answer({"ask": "plan", "options": {"plan": plan}})
    assert found["model"] is None
    assert {name: found["options"][name] for name in asked} == asked
    again = answer({"ask": "estimate", "options": found["options"]})
    assert again["document"]["phases"] == first["document"]["phases"]
    assert again["document"]["recipe"] == first["document"]["recipe"]


def test_a_plan_of_a_model_without_a_name_here_brings_its_configuration(isolated):
    first = answer({"ask": "estimate", "options": {"model": TINY, "gpu": "t4:2", "zero_stage": "3"}})
    found = answer({"ask": "plan", "options": {"plan": json.loads(first["files"]["plan.json"])}})
    assert "model" not in found["options"]
    again = answer({"ask": "first look", "options": {**found["options"], "model": found["model"]}})
    assert again["document"]["phases"] == first["document"]["phases"]


def samples_text(*lengths: int, image: str | None = None) -> str:
    parts = [] if image is None else [{"type": "image", "image": image}]
    asks = [[*parts, {"type": "text", "text": "word " * length}] for length in lengths]
    turns = [[{"role": "user", "content": one}, {"role": "assistant", "content": "yes"}] for one in asks]
    return "".join(json.dumps({"messages": one}) + "\n" for one in turns)


@pytest.mark.sweep
def test_dropped_samples_are_summed_up_as_data_finds_them(isolated):
    text = samples_text(3, 200, 50)
    found = answer({"ask": "data", "options": {"model": "gpt2", "data": {"name": "d.jsonl", "text": text}}})
    assert not Path("d.jsonl").exists()
    Path("d.jsonl").write_text(text)
    printed = json.loads(call("estimate", "--model", "gpt2", "--gpu", "t4", "--data", "d.jsonl", "--json").out)
    lengths = found["options"]["sample_lengths"]
    assert found["options"] == {
        "num_samples": printed["recipe"]["num_samples"],
        "seq_len": printed["recipe"]["seq_len"],
        "images_per_sample": 0,
        "sample_lengths": lengths,
    }
    assert lengths.endswith(f"-{printed['recipe']['seq_len']}")
    assert printed["data"]["counting"] in found["sentences"]
    assert "error" not in answer({"ask": "first look", "options": {**SETUP, **found["options"]}})


def test_images_of_dropped_samples_are_counted_and_not_opened(isolated, monkeypatch):
    Path("cat.png").write_bytes(b"no picture")
    monkeypatch.setattr(samples, "located", lambda reference, _: pytest.fail(f"{reference.text} is looked for"))
    data = {"name": "d.jsonl", "text": samples_text(5, 5, image=str(Path("cat.png").absolute()))}
    options = {"model": "qwen2-vl-2b", "image_size": "280x280", "data": data}
    found = answer({"ask": "data", "options": options})
    assert (found["options"]["images_per_sample"], found["options"]["image_size"]) == (1, "280x280")
    assert found["options"]["seq_len"] > 10 * 10  # 280 / 28 tokens each way


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("/etc/passwd", "an object with what the file holds is needed"),
        ({"name": "d"}, "data: text is missing"),
        ({"name": "d", "text": ""}, "d has no sample to train on"),
        ({"name": "d", "text": "[1, 2"}, "d"),
        ({"name": "../d", "text": "x" * (3 * 2**20 + 1)}, "d has more than 3 MiB"),
        ({"name": "d", "text": samples_text(2, image="a.png")}, "images"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_holds_no_samples_gets_a_sentence(isolated, data, sentence):
    found = answer({"ask": "data", "options": {"model": "gpt2", "data": data}})
    assert found["error"].startswith(sentence) or sentence in found["error"]


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [(None, "the object that plan.json holds is needed"), ({}, "no schema"), ({"schema": "vlmplan.plan/9"}, "schema")],
)
def test_what_is_no_plan_gets_a_sentence(isolated, plan, sentence):
    assert sentence in answer({"ask": "plan", "options": {"plan": plan}})["error"]


def test_the_form_has_every_option_that_may_be_given(isolated):
    found = answer({"ask": "form", "options": {}})
    shown = {option["name"] for group in found["groups"] for option in group["options"]}
    assert shown | set(BY_THEMSELVES) == set(allowed_options(estimate))
    assert [group["title"] for group in found["groups"]] == [title for title, _ in GROUPS]


def test_every_option_of_an_estimate_is_on_the_page_or_it_is_said_why_not():
    assert allowed_options(estimate).keys() | NOT_ON_THE_PAGE.keys() == options_of(estimate).keys()
    assert not allowed_options(estimate).keys() & NOT_ON_THE_PAGE.keys()
    recipe = {name for title, group in GROUPS for name in names_of(group) if title == "Recipe"}
    assert recipe <= allowed_options(estimate).keys()


@pytest.mark.parametrize("command", [estimate, recommend])
def test_no_option_of_the_page_names_a_file_or_starts_anything(command):
    files = {"data", "image_folder", "catalog", "out", "html", "svg"}
    actions = {"json", "force", "rehearse", "refresh_prices", "pareto", "scaling"}
    assert not allowed_options(command).keys() & (files | actions)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "Missing option '--model'"),
        ({"model": "gpt2"}, "gpu is missing"),
        ({"model": "/etc/passwd", "gpu": "t4"}, "unknown model '/etc/passwd'"),
        ({"model": "..", "gpu": "t4"}, "unknown model '..'"),
        ({"model": "~/m", "gpu": "t4"}, "unknown model"),
        ({"model": "config.json", "gpu": "t4"}, "unknown model"),
        ({"model": "nobody/nothing", "gpu": "t4"}, "the page fetches nothing"),
        ({"model": "here/below", "gpu": "t4"}, "is also a folder"),
        ({"model": "<script>alert(1)</script>", "gpu": "t4"}, "unknown model"),
        ({"model": "gpt2\x1b[2J", "gpu": "t4"}, "gpt2\\"),
        ({"model": {"a": 1}, "gpu": "t4"}, "no model_type"),
        ({"model": ["gpt2"], "gpu": "t4"}, 'model is ["gpt2"]'),
        ({**SETUP, "gpu": "t5"}, "unknown GPU 't5'"),
        ({**SETUP, "gpu": ["t4", "t4"]}, 'gpu is ["t4", "t4"]; a number or a text is needed'),
        ({**SETUP, "data": "/etc/passwd"}, "unknown option 'data'"),
        ({**SETUP, "config": "/etc/passwd"}, "an object with what the file holds is needed"),
        ({**SETUP, "config": {"name": "a.yaml"}}, "config: text is missing"),
        ({**SETUP, "config": {"name": "a.yaml", "text": "x" * (2**20 + 1)}}, "a.yaml has more than 1 MiB"),
        ({**SETUP, "config": {"name": "../../a\x1b[2J.yaml", "text": "nothing"}}, "a [2J.yaml holds"),
        ({**SETUP, "catalog": "/etc/passwd"}, "unknown option 'catalog'"),
        ({**SETUP, "ds_config": "/etc/passwd"}, "an object with what the file holds is needed"),
        ({**SETUP, "sample_lengths": "/etc/passwd"}, "vary or SHORTEST-LONGEST is needed"),
        ({**SETUP, "help": True}, "unknown option 'help'"),
        ({**SETUP, "micro_batch": "--json"}, "is not a whole number"),
        ({**SETUP, "micro_batch": -1}, "--micro-batch is -1; 1 or more is needed"),
        ({**SETUP, "micro_batch": 10**4200}, "more than 4,096 characters"),
        ({**SETUP, "micro_batch": True}, "a number or a text is needed"),
        ({**SETUP, "train_vision": "yes"}, "true or false is needed"),
        ({**SETUP, "lora_targets": "x" * 5000}, "more than 4,096 characters"),
        ({**SETUP, "method": "<b>"}, "is not one of"),
        ({**SETUP, "epochs": float("nan")}, "nan"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_answered_gets_one_sentence(isolated, options, sentence):
    Path("here/below").mkdir(parents=True)
    found = answer({"ask": "estimate", "options": options})
    assert found.keys() == {"error"}
    assert sentence in found["error"]
    assert found["error"].isprintable()


@pytest.mark.parametrize("question", [None, 3, [], {}, {"ask": []}, {"ask": "launch"}, {"ask": "form", "options": 1}])
def test_what_is_no_question_gets_one_sentence(question):
    assert "is needed" in answer(question)["error"]


def test_a_sentence_on_a_file_of_one_s_own_does_not_name_its_owner(isolated, monkeypatch):
    catalog = Path.home() / "gpus.yaml"
    monkeypatch.setattr("vlmplan.requested.load_catalog", raises(InputError(f"{catalog} is no catalog")))
    assert answer({"ask": "estimate", "options": SETUP}) == {"error": "~/gpus.yaml is no catalog"}


def raises(error: Exception):
    def call(*_: object, **__: object) -> None:
        raise error

    return call


def test_no_answer_has_a_path_of_the_machine(isolated):
    for ask in ("form", "estimate"):
        text = json.dumps(answer({"ask": ask, "options": SETUP if ask == "estimate" else {}}))
        for place in (Path.home(), Path.cwd(), Path(__file__).parents[2]):
            assert str(place) not in text


def test_the_form_needs_no_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("XDG_CONFIG_HOME", "APPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    before = answer({"ask": "form"})
    kept(tmp_path, calibration("rtx-4090")).write_text("{")
    assert answer({"ask": "form"}) == before
    assert "error" not in before
