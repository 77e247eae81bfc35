"""What single keys mean in each trainer, as its source has it."""

import json
from pathlib import Path
from typing import Any

import pytest

from vlmplan.errors import InputError, UnavailableError
from vlmplan.models import find_model
from vlmplan.notes import Caveat
from vlmplan.other_trainers import Asked, TrainerConfig, open_trainer_config
from vlmplan.other_trainers.read import read_trainer_config
from vlmplan.recipe.choices import Method, Precision

LLAMA_FACTORY: dict[str, Any] = {"stage": "sft", "finetuning_type": "lora", "bf16": True}
MS_SWIFT: dict[str, Any] = {"tuner_type": "lora", "torch_dtype": "bfloat16"}
TRL: dict[str, Any] = {"dataset_name": "d", "use_peft": True, "lora_target_modules": "all-linear"}
SEES, READS = "qwen2.5-vl-3b", "qwen2.5-0.5b"


@pytest.fixture
def read(tmp_path):
    def config(values: dict[str, Any], model: str = READS, **asked: Any) -> TrainerConfig:
        path = tmp_path / "train.json"
        path.write_text(json.dumps(values), encoding="utf-8")
        return read_trainer_config(path, Asked(model=model, find_model=find_model, **{"num_gpus": 1, **asked}))

    return config


def refused(read, values: dict[str, Any], *words: str) -> None:
    with pytest.raises(InputError) as caught:
        read(values)
    for word in words:
        assert word in str(caught.value)


# -- types of weights ------------------------------------------------------------------------------------------------


def test_trl_loads_in_float32_unless_told_otherwise(read):
    assert read(TRL).options["weight_dtype"] == "float32"
    full = {"dataset_name": "d", "dtype": "bfloat16"}
    assert read(full).options["weight_dtype"] == "model"
    assert "weight_dtype" not in read(TRL | {"dtype": "bfloat16"}).options  # adapters have an option of their own


def test_llama_factory_trains_in_float32_beside_16_bit_unless_pure(read):
    full = LLAMA_FACTORY | {"finetuning_type": "full"}
    assert read(full).options["weight_dtype"] == "table"
    assert read(full | {"pure_bf16": True}).options["weight_dtype"] == "model"
    pure = read({"stage": "sft", "finetuning_type": "full", "pure_bf16": True}).options
    assert (pure["precision"], "weight_dtype" in pure) == ("bf16-pure", False)


def test_ms_swift_trains_in_the_checkpoints_type_under_autocast(read):
    options = read(MS_SWIFT | {"tuner_type": "full"}).options
    assert (options["weight_dtype"], options["precision"], options["uses_autocast"]) == ("model", "bf16", True)
    wide = read(MS_SWIFT | {"torch_dtype": "float32"}).options
    assert (wide["weight_dtype"], wide["precision"]) == ("float32", "fp16")


def test_llama_factory_keeps_inputs_of_checkpoints_on_the_host_as_unsloth_does(read):
    told = LLAMA_FACTORY | {"use_unsloth_gc": True}
    assert read(told).options == read(LLAMA_FACTORY).options | {"offload_activations": True}
    without = LLAMA_FACTORY | {"disable_gradient_checkpointing": True}
    assert read(without | {"use_unsloth_gc": True}).options == read(without).options
    packed = told | {"quantization_bit": 8, "use_reentrant_gc": False}
    assert read(packed).options["checkpoint_kind"] == "reentrant"
    refused(read, told | {"stage": "dpo"}, "use_unsloth_gc is true; of preferences")
    sharded = {
        "fsdp": "full_shard auto_wrap",
        "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"},
    }
    refused(read, told | sharded, "use_unsloth_gc under FSDP2 is not planned")


def test_what_ms_swift_writes_of_a_run_is_read_as_what_the_run_was_told(read):
    told = MS_SWIFT | {"tuner_type": "full"}
    made = {
        "model_info": "ModelInfo(...)",
        "model_meta": "ModelMeta(...)",
        "hub": "MSHub",
        "_val_dataset_exists": False,
    }
    parts = {"freeze_parameters": ["model.visual"], "trainable_parameters": ["model.visual.merger"]}
    found = read(told | made | parts | {"global_world_size": 1, "training_args": "Seq2SeqTrainingArguments(...)"})
    assert found.options == read(told).options
    assert any("freeze_parameters and trainable_parameters: taken for" in note for note in found.notes)
    refused(read, told | {"freeze_parameters": ["model.visual"]}, "freeze_parameters is")
    refused(read, told | {"trainable_parameters": ["model.visual"]}, "trainable_parameters is")


def test_types_of_plain_pytorch_are_left_to_deepspeed_where_it_is_used(read):
    config = read(MS_SWIFT | {"deepspeed": "zero2"})
    assert config.ds_config is not None
    assert config.ds_config.zero_stage == 2
    assert not {"weight_dtype", "adapter_dtype", "uses_autocast", "zero_stage"} & config.options.keys()


# -- what is trained ------------------------------------------------------------------------------------------------


def test_llama_factory_adapts_all_but_vision_and_never_the_projector_by_all(read):
    trained = ("train_vision", "train_projector", "train_language")
    assert [read(LLAMA_FACTORY, SEES).options[name] for name in trained] == [False, False, True]
    thawed = LLAMA_FACTORY | {"freeze_vision_tower": False, "freeze_multi_modal_projector": False}
    assert [read(thawed, SEES).options[name] for name in trained] == [True, False, True]
    assert [read(thawed | {"finetuning_type": "full"}, SEES).options[name] for name in trained] == [True, True, True]
    assert "train_vision" not in read(LLAMA_FACTORY).options


def test_all_of_llama_factory_are_linears_by_name_where_peft_cannot_take_all(read):
    frozen = read(LLAMA_FACTORY, "qwen3-omni-30b-a3b").options
    assert frozen["lora_targets"] == "q_proj,k_proj,v_proj,o_proj"
    thawed = read(LLAMA_FACTORY | {"freeze_vision_tower": False}, "qwen3-omni-30b-a3b").options
    assert thawed["lora_targets"] == read(LLAMA_FACTORY, "qwen2.5-omni-7b").options["lora_targets"] == "all-linear"


def test_the_sound_of_videos_is_refused_of_models_that_hear_it_and_nothing_to_others(read):
    hears = LLAMA_FACTORY | {"use_audio_in_video": True}
    with pytest.raises(InputError, match="use_audio_in_video is true; the sound of a video, which is heard beside its"):
        read(hears, "qwen2.5-omni-7b")
    assert read(hears, SEES).options == read(LLAMA_FACTORY, SEES).options
    quiet = read(LLAMA_FACTORY | {"use_audio_in_video": False}, "qwen2.5-omni-7b")
    assert quiet.options == read(LLAMA_FACTORY, "qwen2.5-omni-7b").options


def test_ranks_and_alphas_are_each_trainers_own(read):
    names = ("lora_rank", "lora_alpha", "lora_dropout")
    assert [read(LLAMA_FACTORY).options[name] for name in names] == [8, 2 * 8, 0.0]
    assert [read(LLAMA_FACTORY | {"lora_rank": 32}).options[name] for name in names] == [32, 2 * 32, 0.0]
    assert [read(MS_SWIFT).options[name] for name in names] == [8, 32, 0.05]
    assert [read(TRL).options[name] for name in names] == [16, 32, 0.05]


def test_peft_chooses_targets_where_trl_names_none(read):
    values = {"dataset_name": "d", "use_peft": True}
    assert read(values).options["lora_targets"] == "q_proj,v_proj"
    with pytest.raises(InputError, match="peft has no default for qwen2_5_vl"):
        read(values, SEES)


def test_trls_default_targets_are_pefts():
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as theirs

    from vlmplan.other_trainers.trl.sft import LORA_TARGETS

    assert {kind: ",".join(theirs[kind]) for kind in LORA_TARGETS} == dict(LORA_TARGETS)


def test_four_bits_make_qlora_and_other_bits_are_refused(read):
    assert read(LLAMA_FACTORY | {"quantization_bit": 4}).options["method"] == "qlora"
    assert read(MS_SWIFT | {"quant_bits": 4, "quant_method": "bnb"}).options["method"] == "qlora"
    assert read(TRL | {"load_in_4bit": True}).options["method"] == "qlora"
    refused(read, LLAMA_FACTORY | {"quantization_bit": 3}, "quantization_bit is 3", "4 and 8 are planned")
    refused(read, MS_SWIFT | {"quant_bits": 4, "quant_method": "hqq"}, 'quant_method is "hqq"')


@pytest.mark.parametrize(
    ("values", "told", "kinds"),
    [
        (LLAMA_FACTORY | {"quantization_bit": 8}, {"use_reentrant_gc": False}, ("reentrant", None)),
        (
            MS_SWIFT | {"quant_bits": 8, "quant_method": "bnb"},
            {"gradient_checkpointing_kwargs": '{"use_reentrant": true}'},
            (None, "reentrant"),
        ),
        (TRL | {"load_in_8bit": True}, {"gradient_checkpointing_kwargs": {"use_reentrant": True}}, (None, "reentrant")),
    ],
)
def test_eight_bits_are_read_with_the_checkpoints_of_each_trainer(read, values, told, kinds):
    silent, said = read(values).options, read(values | told).options
    assert (silent["method"], silent["upcasts_frozen"]) == ("lora-8bit", False)
    assert (silent.get("checkpoint_kind"), said.get("checkpoint_kind")) == kinds


def test_trl_takes_one_number_of_bits(read):
    refused(read, TRL | {"load_in_8bit": True, "load_in_4bit": True}, "load_in_8bit is true", "load_in_4bit is set too")
    assert read(TRL | {"load_in_8bit": True}).options["adapter_dtype"] == "model"


def test_no_trainer_upcasts_what_a_4_bit_model_leaves_in_16_bit(read):
    for values in (LLAMA_FACTORY | {"quantization_bit": 4}, MS_SWIFT | {"quant_bits": 4}, TRL | {"load_in_4bit": True}):
        assert read(values).options["upcasts_frozen"] is False
        assert "upcasts_frozen" not in read(values | {"deepspeed": {"zero_optimization": {"stage": 2}}}).options


def test_trl_makes_adapters_of_a_4_bit_model_bfloat16(read):
    assert read(TRL | {"load_in_4bit": True}).options["adapter_dtype"] == "model"
    assert read(TRL).options["adapter_dtype"] == "float32"
    refused(read, TRL | {"load_in_4bit": True, "fp16": True}, "fp16 is set", "bfloat16")


def test_weights_in_16_bit_without_autocast_are_trained_so(read):
    for values in ({"dtype": "bfloat16", "dataset_name": "d"}, {"torch_dtype": "bfloat16", "tuner_type": "full"}):
        options = read(values | {"bf16": False, "fp16": False}).options
        assert (options["precision"], "uses_autocast" in options) == ("bf16-pure", False)
    assert read({"dataset_name": "d", "bf16": False}).options["precision"] == "fp32"


def test_modules_that_ms_swift_is_told_by_name_are_adapted_in_every_part(read):
    trained = ("train_vision", "train_projector", "train_language")
    assert [read(MS_SWIFT, SEES).options[name] for name in trained] == [False, False, True]
    named = read(MS_SWIFT | {"target_modules": ["q_proj", "v_proj"]}, SEES)
    assert [named.options[name] for name in trained] == [True, True, True]


# -- samples --------------------------------------------------------------------------------------------------------


def test_lengths_are_each_trainers_own(read):
    assert read(LLAMA_FACTORY).options["seq_len"] == 2048
    assert read(TRL).options["seq_len"] == 1024
    open_length = read(MS_SWIFT)
    assert "seq_len" not in open_length.options
    assert any("max_length is not said" in note and "32,768 tokens" in note for note in open_length.notes)


def test_images_are_as_large_as_the_trainer_allows(read):
    assert read(LLAMA_FACTORY, SEES).options["image_size"] == "768x768"
    assert read(LLAMA_FACTORY | {"image_max_pixels": 262144}, SEES).options["image_size"] == "512x512"
    assert "image_size" not in read(LLAMA_FACTORY).options
    assert read(MS_SWIFT | {"max_pixels": 1003520}, SEES).options["image_size"] == "1001x1001"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"dataset": "AI-ModelScope/LaTeX_OCR:default#20000"}, 20000),
        ({"dataset": ["a#700", "hf::b:one/two#30"]}, 730),
        ({"dataset": "a#1000", "split_dataset_ratio": 0.01}, 990),
        ({"dataset": ["a#1000", "b#7"], "split_dataset_ratio": 0.01}, 990 + 6),
        ({"dataset": "a#1000", "split_dataset_ratio": 0.01, "val_dataset": "c"}, 1000),
        ({"dataset": ["a#700", "b"]}, None),
        ({"dataset": ["a#700", "b#30"], "interleave_prob": [0.5, 0.5]}, None),
        ({"dataset": "a"}, None),
    ],
)
def test_ms_swift_trains_on_as_many_samples_as_its_data_sets_say(read, values, expected):
    config = read(MS_SWIFT | values)
    assert config.options.get("num_samples") == expected
    assert ("dataset" in config.idle) is ("#" not in str(values["dataset"]) or "interleave_prob" in values)
    assert any("dataset says no number of samples of b:" in note for note in config.notes) is ("b" in values["dataset"])


def test_packed_samples_are_said_to_be_fewer_rows(read):
    packed = MS_SWIFT | {"dataset": "a#700", "packing": True, "attn_impl": "flash_attn"}
    assert any("700 samples" in note and "fewer" in note for note in read(packed).notes)


def test_a_number_of_samples_that_cannot_be_trained_on_is_refused(read):
    refused(read, MS_SWIFT | {"dataset": "a#0"}, "dataset is", "0 samples to train on")


def test_ms_swift_accumulates_16_samples_at_the_least(read):
    def accumulated(num_gpus: int | None, micro_batch: int) -> Any:
        options = read(MS_SWIFT | {"per_device_train_batch_size": micro_batch}, num_gpus=num_gpus).options
        return options.get("grad_accum"), options.get("global_batch")

    assert accumulated(1, 1) == (16, None)
    assert accumulated(3, 2) == (3, None)  # ceil(16 / (2 * 3))
    assert accumulated(8, 4) == (1, None)
    assert accumulated(None, 1) == (None, 16)
    assert read(MS_SWIFT | {"gradient_accumulation_steps": 5}).options["grad_accum"] == 5


def test_max_steps_go_before_epochs(read):
    values = LLAMA_FACTORY | {"max_steps": 100, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}
    options = read(values, num_gpus=4).options
    assert (options["num_samples"], options["epochs"]) == (100 * 2 * 3 * 4, 1.0)
    assert any("max_steps is 100" in note for note in read(values, num_gpus=None).notes)


# -- engines and options beside the file --------------------------------------------------------------------------


def test_without_deepspeed_several_gpus_train_under_ddp(read):
    for values in (LLAMA_FACTORY, MS_SWIFT, TRL):
        assert read(values, num_gpus=4).options["zero_stage"] == "none"


def test_an_engine_of_the_users_own_leaves_the_files_out(read):
    values = MS_SWIFT | {"deepspeed": "zero3"}
    sharded = read(values, uses_deepspeed=True)
    assert sharded.ds_config is None
    assert "weight_dtype" not in sharded.options
    plain = read(values | {"tuner_type": "full"}, uses_deepspeed=False)
    assert plain.ds_config is None
    assert plain.options["weight_dtype"] == "model"
    assert any("DeepSpeed configuration is left out" in note for note in plain.notes)


def test_a_method_or_precision_of_the_users_own_decides_what_follows(read):
    options = read(TRL, method=Method.FULL).options
    assert options["weight_dtype"] == "float32"
    assert not any(name.startswith("lora") for name in options)
    pure = read(MS_SWIFT | {"tuner_type": "full"}, precision=Precision.BF16_PURE).options
    assert "weight_dtype" not in pure


@pytest.mark.parametrize(("model", "side"), [("qwen2.5-vl-3b", 32 * 28), ("qwen3-vl-2b", 32 * 32)])
def test_image_tokens_of_ms_swift_are_as_large_as_the_models(read, model, side):
    values = MS_SWIFT | {"max_length": 4096, "ENV": {"IMAGE_MAX_TOKEN_NUM": "1024"}}
    config = read(values, model=model)
    assert config.options["image_size"] == f"{side}x{side}"
    assert config.data_rules.max_pixels == side * side
    assert "IMAGE_MAX_TOKEN_NUM=1024 limits each image" in config.notes


def test_a_variable_of_pixels_that_ms_swift_does_not_read_is_named(read):
    known = {"FPS_MAX_FRAMES": "12", "VIDEO_MAX_PIXELS": "50176", "TOKENIZERS_PARALLELISM": "false"}
    wrong = read(MS_SWIFT | {"ENV": {**known, "IMAGAE_MAX_PIXELS": "602112"}}, model=SEES)
    named = [note for note in wrong.notes if "is no variable that ms-swift reads" in note]
    assert named == ["IMAGAE_MAX_PIXELS is no variable that ms-swift reads of images; MAX_PIXELS limits them"]
    right = read(MS_SWIFT | {"ENV": {**known, "MAX_PIXELS": "602112"}}, model=SEES)
    assert not any("is no variable" in note for note in right.notes)


@pytest.mark.parametrize(
    ("values", "model", "tokens"),
    [
        (MS_SWIFT, SEES, "16,384"),
        (TRL, SEES, "16,384"),
        (TRL, "internvl3-1b", "3,330"),
        (MS_SWIFT | {"max_pixels": 602112}, SEES, None),
        (LLAMA_FACTORY, SEES, None),
        (TRL, "llava-1.5-7b", None),
        (TRL, READS, None),
    ],
)
def test_images_without_a_limit_of_pixels_are_a_note_where_larger_ones_take_more(read, values, model, tokens):
    notes = [note for note in read(values, model=model).notes if "no limit on the pixels" in note]
    assert [tokens in note for note in notes] == ([] if tokens is None else [True])


@pytest.mark.parametrize(("trainer", "default"), [(MS_SWIFT, 1), (LLAMA_FACTORY, 0), (TRL, 0)])
def test_processes_that_open_images_are_as_the_trainer_has_them(read, trainer, default):
    assert read(trainer).loader_workers == default
    config = read(trainer | {"dataloader_num_workers": 4})
    assert config.loader_workers == 4
    assert "dataloader_num_workers" in {setting.key for setting in config.said}


def test_the_bundled_names_of_ms_swift_are_no_files_of_others(read):
    with pytest.raises(InputError, match="deepspeed is zero2, which is no file"):
        read(LLAMA_FACTORY | {"deepspeed": "zero2"})


def test_expandable_segments_are_switched_on_by_a_variable(tmp_path):
    script = tmp_path / "run.sh"
    lines = {"PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \\": True, "OMP_NUM_THREADS=1 \\": False}
    for line, expected in lines.items():
        script.write_text(f"{line}\nswift sft --model qwen2.5-0.5b --torch_dtype bfloat16\n", encoding="utf-8")
        config = read_trainer_config(script, Asked(num_gpus=1, find_model=find_model))
        assert config.options["expandable_segments"] is expected


def test_llama_factory_lets_segments_grow_where_it_starts_torchrun(read, tmp_path):
    assert [read(LLAMA_FACTORY, num_gpus=count).options["expandable_segments"] for count in (1, 2)] == [False, True]
    searched = read(LLAMA_FACTORY, num_gpus=None)
    assert searched.grows_on_several
    assert "expandable_segments" not in searched.options
    script = tmp_path / "run.sh"
    for variables, expected in (("FORCE_TORCHRUN=1", True), ("FORCE_TORCHRUN=1 OPTIM_TORCH=0", False)):
        script.write_text(f"{variables} llamafactory-cli train --model_name_or_path {READS} --bf16\n", encoding="utf-8")
        config = read_trainer_config(script, Asked(num_gpus=1, find_model=find_model))
        assert config.options["expandable_segments"] is expected


def test_variables_of_a_file_reach_the_allocator_under_deepspeed_too(read):
    variables = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    for values in (MS_SWIFT | {"ENV": variables}, TRL | {"env": variables}):
        assert read(values).options["expandable_segments"] is True
        sharded = read(values | {"deepspeed": {"zero_optimization": {"stage": 2}}})
        assert sharded.options["expandable_segments"] is True


@pytest.mark.parametrize("engine", [{}, {"deepspeed": {"zero_optimization": {"stage": 2}}}])
@pytest.mark.parametrize("trainer", [TRL, MS_SWIFT])
def test_without_the_variable_the_allocator_is_torchs_own_whatever_the_engine(read, trainer, engine):
    assert read(trainer | engine).options["expandable_segments"] is False


def test_accelerate_decides_the_engine_and_the_precision(tmp_path):
    path = tmp_path / "accelerate.yaml"
    path.write_text(
        "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\nnum_machines: 1\n"
        "deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu, offload_param_device: none}\n",
        encoding="utf-8",
    )
    config = read_trainer_config(path, Asked(model=READS, num_gpus=8, find_model=find_model))
    assert config.ds_config is not None
    assert (config.ds_config.zero_stage, str(config.ds_config.offload_optimizer)) == (3, "Offload.CPU")
    assert config.options["precision"] == "bf16"
    assert not {"micro_batch", "epochs"} & config.options.keys()
    assert any("starts 8 processes on 1 machine" in note for note in config.notes)


def test_no_engine_of_accelerates_file_may_stand_without_quotation_marks(tmp_path):
    """YAML makes false of it, which is none of those that the launcher asks for."""
    files = [tmp_path / f"{number}.yaml" for number in range(2)]
    for path, said in zip(files, ("NO", "'NO'"), strict=True):
        path.write_text(f"distributed_type: {said}\nmixed_precision: bf16\nnum_processes: 1\n", encoding="utf-8")
    plain, quoted = (read_trainer_config(path, Asked(num_gpus=1, find_model=find_model)) for path in files)
    assert plain.options == quoted.options


SCRIPT = "train.py --model_name_or_path qwen2.5-0.5b --per_device_train_batch_size 2"
Z3_ON_HOST = (3, "Offload.CPU", "bf16")


def engine_of(config: TrainerConfig) -> tuple[Any, ...]:
    section = config.ds_config
    place = None if section is None else str(section.offload_optimizer)
    return (None if section is None else section.zero_stage, place, config.options["precision"])


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        ("--mixed_precision bf16 --use_deepspeed --zero_stage 3 --offload_optimizer_device=cpu", Z3_ON_HOST),
        ("--mixed_precision bf16 --use_deepspeed --deepspeed_config_file ds.json", Z3_ON_HOST),
        (
            "--mixed_precision bf16 --use_deepspeed --deepspeed_config_file ds.json --zero_stage 2 "
            "--gradient_accumulation_steps 4 --zero3_save_16bit_model true",
            Z3_ON_HOST,
        ),
        ("--mixed_precision bf16 --use_deepspeed --num_processes $N --deepspeed_config_file ds.json", Z3_ON_HOST),
        ("--config_file a.yaml --zero_stage 3 --offload-optimizer-device cpu", Z3_ON_HOST),
        ("--config_file a.yaml", (2, "Offload.NONE", "bf16")),
        ("--mixed_precision bf16 --multi_gpu", (None, None, "bf16")),
        ("--num_processes 2 --main_process_port 29501", (None, None, "bf16-pure")),
    ],
)
def test_options_of_accelerates_launcher_go_before_its_file(tmp_path, launcher, expected):
    section = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "bf16": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps(section))
    (tmp_path / "a.yaml").write_text(
        "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config: {zero_stage: 2}\n"
    )
    script = tmp_path / "run.sh"
    script.write_text(f"accelerate launch {launcher} {SCRIPT}\n", encoding="utf-8")
    assert engine_of(read_trainer_config(script, Asked(num_gpus=2, find_model=find_model))) == expected


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--use_fsdp", "units of layers are planned"),
        ("--use_megatron_lm", "MEGATRON_LM"),
        ("--dynamo_backend inductor", "dynamo_config"),
        ("--use_parallelism_config --parallelism_config_tp_size 2", "tensor parallelism is not planned"),
        ("--mixed_precision fp8", "mixed_precision"),
    ],
)
def test_what_is_not_planned_of_the_launchers_options_is_named(tmp_path, options, word):
    script = tmp_path / "run.sh"
    script.write_text(f"accelerate launch {options} {SCRIPT}\n", encoding="utf-8")
    with pytest.raises(InputError, match=word):
        read_trainer_config(script, Asked(num_gpus=2, find_model=find_model))


@pytest.mark.parametrize(
    "goes", ["cd src/run", "cd src && cd run", 'pushd x; cd "src/run" || exit 1', "cd nowhere\ncd src/run"]
)
def test_files_are_looked_for_where_the_script_has_gone(tmp_path, goes):
    """In a folder below its own, in which files are that it names from there."""
    (tmp_path / "src" / "run" / "ds").mkdir(parents=True)
    (tmp_path / "src" / "run" / "ds" / "z2.json").write_text('{"zero_optimization": {"stage": 2}}', encoding="utf-8")
    script = tmp_path / "run.sh"
    words = f"torchrun --nproc_per_node 2 mine.py --model_name_or_path {READS} --per_device_train_batch_size 2"
    script.write_text(f"{goes}\n{words} --deepspeed ds/z2.json\n", encoding="utf-8")
    config = read_trainer_config(script, Asked(num_gpus=2, find_model=find_model))
    assert config.ds_config is not None
    assert config.ds_config.zero_stage == 2
    script.write_text(f"{goes}\ncd ../..\n{words} --deepspeed ds/z2.json\n", encoding="utf-8")
    with pytest.raises(InputError, match="which is no file from here"):
        read_trainer_config(script, Asked(num_gpus=2, find_model=find_model))


def test_that_accelerate_compiles_nothing_is_said_in_a_file_of_trls_command(read):
    plain = read(TRL)
    assert read(TRL | {"dynamo_backend": "no", "mixed_precision": "no", "num_processes": 1}).options == plain.options
    with pytest.raises(InputError, match=r"dynamo_config"):
        read(TRL | {"dynamo_backend": "inductor"})


@pytest.mark.parametrize(("name", "stage"), [("zero1", 1), ("zero3", 3), ("fsdp2", None), ("multi_gpu", None)])
def test_trls_names_of_accelerates_files_are_known_in_its_file_and_command(read, tmp_path, name, stage):
    in_file = read(TRL | {"dtype": "bfloat16", "accelerate_config": name, "num_processes": 4}, num_gpus=4)
    script = tmp_path / "run.sh"
    words = f"--accelerate_config {name} --model_name_or_path {READS} --dataset_name d --use_peft --dtype bfloat16"
    script.write_text(f"trl sft {words} --lora_target_modules all-linear\n")
    in_command = read_trainer_config(script, Asked(num_gpus=4, find_model=find_model))
    for config in (in_file, in_command):
        assert engine_of(config)[0] == stage
        assert bool(config.options.get("fsdp")) == (name == "fsdp2")
    assert any("starts 4 processes" in note for note in in_file.notes)


def of_accelerate(tmp_path, section: str) -> TrainerConfig:
    path = tmp_path / "accelerate.yaml"
    text = f"distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 4\ndeepspeed_config: {section}\n"
    path.write_text(text, encoding="utf-8")
    return read_trainer_config(path, Asked(model=READS, num_gpus=4, find_model=find_model))


def test_steps_and_clipping_of_accelerates_section_are_its_deepspeeds(tmp_path):
    config = of_accelerate(tmp_path, "{zero_stage: 3, gradient_accumulation_steps: 4, gradient_clipping: 0.5}")
    assert config.ds_config is not None
    assert (config.ds_config.grad_accum, config.ds_config.gradient_clipping) == (4, 0.5)
    assert config.gradient_clipping is None
    silent = of_accelerate(tmp_path, "{zero_stage: 3}").ds_config
    assert silent is not None
    assert (silent.grad_accum, silent.gradient_clipping) == (None, None)
    left = of_accelerate(tmp_path, "{zero_stage: 3, gradient_accumulation_steps: auto, gradient_clipping: auto}")
    assert left.ds_config == silent


def test_defaults_that_are_not_taken_beside_accelerates_file_are_not_listed(tmp_path):
    defaults = {setting.key for setting in of_accelerate(tmp_path, "{zero_stage: 2}").defaults}
    of_runs = {"per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_grad_norm"}
    assert (defaults & of_runs, "optim" in defaults) == (set(), True)


def test_accelerates_own_keys_beside_a_deepspeed_file_are_refused_as_it_refuses_them(tmp_path):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}}', encoding="utf-8")
    alone = of_accelerate(tmp_path, "{deepspeed_config_file: ds.json}").ds_config
    assert alone is not None
    assert alone.zero_stage == 3
    with pytest.raises(InputError, match="gradient_accumulation_steps is 4; accelerate takes it from deepspeed_config"):
        of_accelerate(tmp_path, "{deepspeed_config_file: ds.json, gradient_accumulation_steps: 4}")


# -- whose a file is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"checkpointer": {}, "tokenizer": {}, "metric_logger": {}}, "torchtune"),
        ({"actor_rollout_ref": {}, "algorithm": {}}, "verl"),
        ({"zero_optimization": {"stage": 2}, "train_batch_size": 4}, "--ds-config"),
        (
            {"schema": "vlmplan.plan/2", "recipe": {}, "workload": {}, "vlmplan_version": "1"},
            "looks like a plan of vlmplan: vlmplan launch",
        ),
        ({"one": 1, "two": 2}, "tells whose configuration it is"),
    ],
)
def test_files_that_are_not_read_are_told_by_what_they_are(read, values, word):
    refused(read, values, word)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("plan.json", "launch.sh"), "is a folder with a plan of vlmplan: vlmplan launch, rehearse, explain and"),
        (
            ("ds_config.json", "train.sh", "train.yaml"),
            "is a folder; the file that a trainer is started with is needed, such as {}/train.sh or {}/train.yaml",
        ),
        ((), "is a folder; the file that a trainer is started with is needed"),
    ],
)
def test_in_place_of_a_folder_the_file_in_it_is_asked_for(tmp_path: Path, names: tuple[str, ...], said: str):
    for name in names:
        (tmp_path / name).write_text("")
    with pytest.raises(InputError) as refused_folder:
        open_trainer_config(tmp_path)
    assert f"{tmp_path} {said.format(tmp_path, tmp_path)}" in str(refused_folder.value)


OWN = f"--model_name_or_path {READS} --output_dir out --per_device_train_batch_size 4 --bf16 True"


def test_the_model_that_a_script_of_ones_own_names_is_the_model(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun --nproc_per_node=2 train.py {OWN}\n", encoding="utf-8")
    config = read_trainer_config(script, Asked(num_gpus=2, find_model=find_model))
    assert (config.options["model"], config.options["micro_batch"]) == (READS, 4)
    assert any("model_name_or_path is taken for the model" in note for note in config.notes)


def test_a_key_of_a_script_of_ones_own_is_refused_with_how_the_script_is_read(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun --nproc_per_node=2 train.py {OWN} --data_recipe a.yaml\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_trainer_config(script, Asked(num_gpus=2, find_model=find_model))
    for words in ("data_recipe is no argument of Hugging Face's Trainer", "--model", "vlmplan: ignore"):
        assert words in str(caught.value)


def test_all_that_is_wrong_is_said_at_once(read):
    values = LLAMA_FACTORY | {"use_galore": True, "cutoff_len": "many", "fp8": True, "lora_rnak": 3}
    refused(read, values, "4 mistakes", "use_galore is true", 'cutoff_len is "many"', "'lora_rnak'", "'lora_rank'")


def test_values_are_taken_as_text_too(read):
    options = read(LLAMA_FACTORY | {"cutoff_len": "4096", "bf16": "True", "per_device_train_batch_size": "2"}).options
    assert (options["seq_len"], options["precision"], options["micro_batch"]) == (4096, "bf16", 2)


def test_null_is_the_default(read):
    assert read(LLAMA_FACTORY | {"cutoff_len": None, "deepspeed": None}).options["seq_len"] == 2048


def test_a_file_is_not_read_twice_for_the_same_key(tmp_path):
    path = Path(tmp_path / "train.yaml")
    path.write_text("stage: sft\nbf16: true\nbf16: false\n", encoding="utf-8")
    with pytest.raises(InputError, match="says bf16 twice"):
        read_trainer_config(path, Asked(find_model=find_model))


def test_what_trl_loads_in_float32_is_cast_by_deepspeed(read):
    zero = {"dataset_name": "d", "bf16": True, "deepspeed": {"zero_optimization": {"stage": 2}}}
    wide = read(zero)
    assert wide.options["weight_dtype"] == "float32"
    assert any("float32 in host memory" in note for note in wide.notes)
    assert "weight_dtype" not in read(zero | {"dtype": "bfloat16"}).options
    assert "weight_dtype" not in read(zero | {"use_peft": True, "load_in_4bit": True}).options
    sharded = read(zero | {"deepspeed": {"zero_optimization": {"stage": 3}}})
    assert not any("float32 in host memory" in note for note in sharded.notes)
    assert "weight_dtype" not in read(LLAMA_FACTORY | {"deepspeed": {"zero_optimization": {"stage": 2}}}).options


def test_the_plain_trainer_has_weights_in_the_checkpoints_type(read, tmp_path):
    values = {"per_device_train_batch_size": 2, "bf16": True, "learning_rate": 1e-4}
    wide = find_model(READS).config | {"torch_dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps(wide), encoding="utf-8")
    assert read(values, str(tmp_path)).options["weight_dtype"] == "float32"
    assert read(values | {"bf16": False}, str(tmp_path)).options["precision"] == "fp32"
    assert read(values).options["weight_dtype"] == "model"


# -- what has no effect ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [TRL, LLAMA_FACTORY, MS_SWIFT])
def test_what_fsdp_would_do_has_no_effect_where_it_is_not_asked_for(read, values):
    filled_in = {"fsdp": [], "fsdp_config": {"min_num_params": 0, "xla": False, "xla_fsdp_v2": False}}
    assert "fsdp_config" in read(values | filled_in).idle


# -- FSDP2 -----------------------------------------------------------------------------------------------------------

TRL_BF16 = TRL | {"dtype": "bfloat16"}
FSDP2 = {"fsdp": True, "reshard_after_forward": True, "sync_each_batch": False, "precision": "bf16"}
ON_DEVICE, ON_HOST = (dict.fromkeys(("offload_params", "offload_optimizer"), place) for place in ("none", "cpu"))
ACCELERATE_FSDP2 = {
    "fsdp_version": 2,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_offload_params": True,
    "fsdp_cpu_ram_efficient_loading": True,
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
}


def sharding(config: TrainerConfig) -> dict[str, Any]:
    return {name: config.options.get(name) for name in (*FSDP2, *ON_HOST)}


@pytest.mark.parametrize(
    ("fsdp", "config", "expected"),
    [
        (True, None, ON_DEVICE),
        (True, {"reshard_after_forward": False}, ON_DEVICE | {"reshard_after_forward": False}),
        (True, {"fsdp_version": 2, "cpu_offload": True}, ON_HOST),
        ("shard_grad_op offload auto_wrap", {}, ON_HOST | {"reshard_after_forward": False}),
    ],
)
def test_training_arguments_shard_as_they_say(read, fsdp, config, expected):
    values = TRL_BF16 | {"fsdp": fsdp, "fsdp_config": config}
    assert sharding(read(values)) == FSDP2 | ON_DEVICE | expected
    assert "zero_stage" not in read(values).options
    assert "uses_autocast" not in read(values).options


def test_accelerates_file_shards_as_its_section_says(read):
    values = {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 2}
    assert sharding(read(values | {"fsdp_config": ACCELERATE_FSDP2})) == FSDP2 | ON_HOST


@pytest.mark.parametrize("name", ["fsdp2", '{"fsdp": "full_shard", "fsdp_config": {"activation_checkpointing": true}}'])
def test_ms_swift_names_a_file_or_writes_it(read, name):
    found = read(MS_SWIFT | {"fsdp": name, "gradient_checkpointing": False})
    assert sharding(found) == FSDP2 | ON_DEVICE
    assert found.options["activation_checkpointing"] is True


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"version": 3}, ("version is 3", "1 and 2 are planned")),
        ({"auto_wrap_policy": "SIZE_BASED_WRAP"}, ("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")),
        ({"transformer_layer_cls_to_wrap": "Qwen2MLP"}, ("Qwen2DecoderLayer", "are planned")),
        ({"activation_checkpointing": True}, ("gradient_checkpointing is true too",)),
        ({"activation_checkpointing_offload": True}, ("activation_checkpointing_offload", "not planned")),
        ({"ignored_modules": "lm_head"}, ("ignored_modules", "not planned")),
        ({"reshard": True}, ("unknown key 'reshard'", "reshard_after_forward")),
    ],
)
def test_what_is_not_planned_of_fsdp2_is_refused_by_its_name(read, config, words):
    refused(read, TRL_BF16 | {"fsdp": True, "fsdp_config": config}, *words)


def test_fsdp_of_accelerate_is_fsdp1_unless_its_version_is_said(read):
    refused(read, {"distributed_type": "FSDP", "mixed_precision": "bf16"}, "auto_wrap_policy is")


ACCELERATE_FSDP1 = {
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_backward_prefetch": "BACKWARD_PRE",
    "fsdp_forward_prefetch": True,
    "fsdp_sharding_strategy": "SHARD_GRAD_OP",
    "fsdp_use_orig_params": True,
}
WHOLE = {name: value for name, value in TRL_BF16.items() if not name.startswith(("lora_", "use_peft"))}
FLAT = {
    "flat_parameters": "on-demand",
    "prefetches_forward": False,
    "uses_orig_params": True,
    "reshard_after_forward": True,
    "shard_units": "layers",
    "sync_each_batch": False,
    "precision": "bf16",
}


def flat(config: TrainerConfig) -> dict[str, Any]:
    assert config.options["fsdp"] is True
    return {name: config.options[name] for name in FLAT}


def test_fsdp1_of_accelerate_is_planned_with_its_strategy_and_what_it_gathers_ahead(read):
    values = {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 2}
    found = read(values | {"fsdp_config": ACCELERATE_FSDP1}, method=Method.FULL)
    ahead = {"flat_parameters": "backward-pre", "prefetches_forward": True, "reshard_after_forward": False}
    assert flat(found) == FLAT | ahead
    unsharded = ACCELERATE_FSDP1 | {"fsdp_sharding_strategy": "NO_SHARD"}
    refused(
        read,
        values | {"fsdp_config": unsharded},
        "of FSDP1 FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD and HYBRID_SHARD_ZERO2 are planned",
    )


@pytest.mark.parametrize(
    ("said", "resharded"),
    [("HYBRID_SHARD", True), ("hybrid_shard_zero2", False), ("4", True), (5, False), (1, True), ("2", False)],
)
def test_shards_that_machines_have_copies_of_are_shared_by_the_gpus_of_each(read, said, resharded):
    section = ACCELERATE_FSDP1 | {"fsdp_sharding_strategy": said}
    values = {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 8, "fsdp_config": section}
    found = read(values, num_gpus=8, method=Method.FULL)
    assert found.options["reshard_after_forward"] is resharded
    assert "dp_shard_size" not in found.options
    has_copies = str(said) not in ("1", "2")
    assert any("on one machine planned as" in note for note in found.notes) is has_copies
    several = read(values, num_gpus=16, num_nodes=2, method=Method.FULL).options
    assert several.get("dp_shard_size") == (8 if has_copies else None)
    assert several["reshard_after_forward"] is resharded
    if not has_copies:
        return
    for machines, word in (({"num_gpus": 2}, "NO_SHARD"), ({"num_gpus": None}, "say that with --gpu")):
        with pytest.raises(InputError, match=word):
            read(values, num_nodes=2, method=Method.FULL, **machines)


def test_adapters_of_fsdp1_are_flat_parameters_in_float32(read):
    """Whatever peft makes them in: ``prepare_model`` of accelerate."""
    config = {"version": 1, "transformer_layer_cls_to_wrap": "Qwen2DecoderLayer"}
    found = read(TRL_BF16 | {"fsdp": True, "fsdp_config": config})
    assert flat(found) == FLAT
    assert "adapter_dtype" not in found.options
    unwrapped = {"fsdp": True, "fsdp_config": config | {"auto_wrap_policy": "NO_WRAP"}}
    assert flat(read(TRL_BF16 | unwrapped)) == FLAT
    refused(read, WHOLE | unwrapped, "auto_wrap_policy is", "units of layers are planned")
    packed = TRL_BF16 | {"fsdp": True, "fsdp_config": config, "load_in_4bit": True}
    refused(read, packed, "FSDP1 flattens no bytes", "bnb_4bit_quant_storage: bfloat16")
    kept = read(packed | {"bnb_4bit_quant_storage": "bfloat16"})
    assert (kept.options["method"], kept.options["shards_packed"]) == ("qlora", True)
    assert "adapter_dtype" not in kept.options
    refused(read, packed | {"bnb_4bit_quant_storage": "float16"}, "FSDP1 flattens weights of one type")


def test_training_arguments_say_a_strategy_of_fsdp1_that_accelerate_does_not_take(read):
    """Its plugin has one before it looks: ``FullyShardedDataParallelPlugin.__post_init__``."""
    found = read(WHOLE | {"fsdp": "shard_grad_op auto_wrap", "fsdp_config": {"version": 1}})
    assert flat(found) == FLAT
    assert any("planned as FULL_SHARD" in note for note in found.notes)
    refused(read, WHOLE | {"fsdp": True, "fsdp_config": {"version": 1, "reshard_after_forward": True}}, "a strategy")
    refused(read, WHOLE | {"fsdp": True, "fsdp_config": {"version": 1, "backward_prefetch": "X"}}, "BACKWARD_POST")


def test_a_model_whose_default_layers_accelerate_does_not_find_needs_their_names(read, tmp_path):
    values = TRL_BF16 | {"fsdp": True, "model_name_or_path": "llava-1.5-7b"}
    with pytest.raises(InputError, match="names a class that the model does not have; write transformer_layer_cls"):
        read(values, "llava-1.5-7b")
    named = {"transformer_layer_cls_to_wrap": ["CLIPEncoderLayer", "LlamaDecoderLayer"]}
    assert read(values | {"fsdp_config": named}, "llava-1.5-7b").options["fsdp"] is True


def test_adapters_beside_pure_weights_are_not_planned_in_shards(read):
    refused(read, TRL_BF16 | {"fsdp": True, "bf16": False}, "set bf16: true")


def test_frozen_weights_are_sharded_in_the_type_that_they_are_loaded_in(read):
    """TRL's is float32 unless told otherwise; wholly trained ones are float32 in any case."""
    assert read(TRL | {"fsdp": True}).options["weight_dtype"] == "float32"
    assert "weight_dtype" not in read(TRL_BF16 | {"fsdp": True}).options
    assert "weight_dtype" not in read(TRL | {"fsdp": True, "use_peft": False}).options


PACKED = {"load_in_4bit": True, "fsdp": True}


@pytest.mark.parametrize(
    ("values", "adapters"),
    [
        (TRL_BF16 | PACKED, "model"),
        (MS_SWIFT | {"quant_bits": 4, "fsdp": "fsdp2", "gradient_checkpointing": False}, None),
    ],
)
def test_4_bit_weights_are_sharded_where_they_are_kept_in_the_type_of_the_computation(read, values, adapters):
    """TRL makes adapters beside them bfloat16, and accelerate nothing float32 then."""
    found = [read(values | {"bnb_4bit_quant_storage": name}).options for name in ("uint8", "bfloat16")]
    assert [options["shards_packed"] for options in (read(values).options, *found)] == [False, False, True]
    assert {options.get("adapter_dtype") for options in found} == {adapters}
    refused(read, values | {"bnb_4bit_quant_storage": "float32"}, "gathered in bfloat16", "which changes them")
    refused(
        read,
        values | {"bnb_4bit_quant_storage": "int4"},
        "one of uint8, int8, bfloat16, float16, float32, float64 is needed",
    )


def test_in_which_type_4_bit_weights_are_kept_means_nothing_to_other_engines(read):
    kept = read(TRL_BF16 | {"load_in_4bit": True, "bnb_4bit_quant_storage": "float32"}).options
    assert kept == read(TRL_BF16 | {"load_in_4bit": True}).options


def test_more_than_one_gpu_for_a_sample_or_a_weight_is_refused_by_its_size(read):
    alone = {"parallelism_config": {"sp_size": 1, "dp_shard_size": 4}}
    assert read(TRL_BF16 | alone).options == read(TRL_BF16).options
    for name, word in (
        ("sp_size", "Ulysses"),
        ("cp_size", "context"),
        ("tp_size", "tensor"),
    ):
        refused(read, TRL_BF16 | {"parallelism_config": {name: 2}}, f"{name} is 2", word)
    launched = {"distributed_type": "MULTI_GPU", "parallelism_config": {"parallelism_config_tp_size": 2}}
    refused(read, launched, "tp_size is 2", "tensor parallelism is not planned")
    refused(read, MS_SWIFT | {"sequence_parallel_size": 4}, "ms-swift's own Ulysses")


def test_copies_of_the_model_are_as_many_as_the_gpus_that_share_one_leave(read):
    shards = TRL_BF16 | {"fsdp": True, "fsdp_config": {"version": 2}}
    sizes = {"dp_replicate_size": 2, "dp_shard_size": 4}
    assert read(shards | {"parallelism_config": sizes}, num_gpus=8).options["dp_shard_size"] == 4
    assert "dp_shard_size" not in read(shards | {"parallelism_config": {"dp_shard_size": 8}}, num_gpus=8).options
    for given, word in ((sizes, "dp_replicate_size is 2; times dp_shard_size, 4"), ({"dp_replicate_size": 2}, "share")):
        with pytest.raises(InputError, match=word):
            read(shards | {"parallelism_config": given}, num_gpus=16)
    launched = {f"parallelism_config_{name}": size for name, size in sizes.items()}
    section = {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    own = {"distributed_type": "FSDP", "fsdp_config": section, "parallelism_config": launched}
    flat_section = {**section, "fsdp_version": 1}
    with pytest.raises(InputError, match="dp_shard_size is 4; accelerate takes it with FSDP2 alone"):
        read(own | {"fsdp_config": flat_section}, num_gpus=8, method=Method.FULL)
    assert read(own, num_gpus=8).options["dp_shard_size"] == 4


def test_llama_factory_has_an_older_fsdp2(read):
    """And older arguments: FSDP1 unless a version is said, units and offloading by words."""
    second = LLAMA_FACTORY | {"finetuning_type": "full", "fsdp_config": {"version": 2, "cpu_offload": True}}
    for words, more in (("full_shard auto_wrap", ON_DEVICE), ("shard_grad_op auto_wrap offload", ON_HOST)):
        found = read(second | {"fsdp": words})
        expected = FSDP2 | more | {"reshard_after_forward": words.startswith("full")}
        assert sharding(found) == expected
        assert found.options["shard_units"] == "layers"
    refused(read, second | {"fsdp": "full_shard"}, 'auto_wrap_policy is "NO_WRAP"')
    first = read(second | {"fsdp": "full_shard auto_wrap", "fsdp_config": {}})
    assert first.options["flat_parameters"] == "on-demand"
    frozen = second | {"fsdp": "full_shard auto_wrap", "finetuning_type": "lora"}
    assert read(frozen).options["weight_dtype"] == "float32"
    assert read(second | {"fsdp": "full_shard auto_wrap"}, SEES).options["weight_dtype"] == "float32"
    refused(read, frozen | {"quantization_bit": 4}, "those of 4-bit weights too")


def test_an_option_that_names_another_engine_goes_before_the_files_fsdp2(read):
    found = read(TRL_BF16 | {"fsdp": True}, uses_deepspeed=False)
    assert (found.options.get("fsdp"), found.options["zero_stage"]) == (None, "none")
    assert any("FSDP2 is left out" in note for note in found.notes)
    assert read(TRL_BF16, uses_deepspeed=False, shards=True).options["fsdp"] is True


def test_what_is_wrong_with_a_file_comes_before_a_model_that_cannot_be_had(tmp_path):
    def nowhere(name: str) -> Any:
        raise UnavailableError(f"{name} cannot be reached")

    path = tmp_path / "train.json"
    path.write_text(json.dumps({**LLAMA_FACTORY, "stage": "rm", "model_name_or_path": "a/b"}), encoding="utf-8")
    with pytest.raises(InputError, match="stage is"):
        read_trainer_config(path, Asked(num_gpus=1, find_model=nowhere))
    path.write_text(json.dumps({**LLAMA_FACTORY, "model_name_or_path": "a/b"}), encoding="utf-8")
    with pytest.raises(UnavailableError, match="a/b cannot be reached"):
        read_trainer_config(path, Asked(num_gpus=1, find_model=nowhere))


# -- evaluation --------------------------------------------------------------------------------------------------------


def evaluated(config: TrainerConfig) -> dict[str, Any]:
    return {name: value for name, value in config.options.items() if name.startswith("eval_")}


def test_without_an_evaluation_its_keys_have_no_effect(read):
    found = read(LLAMA_FACTORY | {"per_device_eval_batch_size": 4, "eval_steps": 10})
    assert evaluated(found) == {}
    assert {"per_device_eval_batch_size", "eval_steps"} <= set(found.idle)


def test_a_strategy_of_no_evaluates_nothing_and_none_is_no_strategy(read):
    assert evaluated(read(TRL | {"eval_strategy": "no"})) == {}
    for strategy in (False, "none"):  # IntervalStrategy("none") is a ValueError
        with pytest.raises(InputError, match="eval_strategy is"):
            read(TRL | {"eval_strategy": strategy})


def test_transformers_evaluates_eight_samples_at_a_time_unless_told_otherwise(read):
    found = read(TRL | {"eval_strategy": "steps"})
    assert evaluated(found) == {"eval_batch": 8, "eval_keeps": "loss", "eval_every": 10}
    assert "per_device_eval_batch_size" in {setting.key for setting in found.defaults}
    found = read(TRL | {"evaluation_strategy": "epoch", "per_device_eval_batch_size": 2, "eval_accumulation_steps": 3})
    assert evaluated(found) == {"eval_batch": 2, "eval_keeps": "loss", "eval_every": "epoch", "eval_accumulation": 3}


@pytest.mark.parametrize(
    ("said", "every"),
    [
        (TRL | {"eval_strategy": "steps"}, 10),
        (TRL | {"eval_strategy": "steps", "logging_steps": 25}, 25),
        (TRL | {"eval_strategy": "steps", "logging_steps": 25, "eval_steps": 200}, 200),
        (TRL | {"eval_strategy": "steps", "eval_steps": 0.2}, 0.2),
        (TRL | {"eval_strategy": "epoch", "eval_steps": 7}, "epoch"),
        (LLAMA_FACTORY | {"do_eval": True, "val_size": 0.1}, "end"),
        (LLAMA_FACTORY | {"eval_strategy": "steps", "val_size": 0.1}, 500),
        (MS_SWIFT | {"val_dataset": ["a.jsonl"], "save_steps": 30}, 30),
        (MS_SWIFT | {"val_dataset": ["a.jsonl"], "save_steps": 30, "eval_steps": 60}, 60),
        (MS_SWIFT | {"val_dataset": ["a.jsonl"], "save_strategy": "epoch"}, "epoch"),
        (MS_SWIFT | {"val_dataset": ["a.jsonl"], "save_strategy": "epoch", "eval_strategy": "steps"}, 500),
    ],
)
def test_when_it_evaluates_is_what_the_file_says_or_its_trainer_does_by_itself(read, said, every):
    assert evaluated(read(said))["eval_every"] == every


def test_an_evaluation_before_the_first_step_is_counted(read):
    asked = TRL | {"eval_strategy": "epoch"}
    assert "eval_on_start" not in evaluated(read(asked))
    assert evaluated(read(asked | {"eval_on_start": True}))["eval_on_start"] is True


def test_an_interval_that_the_trainer_refuses_is_refused(read):
    with pytest.raises(InputError, match=r"eval_steps is 2\.5; a whole number of steps, or a part of the run below 1"):
        read(TRL | {"eval_strategy": "steps", "eval_steps": 2.5})


def test_evaluations_before_the_delay_are_not_counted(read):
    assert evaluated(read(TRL | {"eval_strategy": "steps", "eval_delay": 5}))["eval_delay"] == 5
    assert evaluated(read(TRL | {"eval_strategy": "epoch", "eval_delay": "0.5"}))["eval_delay"] == 0.5
    assert "eval_delay" not in evaluated(read(TRL | {"do_eval": True, "eval_delay": 5}))


@pytest.mark.parametrize(
    ("file", "key"),
    [
        (LLAMA_FACTORY | {"eval_strategy": "steps", "val_size": 0.1}, "early_stopping_steps"),
        (MS_SWIFT | {"val_dataset": "v"}, "early_stop_interval"),
    ],
)
def test_evaluations_that_end_a_run_are_read_by_each_trainers_own_key(read, file, key):
    assert "early_stopping_patience" not in evaluated(read(file))
    found = read(file | {key: 3, "load_best_model_at_end": True, "metric_for_best_model": "eval_loss"})
    assert (found.options["early_stopping_patience"], found.options["load_best_model_at_end"]) == (3, True)
    by_accuracy = read(file | {key: 3, "load_best_model_at_end": True, "metric_for_best_model": "accuracy"})
    assert "early_stopping_patience" not in by_accuracy.options
    assert any(note.startswith(f"{key}: time and cost are those of all steps") for note in by_accuracy.notes)


def test_llama_factory_evaluates_once_more_when_training_has_ended(read):
    said = LLAMA_FACTORY | {"eval_strategy": "steps", "val_size": 0.1}
    assert evaluated(read(said))["eval_after_training"] is True
    assert "eval_after_training" not in evaluated(read(LLAMA_FACTORY | {"do_eval": True, "val_size": 0.1}))
    assert "eval_after_training" not in evaluated(read(TRL | {"eval_strategy": "steps"}))


def test_a_script_may_have_metrics_of_its_own_and_a_trainer_has_not(read):
    plain = {"per_device_train_batch_size": 1, "eval_strategy": "steps"}
    assert any("--eval-keeps logits" in note for note in read(plain).notes)
    assert not any("--eval-keeps" in note for note in read(plain | {"prediction_loss_only": True}).notes)
    assert not any("--eval-keeps" in note for note in read(TRL | {"eval_strategy": "steps"}).notes)


def test_llama_factory_keeps_a_token_id_for_its_accuracy(read):
    asked = LLAMA_FACTORY | {"eval_strategy": "steps", "val_size": 0.1}
    loss = {"eval_batch": 8, "eval_keeps": "loss", "eval_every": 500, "eval_after_training": True}
    assert evaluated(read(asked)) == loss
    counted = asked | {"compute_accuracy": True, "max_samples": 1000, "dataset": "one,two"}
    assert evaluated(read(counted)) == loss | {"eval_keeps": "predictions", "eval_samples": 200}
    assert evaluated(read(asked | {"val_size": 77}))["eval_samples"] == 77
    assert evaluated(read(asked | {"val_size": 0.01, "max_samples": 120}))["eval_samples"] == 2


@pytest.mark.parametrize(("size", "trained"), [(0, 2000), (0.1, 1800), (0.0101, 2000 - 21), (500, 1500)])
def test_llama_factory_trains_on_the_samples_that_it_does_not_evaluate(read, size, trained):
    asked = LLAMA_FACTORY | {"max_samples": 1000, "dataset": "one,two", "val_size": size}
    assert read(asked).options["num_samples"] == trained


def test_ms_swift_evaluates_as_often_as_it_saves_where_there_are_samples(read):
    assert evaluated(read(MS_SWIFT)) == evaluated(read(MS_SWIFT | {"eval_strategy": "steps"})) == {}
    part = evaluated(read(MS_SWIFT | {"split_dataset_ratio": 0.01}))
    assert part == {"eval_batch": 1, "eval_keeps": "loss", "eval_every": 500}
    assert evaluated(read(MS_SWIFT | {"val_dataset": ["a.jsonl"], "save_strategy": "no"})) == {}
    accuracy = MS_SWIFT | {"val_dataset": ["a.jsonl"], "eval_metric": "acc", "per_device_eval_batch_size": 4}
    assert evaluated(read(accuracy)) == {"eval_batch": 4, "eval_keeps": "predictions", "eval_every": 500}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"dataset": "a#1000"}, 10),
        ({"dataset": ["a#1000", "b#7"]}, 10 + 1),
        ({"dataset": ["a#1000", "b"]}, None),
        ({"dataset": "a#1000", "val_dataset": "c"}, None),
        ({"dataset": ["a#700", "b#30"], "interleave_prob": [0.5, 0.5]}, None),
    ],
)
def test_ms_swift_evaluates_the_part_that_its_data_sets_give(read, values, expected):
    config = read(MS_SWIFT | {"split_dataset_ratio": 0.01} | values)
    assert evaluated(config).get("eval_samples") == expected


def test_metrics_of_each_batch_let_go_of_its_outputs(read):
    asked = LLAMA_FACTORY | {"eval_strategy": "steps", "val_size": 9, "compute_accuracy": True}
    assert evaluated(read(asked | {"batch_eval_metrics": True}))["eval_accumulation"] == 1


# -- 4-bit weights ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "key", "default"),
    [
        (TRL | {"load_in_4bit": True}, "use_bnb_nested_quant", False),
        (LLAMA_FACTORY | {"quantization_bit": 4}, "double_quantization", True),
        (MS_SWIFT | {"quant_bits": 4}, "bnb_4bit_use_double_quant", True),
    ],
)
def test_scales_of_4_bit_weights_are_quantised_where_the_trainer_does_it(read, values, key, default):
    assert read(values).options["use_double_quant"] is default
    assert read(values | {key: not default}).options["use_double_quant"] is not default
    assert {setting.key: setting.value for setting in read(values).defaults}[key] == str(default).lower()
    without = {name: value for name, value in values.items() if name not in ("load_in_4bit", "quantization_bit")}
    without.pop("quant_bits", None)
    assert key in read(without | {key: True}).idle


def test_generation_is_as_long_as_each_trainer_has_it(read):
    asked = LLAMA_FACTORY | {"eval_strategy": "steps", "val_size": 9, "predict_with_generate": True}
    found = evaluated(read(asked))
    assert (found["eval_new_tokens"], found["eval_loss"], found["eval_keeps"]) == (1024, False, "predictions")
    found = evaluated(read(asked | {"max_new_tokens": 77, "eval_num_beams": 3}))
    assert (found["eval_new_tokens"], found["eval_beams"]) == (77, 3)
    swift = MS_SWIFT | {"split_dataset_ratio": 0.1, "predict_with_generate": True}
    assert evaluated(read(swift))["eval_new_tokens"] == 64
    plain = {"per_device_train_batch_size": 1, "eval_strategy": "steps", "predict_with_generate": True}
    assert "eval_new_tokens" not in evaluated(read(plain))
    found = evaluated(read(plain | {"generation_max_length": 100, "generation_num_beams": 2}))
    assert (found["eval_new_tokens"], found["eval_beams"], "eval_loss" in found) == (100, 2, False)


def test_checkpoints_are_as_the_file_has_them(read):
    saving = read(TRL).saving
    assert (saving.every, saving.keep_last, saving.keeps_best, saving.only_model) == (500, None, False, False)
    said = {"save_steps": 100, "save_total_limit": 3, "load_best_model_at_end": True, "save_only_model": True}
    said |= {"eval_strategy": "steps", "eval_steps": 50}
    saving = read(TRL | said).saving
    assert (saving.every, saving.keep_last, saving.keeps_best, saving.only_model) == (100, 3, True, True)
    assert read(TRL | {"save_total_limit": -1}).saving.keep_last is None
    assert read(MS_SWIFT | {"val_dataset": "v"}).saving.keeps_best  # it always looks for the best where it evaluates
    assert not read(MS_SWIFT).saving.keeps_best
    refused(read, TRL | {"save_strategy": "sometimes"}, "save_strategy", "steps, epoch, no, best")
    refused(read, TRL | {"save_steps": 1.5}, "save_steps", "a whole number of steps")


def test_a_file_that_goes_on_from_a_checkpoint_is_told_where_that_is_counted(read):
    told = "goes on from a checkpoint"
    assert any(told in note for note in read(TRL | {"resume_from_checkpoint": "out/checkpoint-9"}).notes)
    assert not any(told in note for note in read(TRL | {"resume_from_checkpoint": False}).notes)


def test_stacked_experts_are_targets_beside_layers(read):
    values = {**TRL, "lora_target_parameters": ["mlp.experts.gate_up_proj", "experts.down_proj"]}
    assert read(values).options["lora_targets"] == "all-linear,mlp.experts.gate_up_proj,experts.down_proj"


def test_other_parameters_are_refused(read):
    with pytest.raises(InputError, match=r"lora_target_parameters.*experts\.NAME"):
        read({**TRL, "lora_target_parameters": ["mlp.gate.weight"]})


# -- activations on the host -----------------------------------------------------------------------------------------


def test_trls_offloaded_activations_are_inputs_of_checkpointed_layers(read):
    config = read(TRL | {"activation_offloading": True})
    assert config.options["offload_activations"] is True
    assert any("up to five" in note for note in config.notes)
    assert "offload_activations" not in read(TRL).options
    refused(read, TRL | {"activation_offloading": True, "gradient_checkpointing": False}, "activation_offloading")


# -- preferences -----------------------------------------------------------------------------------------------------


def test_trl_dpo_is_told_by_its_keys(read):
    options = read(TRL | {"beta": 0.1, "lora_dropout": 0.05}).options
    assert (options["task"], "reference" in options) == ("dpo", False)
    assert options["lora_dropout"] == 0.0  # disable_dropout is on unless it is said
    assert "disable_dropout" not in options
    left_on = read(TRL | {"beta": 0.1, "disable_dropout": False}).options
    assert (left_on["lora_dropout"], left_on["disable_dropout"]) == (0.05, False)  # of the model too, such as GPT-2
    assert read(TRL | {"precompute_ref_log_probs": True}).options["reference"] == "precomputed"
    assert "task" not in read(TRL).options


def test_what_trl_dpo_does_not_plan_is_refused_by_its_key(read):
    refused(read, TRL | {"beta": 0.1, "loss_type": ["sigmoid", "of_mine"]}, "loss_type", "of_mine", "apo_zero")
    refused(read, TRL | {"beta": 0.1, "sync_ref_model": True}, "sync_ref_model")
    refused(read, TRL | {"beta": 0.1, "use_weighting": True}, "use_weighting")


def test_evaluating_rewards_of_ms_swift_is_said_not_to_be_planned(read):
    evaluates = {"eval_strategy": "steps", "per_device_eval_batch_size": 4}
    assert read(TRL | {"beta": 0.1, **evaluates}).options["eval_batch"] == 4
    assert read(MS_SWIFT | {"rlhf_type": "dpo", "split_dataset_ratio": 0.1, **evaluates}).options["eval_batch"] == 4
    _says_it(read(MS_SWIFT | {"rlhf_type": "grpo", "split_dataset_ratio": 0.1, **evaluates}))


def _says_it(config: TrainerConfig) -> None:
    assert not [name for name in config.options if name.startswith("eval_")]
    assert [note for note in config.notes if isinstance(note, Caveat) and "evaluates 4 samples" in note]


def test_a_command_of_trl_dpo_and_its_script_are_read(tmp_path):
    for command in ("trl dpo", "accelerate launch trl/scripts/dpo.py", "python dpo_vlm.py"):
        path = tmp_path / "run.sh"
        path.write_text(f"{command} --model_name_or_path {READS} --dtype bfloat16 --output_dir out\n", encoding="utf-8")
        config = read_trainer_config(path, Asked(num_gpus=1, find_model=find_model))
        assert (config.trainer, config.options["task"], config.options["loss"]) == ("TRL 1.16.0", "dpo", "trl")


def test_auto_pads_to_no_multiple(read):
    assert read(TRL | {"pad_to_multiple_of": "auto"}).data_rules.pads_to == 1
