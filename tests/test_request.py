"""What options mean: nothing that was given is lost, what was not given is completed, contradictions are refused."""

import json
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chat_files import asked, jsonl, png_header, text
from planned import cluster, decided, decided_fields, model_files
from vlmplan.catalog import Catalog, shipped_catalog
from vlmplan.deepspeed_config import settings_from_ds_config
from vlmplan.errors import InputError, UnavailableError, UnknownNameError
from vlmplan.other_trainers.writing import Tool, objection
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, LossKind, Method, Offload, OptimizerKind, Precision
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.recipe.evaluation import Evaluation, Kept
from vlmplan.request import HardwareRequest, Request, WorkloadRequest, image_size, parse, requested_cluster
from vlmplan.request.record import ENUM_OPTIONS, VALUE_OPTIONS
from vlmplan.request.samples import length_notes, workload_of
from vlmplan.request.setup import (
    batch_sizes,
    fixed_recipe,
    requested_setup,
    resolved_recipe,
    samples_per_step,
)
from vlmplan.sample_images import image_tokens
from vlmplan.workload import DEFAULT_IMAGE_SIZE, DEFAULT_NUM_SAMPLES, DEFAULT_SEQ_LEN, ModelFiles

NETWORK_NOTE = "the network between nodes is taken as 100 Gbit/s per node; --inter-node-gbit says otherwise"
QWEN, LLAMA = model_files("qwen2-vl-2b"), model_files("tinyllama-1.1b")
SHIPPED = Catalog(shipped_catalog())


# Workloads


def test_workload_of_no_options_is_the_default_one():
    workload = workload_of(LLAMA, WorkloadRequest())
    assert (workload.seq_len, workload.num_samples, workload.epochs) == (DEFAULT_SEQ_LEN, DEFAULT_NUM_SAMPLES, 1.0)
    assert workload.global_batch is None


def test_model_that_sees_gets_one_image_a_sample_and_a_text_model_none():
    assert workload_of(QWEN, WorkloadRequest()).images_per_sample == 1
    assert workload_of(LLAMA, WorkloadRequest()).images_per_sample == 0
    assert workload_of(QWEN, WorkloadRequest(images_per_sample=0)).images_per_sample == 0


def test_options_of_a_workload_are_taken_as_they_are():
    options = {"seq_len": 2 * 3, "num_samples": 5 * 7, "epochs": 1.5, "global_batch": 11, "images_per_sample": 13}
    workload = workload_of(QWEN, parse(options).workload)
    assert {name: getattr(workload, name) for name in options} == options


@given(st.integers(1, 999_999), st.integers(1, 999_999), st.sampled_from(["x", "X", "×", " x "]))
def test_image_size_is_width_by_height(width: int, height: int, by: str):
    assert image_size(f"{width}{by}{height}") == (width, height)


def test_image_size_that_is_not_given_is_the_default():
    assert image_size(None) == DEFAULT_IMAGE_SIZE


@pytest.mark.parametrize("text", ["448", "448x", "x448", "0x448", "448x0", "-1x448", "1.5x2", "1000000x1", "axb", ""])
def test_image_sizes_that_are_none_are_refused_with_the_form(text: str):
    with pytest.raises(InputError, match=f"--image-size is '{text}'; WIDTHxHEIGHT.*at most 999,999"):
        image_size(text)


def test_a_default_image_that_overflows_the_default_length_gets_room_for_text():
    smolvlm = model_files("smolvlm-2.2b")
    workload = workload_of(smolvlm, WorkloadRequest())
    assert image_tokens(workload) > DEFAULT_SEQ_LEN
    assert workload.seq_len == -(-(image_tokens(workload) + 256) // 256) * 256
    assert f"{image_tokens(workload):,} tokens" in length_notes(workload, WorkloadRequest())[0]


def test_what_the_user_says_of_length_or_images_is_left_alone():
    smolvlm = model_files("smolvlm-2.2b")
    for said in ({"seq_len": 900}, {"images_per_sample": 1}, {"image_size": "448x448"}):
        assert workload_of(smolvlm, parse(said).workload).seq_len == said.get("seq_len", DEFAULT_SEQ_LEN)


def test_longer_samples_than_the_model_is_configured_for_are_noted():
    longest = LLAMA.config["max_position_embeddings"]
    known, longer = WorkloadRequest(seq_len=longest), WorkloadRequest(seq_len=longest + 1)
    assert not length_notes(workload_of(LLAMA, known), known)
    (note,) = length_notes(workload_of(LLAMA, longer), longer)
    assert f"{longest:,}" in note


def test_the_default_length_is_one_that_a_q_former_can_read():
    model, nothing = model_files("instructblip-vicuna-7b"), WorkloadRequest()
    workload = workload_of(model, nothing)
    assert workload.seq_len == 512 + image_tokens(workload)
    (note,) = length_notes(workload, nothing)
    assert "--seq-len is taken as 544" in note
    assert "512 tokens" in note
    assert workload_of(model, WorkloadRequest(images_per_sample=0)).seq_len == DEFAULT_SEQ_LEN
    said = WorkloadRequest(seq_len=900)
    assert workload_of(model, said).seq_len == 900
    assert not length_notes(workload_of(model, said), said)


@pytest.mark.parametrize(("positions", "lengths"), [(1024, (1024, 128)), (512, (512, 128)), (64, (64, 64))])
def test_prompts_and_answers_are_no_longer_than_there_are_positions(positions: int, lengths: tuple[int, int]):
    model = ModelFiles(id="a bart", config={"model_type": "bart", "max_position_embeddings": positions})
    nothing = WorkloadRequest()
    workload = workload_of(model, nothing)
    assert (workload.seq_len, workload.target_len) == lengths
    assert len(length_notes(workload, nothing)) == (positions < DEFAULT_SEQ_LEN)
    said = WorkloadRequest(seq_len=48, target_len=16)
    assert (workload_of(model, said).seq_len, workload_of(model, said).target_len) == (48, 16)


@pytest.mark.parametrize("tool", Tool)
def test_no_other_trainer_is_written_an_encoder_and_a_decoder(tool: Tool):
    model = ModelFiles(id="a bart", config={"model_type": "bart"})
    assert "one text" in str(objection(tool, Recipe(), model))


# Recipes

GIVEN = {
    "method": "lora",
    "lora_rank": 2 * 3,
    "lora_alpha": 5 * 7,
    "lora_dropout": 0.25,
    "use_rslora": True,
    "adapter_dtype": "model",
    "weight_dtype": "float32",
    "uses_autocast": False,
    "lora_targets": "attention",
    "precision": "fp16",
    "optimizer": "sgd",
    "offload_optimizer": "cpu",
    "offload_params": "nvme",
    "nvme_path": "/nvme",
    "attention": "eager",
    "loss": "full",
    "zero_stage": "3",
    "micro_batch": 5,
    "grad_accum": 7,
    "hpz": 4,
    "dp_shard_size": 2,
    "train_vision": False,
    "activation_checkpointing": False,
}


def test_every_option_becomes_the_field_of_its_name():
    recipe = parse(GIVEN).recipe
    assert recipe.names == GIVEN.keys()
    fields = decided_fields(recipe)
    assert fields["method"] is Method.LORA
    assert fields["precision"] is Precision.FP16
    assert fields["optimizer"] is OptimizerKind.SGD
    assert (fields["offload_optimizer"], fields["offload_params"]) == (Offload.CPU, Offload.NVME)
    assert fields["attention"] is AttentionImplementation.EAGER
    assert fields["loss"] is LossKind.FULL
    assert fields["zero_stage"] == 3
    assert {name: fields[name] for name in VALUE_OPTIONS if name in GIVEN} == {
        name: GIVEN[name] for name in VALUE_OPTIONS if name in GIVEN
    }


def test_every_option_of_a_recipe_is_one_of_its_fields():
    fields = {*Recipe().as_json()}
    assert {*VALUE_OPTIONS, *ENUM_OPTIONS} <= fields


def test_what_was_not_given_is_left_open():
    assert parse(dict.fromkeys(GIVEN)) == parse({}) == Request()
    assert DecidedRecipe().names == set()


def test_switch_that_was_given_as_off_is_not_taken_as_not_given():
    assert parse({"train_language": False}).recipe == DecidedRecipe(train_language=False)


def test_stage_none_is_plain_pytorch():
    assert parse({"zero_stage": "none"}).recipe.recipe().zero_stage is None


@pytest.mark.parametrize("name", ENUM_OPTIONS)
def test_value_that_is_none_of_the_choices_is_refused_with_all_of_them(name: str):
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} is 'nonsense'; one of") as raised:
        parse({name: "nonsense"})
    assert all(str(kind.value) in str(raised.value) for kind in ENUM_OPTIONS[name])


def resolved(fields: dict | None = None, gpu: str = "a100-sxm4-80gb", num_gpus: int = 1, **more: object) -> Recipe:
    return resolved_recipe(decided(**(fields or {})), cluster(gpu, num_gpus), more.pop("model", LLAMA), **more)[0]


def test_one_gpu_trains_in_plain_pytorch_and_several_under_stage_2():
    assert resolved().zero_stage is None
    assert resolved(num_gpus=2).zero_stage == 2


def test_offloading_brings_the_stage_that_can():
    assert resolved({"offload_optimizer": Offload.CPU}).zero_stage == 2
    assert resolved({"offload_optimizer": Offload.CPU, "offload_params": Offload.CPU}).zero_stage == 3


def test_cards_without_bf16_train_in_fp16():
    assert resolved().precision is Precision.BF16
    assert resolved(gpu="t4").precision is Precision.FP16


def test_model_that_refuses_sdpa_gets_eager_attention():
    assert resolved().attention is AttentionImplementation.SDPA
    assert resolved(model=model_files("gemma-2-2b")).attention is AttentionImplementation.EAGER


def test_vision_tower_is_checkpointed_as_the_language_model_unless_said_otherwise():
    off = {"activation_checkpointing": False}
    assert not resolved(off).vision_activation_checkpointing
    assert resolved(off | {"vision_activation_checkpointing": True}).vision_activation_checkpointing
    assert resolved().vision_activation_checkpointing


@pytest.mark.parametrize("gpu", ["a100-sxm4-80gb", "t4"])
def test_plain_pytorch_does_what_torch_and_peft_do_by_default(gpu: str):
    recipe = resolved({"method": Method.QLORA}, gpu)
    assert not recipe.fuses_optimizer
    assert not recipe.expandable_segments
    assert recipe.caches_casts
    assert recipe.upcasts_frozen  # prepare_model_for_kbit_training: what is float16 as well as what is bfloat16
    assert not resolved({"method": Method.LORA}, gpu).upcasts_frozen


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16_PURE])
def test_nothing_is_cached_of_casts_that_there_are_none_of(precision: Precision):
    assert not resolved({"precision": precision, "zero_stage": "none"}).caches_casts


def test_weights_are_not_upcast_where_nothing_casts_them_back():
    assert not resolved({"method": Method.QLORA, "precision": Precision.BF16_PURE}).upcasts_frozen
    assert not resolved({"method": Method.QLORA}, num_gpus=2).upcasts_frozen


def test_given_fields_are_never_changed():
    fields = {
        "method": Method.LORA,
        "lora_rank": 3,
        "zero_stage": 1,
        "precision": Precision.FP32,
        "micro_batch": 5,
        "grad_accum": 7,
        "expandable_segments": True,
        "activation_checkpointing": False,
    }
    recipe = resolved(fields, num_gpus=2)
    assert {name: getattr(recipe, name) for name in fields} == fields


def test_what_cannot_run_is_refused_and_what_is_rarely_wanted_is_told():
    with pytest.raises(InputError, match="--precision bf16-pure does not go with --zero-stage 0"):
        resolved({"zero_stage": 0, "precision": Precision.BF16_PURE}, num_gpus=2)
    _, warnings = resolved_recipe(decided(zero_stage=2), cluster(), LLAMA)
    assert any("shards nothing" in warning for warning in warnings)


# Batches

COUNTS = st.integers(1, 64)
MAYBE = st.one_of(st.none(), COUNTS)


@given(global_batch=st.integers(1, 4096), num_gpus=COUNTS, micro_batch=MAYBE, grad_accum=MAYBE)
def test_micro_batch_times_accumulation_times_gpus_is_the_global_batch_or_an_error(
    global_batch, num_gpus, micro_batch, grad_accum
):
    known = num_gpus * (micro_batch or 1) * (grad_accum or 1)
    is_possible = global_batch % known == 0 and not (micro_batch and grad_accum and known != global_batch)
    if not is_possible:
        with pytest.raises(InputError, match=f"--global-batch is {global_batch}"):
            batch_sizes(global_batch, num_gpus, micro_batch, grad_accum)
        return
    found = batch_sizes(global_batch, num_gpus, micro_batch, grad_accum)
    assert found["micro_batch"] * found["grad_accum"] * num_gpus == global_batch
    assert micro_batch in (None, found["micro_batch"])
    assert grad_accum in (None, found["grad_accum"])


@given(global_batch=st.integers(1, 4096), num_gpus=COUNTS, micro_batch=COUNTS)
def test_error_names_a_global_batch_that_works(global_batch: int, num_gpus: int, micro_batch: int):
    assume(global_batch % (num_gpus * micro_batch))
    with pytest.raises(InputError, match="the nearest is") as raised:
        batch_sizes(global_batch, num_gpus, micro_batch, None)
    nearest = int(str(raised.value).rpartition(" ")[2])
    assert batch_sizes(nearest, num_gpus, micro_batch, None)
    assert abs(nearest - global_batch) <= num_gpus * micro_batch


def test_both_sizes_given_name_the_only_global_batch_that_works():
    with pytest.raises(InputError, match=r"4 GPUs x micro batch 3 x accumulation 5 make 60$"):
        batch_sizes(100, 4, 3, 5)


def test_resolved_recipe_holds_the_global_batch():
    recipe = resolved({"micro_batch": 2}, num_gpus=4, global_batch=2 * 4 * 7)
    assert (recipe.micro_batch, recipe.grad_accum) == (2, 7)
    with pytest.raises(InputError, match="--global-batch is 9"):
        resolved(num_gpus=4, global_batch=9)


# A ds_config.json

CONFIG = {
    "train_batch_size": 2 * 3 * 4,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 3,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 7_000_000, "offload_optimizer": {"device": "cpu"}},
}


@pytest.fixture
def ds_config(tmp_path: Path) -> Path:
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return path


def test_search_holds_what_the_config_file_decides(ds_config: Path):
    fields = decided_fields(fixed_recipe(parse({"ds_config": ds_config, "method": "full"}), LLAMA))
    assert fields["zero_stage"] == 3
    assert fields["offload_optimizer"] is Offload.CPU
    assert fields["precision"] is Precision.BF16
    assert (fields["micro_batch"], fields["grad_accum"]) == (2, 3)
    assert fields["zero"].reduce_bucket_size == 7_000_000
    assert fields["method"] is Method.FULL


def test_option_that_says_the_same_as_the_file_is_no_contradiction(ds_config: Path):
    said = parse({"ds_config": ds_config, "zero_stage": "3", "micro_batch": 2})
    assert fixed_recipe(said, LLAMA).zero_stage == 3


@pytest.mark.parametrize(
    ("name", "value"), [("zero_stage", "2"), ("micro_batch", 5), ("precision", "fp16"), ("offload_optimizer", "none")]
)
def test_option_that_contradicts_the_file_is_refused_with_both_values(ds_config: Path, name: str, value: object):
    with pytest.raises(InputError, match="one of the two has to change") as raised:
        fixed_recipe(parse({"ds_config": ds_config, name: value}), LLAMA)
    assert f"--{name.replace('_', '-')} {value} was given" in str(raised.value)
    assert str(ds_config) in str(raised.value)


def test_recipe_of_an_estimate_is_that_of_the_file(ds_config: Path):
    recipe = resolved(num_gpus=4, ds_config=settings_from_ds_config(ds_config))
    assert (recipe.zero_stage, recipe.offload_optimizer) == (3, Offload.CPU)
    assert (recipe.micro_batch, recipe.grad_accum) == (2, 3)
    assert recipe.zero.reduce_bucket_size == 7_000_000


def test_samples_of_a_step_are_the_options_or_the_files(ds_config: Path):
    of_file = parse({"ds_config": ds_config})
    assert samples_per_step(Request()) is None
    assert samples_per_step(parse({"global_batch": 5})) == 5
    assert samples_per_step(of_file) == samples_per_step(of_file.with_options({"global_batch": 24})) == 24
    with pytest.raises(InputError, match="train_batch_size is 24, but --global-batch 25"):
        samples_per_step(of_file.with_options({"global_batch": 25}))


# Clusters


def test_cluster_is_the_named_card_on_as_many_nodes():
    found, notes = requested_cluster(parse({"gpu": "a100-sxm4-80gb:2", "num_nodes": 3}).hardware, SHIPPED)
    assert (found.node.gpu.id, found.node.num_gpus, found.num_gpus) == ("a100-sxm4-80gb", 2, 2 * 3)
    assert NETWORK_NOTE in notes


def test_one_node_needs_no_network():
    assert HardwareRequest().node_count == 1
    assert NETWORK_NOTE not in requested_cluster(parse({"gpu": "t4"}).hardware, SHIPPED)[1]


def test_the_network_between_nodes_is_said_in_gbit_per_second():
    found, notes = requested_cluster(parse({"gpu": "t4", "num_nodes": 2, "inter_node_gbit": 400.0}).hardware, SHIPPED)
    assert found.inter_node_bytes_per_second == 400e9 / 8
    assert NETWORK_NOTE not in notes


@pytest.mark.parametrize("gbit", [0.0, -1.0, float("nan"), float("inf")])
def test_a_network_without_a_rate_is_refused(gbit: float):
    with pytest.raises(InputError, match=r"--inter-node-gbit is .*; above 0"):
        requested_cluster(parse({"gpu": "t4", "num_nodes": 2, "inter_node_gbit": gbit}).hardware, SHIPPED)


@pytest.mark.parametrize("num_nodes", [0, -1])
def test_less_than_one_node_is_refused(num_nodes: int):
    with pytest.raises(InputError, match=f"--num-nodes is {num_nodes}; 1 or more"):
        HardwareRequest(num_nodes=num_nodes)


def test_unknown_card_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match="a100-sxm4-80gb"):
        requested_cluster(parse({"gpu": "a100-sxm-80gb"}).hardware, SHIPPED)


def test_without_a_card_here_or_named_the_user_is_told_to_name_one(monkeypatch: pytest.MonkeyPatch):
    def no_driver() -> None:
        raise UnavailableError("no NVIDIA driver")

    monkeypatch.setattr("vlmplan.machine.nvml.read_machine", no_driver)
    with pytest.raises(InputError, match=r"give --gpu NAME\[:COUNT\].*no NVIDIA driver"):
        requested_cluster(HardwareRequest(), SHIPPED)
    with pytest.raises(UnavailableError, match=r"^no NVIDIA driver$"):
        requested_cluster(parse({"gpu": "local"}).hardware, SHIPPED)


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        ("dpo", "chosen and rejected are missing; --task dpo trains on prompt, chosen and rejected"),
        ("grpo", "--data .* does not say how long the answers are that --task grpo trains on.*--seq-len"),
    ],
)
def test_samples_of_fine_tuning_are_not_taken_for_those_of_a_task(tmp_path: Path, task: str, sentence: str):
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps({"prompt": "2 + 2?", "completion": "4"}) + "\n", encoding="utf-8")
    options = {"model": "qwen2.5-0.5b", "gpu": "rtx-4090", "data": file}
    assert parse(options).from_data is not None
    with pytest.raises(InputError, match=sentence):
        parse({**options, "task": task})
    configured = tmp_path / "dpo.yaml"
    configured.write_text("model_name_or_path: qwen2.5-0.5b\nbeta: 0.1\nprecompute_ref_log_probs: true\n")
    if task == "dpo":
        with pytest.raises(InputError, match=sentence):
            parse({**options, "config": configured})


@pytest.mark.parametrize("max_length", [None, 64])
def test_a_request_of_samples_keeps_the_limits_that_are_said_beside_them(tmp_path: Path, max_length: int | None):
    """Its options ask for the same again: a sample that the limit cut is not taken for as long as it was."""
    (tmp_path / "image.png").write_bytes(png_header(1000, 1000))
    rows = [asked({"type": "image", "path": "image.png"}, text("x" * length)) for length in (200, 600)]
    options = {"model": "qwen2-vl-2b", "gpu": "rtx-4090:1", "data": str(jsonl(tmp_path, *rows))}
    if max_length is not None:
        file = tmp_path / "trl.yaml"
        file.write_text(f"model_name_or_path: qwen2-vl-2b\nmax_length: {max_length}\nbf16: true\n", encoding="utf-8")
        options |= {"config": str(file)}
    limits = {"seq_len": 128, "image_size": "112x112", "images_per_sample": 1}
    request = parse({**options, **limits})
    assert {name: request.option(name) for name in limits} == limits
    assert parse(request.options()).workload == request.workload
    assert parse(request.with_options({"method": "lora"}).options()).workload == request.workload


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lf.yaml", "model_name_or_path: {model}\nstage: sft\ntemplate: default\nfinetuning_type: full\nbf16: true\n"),
        ("trl.yaml", "model_name_or_path: {model}\nmax_length: 512\nbf16: true\n"),
        ("swift.sh", "swift sft --model {model} --train_type lora --max_length 512\n"),
    ],
)
def test_a_file_of_a_trainer_of_one_text_is_refused_for_an_encoder_and_a_decoder(tmp_path: Path, name: str, text: str):
    folder = tmp_path / "bart"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bart"}))
    file = tmp_path / name
    file.write_text(text.format(model=folder))
    request = parse({"gpu": "rtx-4090", "config": file})
    machine, model = requested_cluster(request.hardware, SHIPPED), request.model_files
    for ask in (lambda: requested_setup(request, machine, model), lambda: fixed_recipe(request, model)):
        with pytest.raises(InputError, match="takes prompt and answer for one text"):
            ask()


@pytest.mark.parametrize(
    ("kept", "loss"), [("loss", LossKind.CHUNKED), ("predictions", LossKind.FULL), ("logits", LossKind.FULL)]
)
def test_where_an_evaluation_keeps_logits_the_loss_that_nobody_chose_makes_them(kept: str, loss: LossKind):
    assert resolved({"evaluation": Evaluation(batch=4, kept=Kept(kept))}).loss is loss
