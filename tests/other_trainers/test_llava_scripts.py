"""What LLaVA's own scripts make of their options, and what vlmplan makes of those."""

import pytest

from vlmplan.errors import InputError

BATCH = "--per_device_train_batch_size 16 --bf16 True --gradient_checkpointing True --model_max_length 2048"
MODEL = "--model_name_or_path lmsys/vicuna-13b-v1.5 --vision_tower openai/clip-vit-large-patch14-336"
ARGUMENTS = f"{BATCH} {MODEL} --version v1 --mm_projector_type mlp2x_gelu --mm_use_im_start_end False"
TUNED = f"deepspeed llava/train/train_mem.py {ARGUMENTS} --group_by_modality_length True --mm_vision_select_layer -2"
ADAPTED = f"{TUNED} --lora_enable True --lora_r 128 --lora_alpha 256 --mm_projector_lr 2e-5"
PARTS = ("train_vision", "train_projector", "train_language")


def test_llava_trains_decoder_and_projector_behind_a_frozen_tower_with_flash_attention(read):
    config = read(TUNED)
    options = config.options
    assert (config.trainer, options["model"]) == ("LLaVA", "llava-hf/llava-1.5-13b-hf")
    assert [options[part] for part in PARTS] == [False, True, True]
    assert (options["attention"], options["seq_len"], options["image_size"]) == ("flash_attention_2", 2048, "336x336")
    assert options["input_gradients"] == "none"  # of an embedding that is trained, and a tower without gradients
    assert config.data_rules.order.value == "by length"


def test_llavas_script_without_flash_attention_takes_that_of_torch(read):
    assert read(TUNED.replace("train_mem", "train")).options["attention"] == "sdpa"


def test_llavas_first_stage_trains_the_projector_alone(read):
    options = read(f"{TUNED} --tune_mm_mlp_adapter True").options
    assert [options[part] for part in PARTS] == [False, True, False]
    assert options["input_gradients"] == "language"
    frozen = read(f"{TUNED} --freeze_mm_mlp_adapter True").options
    assert [frozen[part] for part in PARTS] == [False, False, True]


def test_llavas_adapters_stand_beside_a_projector_that_is_trained_in_full(read):
    options = read(ADAPTED).options
    assert (options["method"], options["lora_rank"], options["lora_alpha"]) == ("lora", 128, 256)
    assert (options["lora_targets"], options["lora_dropout"]) == ("all-linear", 0.05)
    assert (options["train_vision"], options["full_projector"]) == (False, True)
    assert read(f"{ADAPTED} --freeze_mm_mlp_adapter True").options["full_projector"] is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"{ADAPTED} --bits 4", "it packs the output head too and leaves the tower in 16 bits"),
        (TUNED.replace("lmsys/vicuna-13b-v1.5", "mine"), "model_name_or_path is mine; of vicuna-7b-v1.3"),
        (TUNED.replace("mlp2x_gelu", "linear"), "mm_projector_type is linear"),
        (TUNED.replace("patch14-336", "patch14"), "give --model a config.json with vision_config.image_size 224"),
        (TUNED.replace("openai/clip-vit-large-patch14-336", "mine"), "vision_tower is"),
        (f"{TUNED} --freeze_backbone True", "the output head is trained all the same"),
        (f"{ADAPTED} --tune_mm_mlp_adapter True", "beside lora_enable it freezes the adapters"),
        (f"{TUNED} --mm_patch_merge_type spatial_unpad", "mm_patch_merge_type is"),
        (f"{TUNED} --mm_tunable_parts mm_mlp_adapter", "mm_tunable_parts is an option of LLaVA-NeXT, whose"),
        (f"{TUNED} --conv_version phi --training_recipe common", "are options of TinyLLaVA Factory, whose"),
    ],
)
def test_what_llavas_script_does_that_is_not_planned_is_said(read, words: str, said: str):
    with pytest.raises(InputError, match=r"run\.sh: ") as caught:
        read(words)
    assert said in str(caught.value)


def test_another_model_than_a_llava_is_refused_for_llavas_script(read):
    with pytest.raises(InputError, match="the model is of type internvl; this script trains a Llama behind CLIP"):
        read(TUNED, "internvl3-2b")


def test_a_model_that_only_the_shell_knows_is_no_missing_one(read):
    with pytest.raises(InputError, match="only running the program tells") as caught:
        read(TUNED.replace("lmsys/vicuna-13b-v1.5", "./checkpoints/$MODEL_VERSION"))
    assert "is missing" not in str(caught.value)


def test_what_a_script_made_of_llavas_lacks_is_not_told_beside(read):
    told = TUNED.replace("lmsys/vicuna-13b-v1.5", "Qwen/Qwen2-7B-Instruct").replace("mlp2x_gelu", "mlp3x_gelu")
    with pytest.raises(InputError) as caught:
        read(f"{told} --mm_tunable_parts mm_vision_tower,mm_mlp_adapter --frames_upbound 32 --torch_compile True")
    assert str(caught.value).endswith("such as --model llava-onevision-7b --freeze-vision")
    assert "mistakes" not in str(caught.value)
