"""What InternVL's own scripts make of their options, and what vlmplan makes of those."""

import pytest

from vlmplan.errors import InputError

RUN = "torchrun --nproc_per_node=8 internvl/train/internvl_chat_finetune.py --per_device_train_batch_size 4 --bf16 True"
IMAGES = "--dynamic_image_size True --use_thumbnail True --max_dynamic_patch 6 --force_image_size 448"
TUNED = f"{RUN} --model_name_or_path OpenGVLab/InternVL3-2B {IMAGES} --max_seq_length 16384 --freeze_backbone True"
ADAPTED = f"{TUNED} --freeze_llm True --freeze_mlp True --use_llm_lora 16"


def test_internvl_trains_the_parts_that_are_not_frozen_on_images_of_as_many_tiles_as_there_may_be(read):
    config = read(TUNED)
    options = config.options
    assert (config.trainer, options["model"]) == ("InternVL", "OpenGVLab/InternVL3-2B-hf")
    parts = ("train_vision", "train_projector", "train_language")
    assert [options[part] for part in parts] == [False, True, True]
    assert (options["seq_len"], options["image_size"]) == (16384, f"{3 * 448}x{2 * 448}")
    assert (options["attention"], options["loss"]) == ("flash_attention_2", "model")
    assert options["activation_checkpointing"] is True  # grad_checkpoint, which is on unless it is said
    assert (options["input_gradients"], read(ADAPTED).options["input_gradients"]) == ("none", "language")


def test_internvl_adapts_its_decoder_alone_with_twice_the_rank_as_alpha(read):
    options = read(ADAPTED).options
    assert (options["method"], options["lora_rank"], options["lora_alpha"], options["lora_dropout"]) == (
        *("lora", 16, 32),
        0.05,
    )
    assert [options[name] for name in ("train_vision", "full_vision", "full_projector")] == [False, False, False]
    beside = read(ADAPTED.replace("--freeze_mlp True", "--freeze_mlp False")).options
    assert (beside["full_vision"], beside["full_projector"]) == (False, True)


def test_rows_that_internvl_packs_are_planned_with_all_that_one_may_hold(read):
    packed = f"{TUNED} --use_packed_ds True --max_packed_tokens 8192 --num_images_expected 24"
    names = ("batching", "seq_len", "images_per_sample", "image_size")
    assert [read(packed).options[name] for name in names] == ["padding-free", 8192, 24, "448x448"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"{ADAPTED} --use_backbone_lora 8", "adapters of the tower get no gradient"),
        (TUNED.replace("InternVL3-2B", "InternVL2-26B"), "model_name_or_path is OpenGVLab/InternVL2-26B; of"),
        (TUNED.replace("--model_name_or_path OpenGVLab/InternVL3-2B", ""), "model_name_or_path is missing"),
        (ADAPTED.replace("--use_llm_lora 16", ""), "leave nothing to train without use_llm_lora"),
        (TUNED.replace("patch 6", "patch 24"), "makes 12 tiles at the most"),
        (TUNED.replace("size 448", "size 224"), "position embeddings are made anew"),
        (f"{TUNED} --unfreeze_vit_layers -4", "some layers of the tower"),
        (
            TUNED.replace("--freeze_backbone True", "--freeze_backbone False --grad_checkpoint False"),
            "tower has",
        ),
        (TUNED.replace("finetune.py", "mpo.py"), "starts internvl_chat_mpo.py for mixed preference"),
    ],
)
def test_what_internvls_script_does_that_is_not_planned_is_said(read, words: str, said: str):
    with pytest.raises(InputError, match=r"run\.sh") as caught:
        read(words)
    assert said in str(caught.value)
