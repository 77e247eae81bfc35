"""A plan from the data: the worst micro batch is the one that brute force finds, and takes what ``estimate`` says."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from chat_files import asked, jsonl, png_header
from cli_calls import call
from vlmplan.catalog import load_catalog
from vlmplan.data_plan.covering import Covering, covering, padded
from vlmplan.data_plan.data_run import DataRuns
from vlmplan.data_plan.lengths import sample_shapes
from vlmplan.data_plan.options import data_options
from vlmplan.data_rules import DataRules, Order
from vlmplan.dataset import Dataset, SampleSize
from vlmplan.errors import InputError
from vlmplan.estimation import Estimate, Estimator
from vlmplan.launch.prepared import planned
from vlmplan.models import find_model
from vlmplan.request import Request, parse, requested_cluster
from vlmplan.request.setup import requested_setup
from vlmplan.run.training import TrainerOptions
from vlmplan.sampler import epoch_order

pytestmark = pytest.mark.usefixtures("own_cache")
TEXT, SEES = "llama-3.2-1b", "qwen2-vl-2b"


def with_data(path: Path, **options: Any) -> tuple[Request, Estimate, DataRuns]:
    given = {"gpu": "a100-sxm4-80gb:2", "method": "lora", "zero_stage": "none", "micro_batch": 4, **options}
    request = parse({**given, "data": path})
    machine = requested_cluster(request.hardware, load_catalog(()))
    asked_for = requested_setup(request, machine, request.model_files)
    estimator = Estimator(asked_for.workload, asked_for.recipe)
    found = estimator.estimate(asked_for.recipe, asked_for.cluster)
    assert request.from_data is not None
    return request, found, DataRuns(found, request.from_data.source, estimator=estimator)


def drawn_chats(folder: Path, count: int, *, images: bool) -> Path:
    """Chats of a known distribution: lengths are lognormal, two of three show one or two images."""
    draw = random.Random(7)
    (folder / "images").mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        shown = draw.choice((0, 1, 2)) if images else 0
        names = [f"images/{number}-{index}.png" for index in range(shown)]
        for name in names:
            (folder / name).write_bytes(png_header(draw.randint(60, 1500), draw.randint(60, 1500)))
        parts = [{"type": "image", "path": name} for name in names]
        said = "x" * int(draw.lognormvariate(6, 0.9))
        rows.append(asked(*parts, {"type": "text", "text": said}))
    return jsonl(folder, *rows)


@pytest.mark.parametrize("model", [TEXT, pytest.param(SEES, marks=pytest.mark.sweep)])
def test_the_worst_micro_batch_is_that_of_brute_force(model: str, tmp_path: Path):
    path = drawn_chats(tmp_path / "data", 500, images=model == SEES)
    request, found, data_runs = with_data(path, model=model)
    source = request.from_data.source
    data_run = data_runs.of(source)
    shapes, amounts = source.trained.samples, source.amounts
    peaks: set[int] = set()
    order = epoch_order(len(shapes.shapes), seed=0, epoch=0)
    for start in range(0, len(order) // 8 * 8, 4):
        rows = [shapes.shapes[index] for index in order[start : start + 4]]
        covers = covering(
            shapes,
            amounts,
            num_tokens=padded(max(row.tokens for row in rows), 8, source.trained.limit),
            num_patches=sum(row.patches for row in rows),
            num_images=sum(row.num_images for row in rows),
            num_rows=4,
        )
        peaks.add(data_runs.peak_bytes(covers))
    assert data_run.worst.peak_bytes == max(peaks) or model == SEES
    assert max(peaks) <= data_run.worst.peak_bytes <= 1.02 * max(peaks)
    assert data_run.worst.peak_bytes <= data_run.bound_bytes == found.peak_allocated_bytes


@pytest.mark.parametrize("model", [TEXT, pytest.param(SEES, marks=pytest.mark.sweep)])
def test_the_peak_is_that_of_estimate_for_such_samples_to_the_byte(model: str, tmp_path: Path):
    path = drawn_chats(tmp_path / "data", 60, images=model == SEES)
    common = (
        "estimate",
        "--model",
        model,
        "--gpu",
        "a100-sxm4-80gb",
        "--method",
        "lora",
        "--micro-batch",
        "4",
        "--json",
    )
    of_data = json.loads(call(*common, "--data", str(path)).out)
    for name in ("worst_micro_batch", "any_order"):
        shape = of_data["data"][name]
        size = ("--image-size", shape["image_size"]) if shape["image_size"] else ()
        images = ("--images-per-sample", str(shape["images_per_sample"]))
        alone = json.loads(call(*common, "--seq-len", str(shape["seq_len"]), *images, *size).out)
        assert alone["peak_allocated_bytes"] == shape["peak_allocated_bytes"]
    assert of_data["peak_allocated_bytes"] == of_data["data"]["any_order"]["peak_allocated_bytes"]
    assert of_data["recipe"]["num_samples"] == of_data["data"]["num_samples"] == 60


def test_no_micro_batch_of_any_order_has_more_than_the_bound(tmp_path: Path):
    path = drawn_chats(tmp_path / "data", 120, images=True)
    _, _, data_runs = with_data(path, model=SEES)
    source = data_runs._source
    shapes, amounts = source.trained.samples, source.amounts
    bound = source.covering
    of_bound = amounts.shape(bound.image_size, bound.images_per_sample)
    draw = random.Random(0)
    for _ in range(300):
        rows = draw.sample(shapes.shapes, 4)
        assert max(row.tokens for row in rows) <= bound.seq_len
        assert sum(row.patches for row in rows) <= 4 * bound.images_per_sample * of_bound.num_patches
    assert bound.images_per_sample * of_bound.num_tokens <= bound.seq_len


def test_seconds_are_those_of_every_micro_batch_by_itself(tmp_path: Path):
    path = drawn_chats(tmp_path / "data", 200, images=False)
    request, _, data_runs = with_data(path, model=TEXT)
    source = request.from_data.source
    data_run = data_runs.of(source)
    order = epoch_order(200, seed=0, epoch=0)
    lengths = [source.trained.samples.shapes[index].tokens for index in order]
    exact = padding = computed = 0
    for start in range(0, 200, 8):
        of_ranks = [padded(max(lengths[at : at + 4]), 8, source.trained.limit) for at in (start, start + 4)]
        exact += data_runs.seconds(Covering(seq_len=max(of_ranks)))
        computed += 4 * sum(of_ranks)
        padding += 4 * sum(of_ranks) - sum(lengths[start : start + 8])
    assert data_run.num_steps == 25
    assert data_run.run_seconds == pytest.approx(exact, rel=0.003)
    assert data_run.padding_fraction == pytest.approx(padding / computed)


@pytest.mark.sweep
def test_what_would_buy_keeps_its_promises(tmp_path: Path):
    path = drawn_chats(tmp_path / "data", 400, images=True)
    request, _, data_runs = with_data(path, model=SEES)
    source = request.from_data.source
    base = data_runs.of(source)
    options = {option.name: option for option in data_options(data_runs, source)}
    grouped = options.pop("group by length").data_run
    assert grouped.padding_fraction < 0.5 * base.padding_fraction
    assert grouped.run_seconds < base.run_seconds
    assert grouped.bound_bytes == base.bound_bytes
    limits = [one for name, one in options.items() if name.startswith("--seq-len")]
    assert [one.cut_fraction for one in limits] == sorted(one.cut_fraction for one in limits)
    assert all(one.data_run.bound_bytes < base.bound_bytes for one in limits)
    smaller = [one for name, one in options.items() if name.startswith("images of")]
    assert len(smaller) == 2
    assert smaller[1].data_run.bound_bytes < smaller[0].data_run.bound_bytes < base.bound_bytes
    assert 0 < smaller[0].shrunk_fraction < smaller[1].shrunk_fraction < 1


@pytest.mark.sweep
def test_packing_computes_no_padding_in_rows_of_the_limit(tmp_path: Path):
    path = drawn_chats(tmp_path / "data", 400, images=False)
    request, _, data_runs = with_data(path, model=TEXT)
    source = request.from_data.source
    [packed] = [one for one in data_options(data_runs, source) if one.name.startswith("packing")]
    assert packed.data_run.padding_fraction < 0.05
    assert packed.data_run.run_seconds < data_runs.of(source).run_seconds
    assert packed.data_run.worst.covering.seq_len == source.trained.limit


def test_images_that_the_model_cannot_take_are_not_made_smaller(tmp_path: Path):
    path = drawn_chats(tmp_path / "data", 20, images=True)
    request, _, data_runs = with_data(path, model=TEXT)
    source = request.from_data.source
    assert source.found.num_refused > 0
    assert not any(option.name.startswith("images") for option in data_options(data_runs, source))


@pytest.mark.sweep
@pytest.mark.parametrize("allocator", ["--expandable-segments", "--no-expandable-segments"])
def test_the_largest_that_fits_does_and_one_more_does_not(allocator: str, tmp_path: Path):
    path = drawn_chats(tmp_path / "data", 40, images=False)
    words = ("estimate", "--model", TEXT, "--gpu", "rtx-4090", "--method", "lora", allocator, "--json")
    found = json.loads(call(*words, "--data", str(path)).out)["data"]
    length, most = str(found["any_order"]["seq_len"]), found["largest_that_fits"]["micro_batch"]
    verdicts = [
        json.loads(call(*words, "--seq-len", length, "--micro-batch", str(count)).out)["verdict"]
        for count in (most, most + 1)
    ]
    assert verdicts[0] == "fits"
    assert verdicts[1] != "fits"


@pytest.mark.sweep
def test_where_it_does_not_fit_the_way_out_is_of_the_same_data(tmp_path: Path):
    path = drawn_chats(tmp_path / "data", 40, images=False)
    words = ("--model", TEXT, "--gpu", "rtx-3060", "--method", "full", "--micro-batch", "64", "--data", str(path))
    answer = call("estimate", *words, "--json")
    assert (answer.code, answer.document["verdict"]) == (3, "does_not_fit")
    assert f"--data {path}" in answer.document["to_fit"]["command"]


@pytest.mark.sweep
@pytest.mark.parametrize("command", ["recommend", "advise"])
def test_a_search_plans_from_the_data_and_its_commands_name_it(command: str, tmp_path: Path):
    path = drawn_chats(tmp_path / "data", 30, images=False)
    found = json.loads(call(command, "--model", TEXT, "--gpu", "rtx-4090:1", "--data", str(path), "--json").out)
    source = parse({"model": TEXT, "data": path}).from_data.source
    assert found["workload"]["seq_len"] == source.covering.seq_len
    assert found["workload"]["num_samples"] == 30
    assert sum(one["count"] for one in found["data"]["tokens"]["histogram"]) == 30
    best = found["plans"][0]["estimate"] if command == "recommend" else found["base"]["estimate"]
    assert found["data"]["any_order"]["peak_allocated_bytes"] == best["peak_allocated_bytes"]
    if command == "recommend":
        text = call(command, "--model", TEXT, "--gpu", "rtx-4090:1", "--data", str(path)).out
        assert f"data: {path}: 30 samples" in text
        assert "the best on these samples" in text
        assert text.endswith("add --out DIR to write plan.json, ds_config.json and launch.sh of the first plan\n")
    source = parse({"model": TEXT, "data": path}).from_data.source
    assert found["workload"]["seq_len"] == source.covering.seq_len
    assert found["workload"]["num_samples"] == 30
    assert sum(one["count"] for one in found["data"]["tokens"]["histogram"]) == 30
    best = found["plans"][0]["estimate"] if command == "recommend" else found["base"]["estimate"]
    assert found["data"]["any_order"]["peak_allocated_bytes"] == best["peak_allocated_bytes"]
    text = call(command, "--model", TEXT, "--gpu", "rtx-4090:1", "--data", str(path)).out
    assert f"data: {path}: 30 samples" in text
    assert "the best on these samples" in text
    assert command == "advise" or text.endswith(
        "add --out DIR to write plan.json, ds_config.json and launch.sh of the first plan\n"
    )
    request = parse({"model": TEXT, "data": path, "epochs": 2.0})
    assert {name: value for name, value in request.options().items() if value is not None} == {
        "model": TEXT,
        "data": path,
        "epochs": 2.0,
    }


@pytest.mark.sweep
def test_a_configuration_s_rules_are_followed(tmp_path: Path):
    (tmp_path / "lf").mkdir()
    jsonl(tmp_path / "lf", {"ask": "x" * 3200, "say": "y"}, {"ask": "x", "say": "y"}, name="a.jsonl")
    info = {"a": {"file_name": "a.jsonl", "columns": {"prompt": "ask", "response": "say"}}, "b": {"file_name": "b"}}
    (tmp_path / "lf" / "dataset_info.json").write_text(json.dumps(info))
    config = tmp_path / "train.yaml"
    config.write_text(
        f"model_name_or_path: {TEXT}\nstage: sft\nfinetuning_type: lora\ndataset: a\ntemplate: llama3\n"
        "cutoff_len: 500\nbf16: true\ntrain_sampling_strategy: group_by_length\nimage_max_pixels: 1000\n"
    )
    source = parse({"config": config, "data": tmp_path / "lf"}).from_data.source
    assert (source.rules.order, source.rules.pads_to, source.rules.max_pixels) == (Order.BY_LENGTH, 8, 1000)
    assert (source.trained.num_cut, source.limit_source, source.covering.seq_len) == (1, str(config), 500)
    shown = call("check", str(config), "--gpu", "rtx-4090", "--data", str(tmp_path / "lf"))
    assert "limit: 500 tokens" in shown.out
    assert "1 of 2 samples (50.0%) are longer and cut" in shown.out


def test_a_small_image_is_made_as_large_as_the_trainer_makes_it():
    whole = Dataset(
        source="it",
        samples=(SampleSize(5, ((10, 10),)),),
        forms={},
        num_bad=0,
        sentences=(),
        counting="",
        is_exact=True,
    )
    files = find_model(SEES)
    assert sample_shapes(whole, files, DataRules()).shapes[0].num_images == 1
    assert sample_shapes(whole, files, DataRules(min_pixels=100 * 100)).sizes[0][1] == (100, 100)


def test_a_plan_to_launch_has_room_for_as_many_of_the_largest_images_as_a_sample_shows(tmp_path: Path):
    for name, size in (("small", (56, 56)), ("large", (560, 560))):
        (tmp_path / f"{name}.png").write_bytes(png_header(*size))
    small, large = ({"type": "image", "path": f"{name}.png"} for name in ("small", "large"))
    path = jsonl(tmp_path, asked(small, small, small), asked(large), asked("x" * 320))
    request = parse({"model": SEES, "gpu": "a100-sxm4-80gb", "method": "lora", "data": path})
    trainer = TrainerOptions(output_dir=tmp_path / "run", train_data=path)
    plan, _ = planned(request, (), trainer)
    workload = plan.workload
    assert (workload.images_per_sample, workload.image_width, workload.image_height) == (3, 560, 560)
    assert workload.seq_len >= 3 * (560 // 28) ** 2
    assert workload.num_samples == 3
    covers = request.from_data.source.covering
    assert covers.images_per_sample * (covers.image_size[0] // 28) ** 2 >= (560 // 28) ** 2
    assert covers.seq_len < workload.seq_len


def chats_beside_other_images(folder: Path, name: str = "chats.jsonl") -> tuple[Path, Path]:
    """A sample whose image is not beside it, and the folder where it is."""
    for place in ("text", "pictures"):
        (folder / place).mkdir(parents=True)
    (folder / "pictures" / "cat.png").write_bytes(png_header(280, 560))
    row = asked({"type": "image", "path": "cat.png"}, {"type": "text", "text": "x"})
    return jsonl(folder / "text", row, name=name), folder / "pictures"


def test_images_are_looked_for_in_the_image_folder_and_requests_name_it(tmp_path: Path):
    path, pictures = chats_beside_other_images(tmp_path)
    common = ("--model", SEES, "--data", str(path))
    refused = call("estimate", *common, "--gpu", "rtx-4090")
    assert (refused.code, "cat.png" in refused.err) == (1, True)
    request = parse({"model": SEES, "data": path, "image_folder": pictures})
    assert request.from_data.source.trained.samples.shapes[0].num_images == 1
    assert request.options()["image_folder"] == pictures
    alone = call("estimate", "--model", SEES, "--image-folder", str(pictures), "--gpu", "rtx-4090")
    assert (alone.code, "give --data too" in alone.err) == (1, True)
    nowhere = call("estimate", *common, "--image-folder", str(path), "--gpu", "rtx-4090")
    assert (nowhere.code, "is no folder" in nowhere.err) == (1, True)


@pytest.mark.sweep
def test_launch_plans_with_the_image_folder_that_it_trains_with(tmp_path: Path):
    path, pictures = chats_beside_other_images(tmp_path)
    common = ("--model", SEES, "--data", str(path))
    run = ("--output-dir", str(tmp_path / "run"), "--gpu", "cpu:1", "--dry-run", "--json", "--random-weights")
    started = call("launch", *common, "--image-folder", str(pictures), *run).document
    assert started["plan"]["workload"]["images_per_sample"] == 1


def test_images_are_looked_for_where_the_trainer_does(tmp_path: Path):
    path, pictures = chats_beside_other_images(tmp_path)
    columns = {"messages": "messages"}
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    row = {"messages": [{"role": "user", "content": "<image>x"}, {"role": "assistant", "content": "y"}]}
    jsonl(tmp_path / "text", {**row, "images": ["cat.png"]})
    info = {"file_name": f"text/{path.name}", "formatting": "sharegpt", "columns": columns | {"images": "images"}}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"a": {**info, "tags": tags}}))
    config = tmp_path / "train.yaml"
    text = (
        f"model_name_or_path: {SEES}\nstage: sft\nfinetuning_type: lora\ndataset: a\ntemplate: qwen2_vl\nbf16: true\n"
        "per_device_train_batch_size: 1\n"
    )
    config.write_text(text + "media_dir: pictures\n")
    assert parse({"config": config, "data": tmp_path}).from_data.source.found.longest > 100
    config.write_text(text + "media_dir: elsewhere\n")
    with pytest.raises(InputError, match="elsewhere, which is no folder"):
        parse({"config": config, "data": tmp_path})
    config.write_text(text)
    (pictures / "cat.png").rename(tmp_path / "cat.png")  # beside dataset_info.json, which is media_dir's default
    assert parse({"config": config, "data": tmp_path}).from_data.source.found.longest > 100
    script = tmp_path / "train.sh"
    script.write_text(f"ROOT_IMAGE_DIR={tmp_path} swift sft --model {SEES} --dataset a --torch_dtype bfloat16\n")
    assert parse({"config": script, "data": path}).from_data.source.found.longest > 100
