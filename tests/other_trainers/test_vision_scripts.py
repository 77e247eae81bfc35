"""What the scripts that are published for Qwen-VL make of their options, and what vlmplan makes of those."""

from pathlib import Path
from typing import Any

import pytest

from cli_calls import call
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config

BATCH = "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --bf16 True --gradient_checkpointing True"
FINETUNE = f"torchrun --nproc_per_node=8 qwenvl/train/train_qwen.py {BATCH} --dataset_use mine --tune_mm_llm True"
SERIES = f"deepspeed src/train/train_sft.py {BATCH} --use_liger False --freeze_llm False --freeze_merger False"
PLAIN_ADAPTED = f"deepspeed src/train/train_sft.py {BATCH} --use_liger False --freeze_llm True --lora_enable True"
ADAPTED = f"{PLAIN_ADAPTED} --lora_namespan_exclude \"['lm_head', 'embed_tokens']\""


@pytest.fixture
def read(tmp_path: Path):
    def config(text: str, model: str = "qwen2.5-vl-7b") -> TrainerConfig:
        path = tmp_path / "run.sh"
        path.write_text(text, encoding="utf-8")
        return read_trainer_config(path, Asked(model=model, num_gpus=8, find_model=find_model))

    return config


def options(config: TrainerConfig, *names: str) -> list[Any]:
    return [config.options.get(name) for name in names]


# -- qwen-vl-finetune ------------------------------------------------------------------------------------------------


def test_qwens_script_trains_the_parts_that_it_is_told_to_with_flash_attention_in_bf16(read):
    config = read(f"{FINETUNE} --tune_mm_vision False --tune_mm_mlp True --data_flatten True --max_pixels 50176")
    assert config.trainer == "qwen-vl-finetune"
    assert options(config, "train_vision", "train_projector", "train_language") == [False, True, True]
    assert options(config, "attention", "batching", "loss") == ["flash_attention_2", "padding-free", "model"]
    assert options(config, "seq_len", "image_size", "weight_dtype") == [512, "224x224", "model"]
    assert any("not cut at model_max_length" in note for note in config.notes)


def test_qwens_script_has_its_own_defaults_in_place_of_zeros(read):
    """``lora_dropout or 0.05`` of a default of 0.0 is 0.05."""
    config = read(f"{FINETUNE} --lora_enable True --lora_r 0")
    assert options(config, "method", "lora_rank", "lora_alpha", "lora_dropout") == ["lora", 64, 128, 0.05]
    assert config.options["lora_targets"] == "q_proj,k_proj,v_proj,o_proj"
    assert any("tune_mm_llm has no effect" in note for note in config.notes)


def test_qwens_script_trains_a_head_of_its_own_that_it_means_to_freeze(read):
    """``model.lm_head.requires_grad = False`` is said of the module."""
    frozen = FINETUNE.replace("--tune_mm_llm True", "--tune_mm_mlp True --tune_mm_vision False")
    with pytest.raises(InputError, match="trains the output head all the same"):
        read(frozen)
    assert read(frozen, "qwen2.5-vl-3b").options["train_language"] is False  # whose head is its embedding


def test_qwen3s_deepstack_mergers_are_told_apart(read):
    config = read(f"{FINETUNE} --tune_mm_vision False --tune_mm_mlp True", "qwen3-vl-2b")
    assert any("deepstack_merger_list is frozen with the tower there" in note for note in config.notes)


def test_limits_of_frames_that_qwens_script_named_otherwise_at_first_have_no_effect_as_todays(read):
    frames = "--video_max_frame_pixels 25088 --video_min_frame_pixels 3136 --video_max_total_pixels 1304576"
    assert read(f"{FINETUNE} --tune_mm_mlp True {frames}").options == read(f"{FINETUNE} --tune_mm_mlp True").options


# -- Qwen-VL-Series-Finetune -----------------------------------------------------------------------------------------


def test_the_series_script_freezes_parts_and_loads_in_the_type_of_the_computation(read):
    config = read(f"{SERIES} --freeze_vision_tower True --disable_flash_attn2 True --image_max_pixels 1003520")
    assert config.trainer == "Qwen-VL-Series-Finetune"
    assert options(config, "train_vision", "train_projector", "train_language") == [False, True, True]
    assert options(config, "method", "attention", "loss", "image_size") == ["full", "sdpa", "model", "1001x1001"]
    assert options(config, "optimizer", "fuses_optimizer") == ["adamw", False]  # optim adamw_torch


def test_the_series_script_trains_tower_and_merger_in_full_beside_adapters_unless_they_are_frozen(read):
    names = ("train_vision", "full_vision", "train_projector", "full_projector")
    thawed = read(f"{ADAPTED} --freeze_vision_tower False --freeze_merger True")
    assert options(thawed, *names) == [True, True, True, True]  # "visual" is in the names of the merger, too
    merger = read(f"{ADAPTED} --freeze_vision_tower True --freeze_merger False")
    assert options(merger, *names) == [False, False, True, True]
    frozen = read(f"{ADAPTED} --freeze_vision_tower True --freeze_merger True")
    assert options(frozen, *names) == [False, False, False, False]
    vision = read(f"{ADAPTED} --freeze_vision_tower True --freeze_merger True --vision_lora True")
    assert options(vision, *names) == [True, False, True, False]


def test_weights_in_8_bits_stand_beside_a_tower_that_the_series_script_trains_in_full(read):
    config = read(f"{ADAPTED} --bits 8 --freeze_vision_tower False")
    names = ("method", "full_vision", "checkpoint_kind", "upcasts_frozen")
    assert options(config, *names) == ["lora-8bit", True, "reentrant", True]


def test_words_that_the_series_script_excludes_are_parts_of_names(read):
    adapted = ADAPTED.replace("'embed_tokens'", "'embed_tokens', 'mlp'")
    config = read(f"{adapted} --freeze_vision_tower True --freeze_merger True")
    assert config.options["lora_exclude"] == "regex:.*(?:mlp).*"


def test_the_series_script_takes_ligers_kernels_and_its_loss(read):
    config = read(SERIES.replace("--use_liger False", ""))
    assert options(config, "loss", "liger_layers") == ["liger", True]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"{ADAPTED} --freeze_llm False", "lora_enable needs freeze_llm True"),
        (f"{ADAPTED} --vision_lora True --freeze_vision_tower False", "vision_lora needs freeze_vision_tower True"),
        (f"{ADAPTED} --num_lora_modules 5", "num_lora_modules is"),
        (f"{ADAPTED} --bits 4 --freeze_vision_tower True", "the tower is not quantised there"),
        (f"{SERIES} --bits 8", "8-bit weights are trained by adapters alone"),
        (f"{SERIES} --unfreeze_topk_llm 2", "unfreeze_topk_llm is"),
        (
            f"{SERIES} --model_id Qwen/Qwen3-VL-4B-Instruct --use_liger True",
            "the script raises ValueError for Qwen3-VL",
        ),
        (f"{PLAIN_ADAPTED} --lora_namespan_exclude visual", "a list of texts as Python writes it"),
        (f"{PLAIN_ADAPTED} --lora_namespan_exclude \"['lm_head']\"", "puts adapters on embeddings too"),
        (SERIES.replace("train_sft", "train_dpo"), "--task dpo of vlmplan estimate and recommend plans it"),
        (SERIES.replace("train_sft", "train_cls"), "which is not planned"),
    ],
)
def test_what_the_series_script_refuses_or_is_not_planned_is_said(read, words: str, said: str):
    with pytest.raises(InputError) as caught:
        read(words)
    assert said in str(caught.value)


# -- what to change --------------------------------------------------------------------------------------------------


# -- 2U1's scripts for other models ----------------------------------------------------------------------------------

WHOLE = f"deepspeed src/train/train_sft.py {BATCH} --freeze_vision_tower True --freeze_llm False"
OWN = f"deepspeed src/train/train_sft.py {BATCH} --freeze_llm True --lora_enable True --freeze_vision_tower True"
WITH_WORDS = f"{OWN} --lora_namespan_exclude \"['lm_head', 'embed_tokens']\""
PARTS = ("train_vision", "train_projector", "train_language")
OF_ADAPTERS = ("train_vision", "full_vision", "train_projector", "full_projector")


def test_a_script_for_smolvlm_computes_its_loss_in_the_model_and_freezes_its_connector_by_its_key(read):
    config = read(
        f"{WHOLE} --freeze_connector True --connector_lr 1e-5 --disable_flash_attn2 True",
        "HuggingFaceTB/SmolVLM-Instruct",
    )
    assert config.trainer == "SmolVLM-Finetune"
    assert options(config, *PARTS) == [False, False, True]
    assert options(config, "attention", "loss", "liger_layers") == ["eager", "model", None]
    assert options(config, "optimizer", "fuses_optimizer", "weight_dtype") == ["adamw", False, "model"]
    older = read(
        f"{WHOLE} --tune_connector False --connector_lr 1e-5 --disable_flash_attn2 True",
        "HuggingFaceTB/SmolVLM-Instruct",
    )
    assert older.options == config.options


def test_scripts_for_gemma_3_and_llama_vision_have_ligers_loss_and_their_own_keys_and_attention(read):
    gemma = read(f"{WHOLE} --freeze_projector False --projector_lr 1e-5", "gemma-3-4b")
    llama = read(f"{WHOLE} --projector_lr 1e-5 --freeze_img_projector True", "llama-3.2-11b-vision")
    assert [config.trainer for config in (gemma, llama)] == ["Gemma3-Finetune", "Llama3.2-Vision-Finetune"]
    assert options(gemma, *PARTS, "attention", "loss") == [False, True, True, "flash_attention_2", "liger"]
    assert options(llama, *PARTS, "attention", "loss") == [False, False, True, "sdpa", "liger"]
    assert options(read(f"{WHOLE} --freeze_projector True --use_liger False", "gemma-3-4b"), "loss") == ["model"]


def test_the_connector_of_smolvlm_has_adapters_whether_it_is_trained_itself_or_not(read):
    frozen = read(f"{WITH_WORDS} --freeze_connector True", "HuggingFaceTB/SmolVLM-Instruct")
    assert options(frozen, *OF_ADAPTERS, "lora_alpha") == [False, False, True, False, 64]
    trained = read(f"{WITH_WORDS} --freeze_connector False --connector_lr 1e-5", "HuggingFaceTB/SmolVLM-Instruct")
    assert options(trained, *OF_ADAPTERS) == [False, False, True, True]
    said = (
        "adapters of the connector, which is trained itself, are not counted: 794,624 weights"  # 64 x (9 x 1152 + 2048)
    )
    assert [any(said in note for note in config.notes) for config in (frozen, trained)] == [False, True]
    words = WITH_WORDS.replace("['lm_head'", "['connector', 'lm_head'")
    assert options(read(f"{words} --freeze_connector True", "HuggingFaceTB/SmolVLM-Instruct"), "train_projector") == [
        False
    ]


def test_adapters_of_a_towers_positions_are_left_out_and_said(read):
    config = read(f"{WITH_WORDS} --vision_lora True --freeze_projector True --use_dora True", "gemma-3-4b")
    assert options(config, *OF_ADAPTERS, "use_dora") == [True, False, False, False, None]
    assert any("335,872 weights, at most 0.01 GiB" in note for note in config.notes)  # 64 x (64 x 64 + 1152)
    assert any("use_dora has no effect" in note for note in config.notes)


@pytest.mark.parametrize(
    ("words", "model", "said"),
    [
        (
            f"{WHOLE} --freeze_connector True --bits 4",
            "HuggingFaceTB/SmolVLM-Instruct",
            "bits is .*packs the output head too",
        ),
        (f"{WHOLE} --freeze_connector True --connector_lr 1", "qwen2.5-vl-3b", "these options are of SmolVLM-Finetune"),
        (f"{OWN} --freeze_projector True", "gemma-3-4b", "puts adapters on embeddings too"),
        (f"{WITH_WORDS} --vision_lora True --freeze_img_projector True", "llama-3.2-11b-vision", "tower's tables"),
        (
            f"{WHOLE} --freeze_connector True --connector_lr 1 --unfreeze_topk_llm 2",
            "HuggingFaceTB/SmolVLM-Instruct",
            "unfreeze_topk_llm",
        ),
    ],
)
def test_what_these_scripts_do_that_is_not_planned_is_said(read, words: str, model: str, said: str):
    with pytest.raises(InputError, match=said):
        read(words, model)


@pytest.mark.sweep
def test_what_does_not_fit_is_answered_with_keys_of_the_script_that_fit(tmp_path: Path):
    """Without vlmplan's own loss, which no key of such a script means."""
    script, fixed = tmp_path / "run.sh", tmp_path / "fixed.sh"
    words = "--model_id Qwen/Qwen2.5-VL-3B-Instruct --deepspeed zero3.json"
    script.write_text(f"{SERIES} --freeze_vision_tower False {words}\n")
    (tmp_path / "zero3.json").write_text('{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}}')
    asked = ("--gpu", "a100-sxm4-80gb:4", "--seq-len", "8192")
    answer = call("check", str(script), *asked, "--fix", "--write", str(fixed))
    assert "per_device_train_batch_size 4 -> " in answer.out
    assert "chunked" not in answer.out
    assert call("check", str(script), *asked).code == 3
    assert call("check", str(fixed), *asked).code == 0
